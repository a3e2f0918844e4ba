"""``python -m brooq_sa`` is ``brooq-sa``."""

from .cli import main

main(prog_name="brooq-sa")
