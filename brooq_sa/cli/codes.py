"""Exit codes, and commands whose help lists theirs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

DONE = 0
REFUSED = 1
USAGE = 2
NOT_NEWEST = 3
FINDINGS = 3
SIGNALED = 128
"""Plus the signal's number, as shells count it."""
ENDED_AT_ONCE = "130, 143"

WRONG_USAGE: Mapping[int | str, str] = {USAGE: "wrong usage"}


class Command(click.Command):
    """A command whose help ends with examples and exit codes.

    Args:
        examples: command lines without their ``brooq-sa``.
        exit_codes: what each means.
    """

    def __init__(
        self, *arguments: Any, examples: tuple[str, ...], exit_codes: Mapping[int | str, str], **options: Any
    ) -> None:
        super().__init__(*arguments, **options)
        self.examples = examples
        self.exit_codes: dict[int | str, str] = {**exit_codes, **WRONG_USAGE}

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's signature
        with formatter.section("Examples"):
            for example in self.examples:
                formatter.write(f"{'':{formatter.current_indent}}brooq-sa {example}\n")
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(code), meaning) for code, meaning in self.exit_codes.items()])
