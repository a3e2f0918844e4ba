"""Prints what goes wrong without a guard; run it in the folder ``tests``.

::

    python -m model                    the guards and rules there are
    python -m model settle_done.state  the shortest way to a broken invariant without that one, or several
    python -m model deep               explores further than the tests do: some minutes
"""

from __future__ import annotations

import sys
import time

from .moves import AGAIN, GUARDS, SPARE
from .protocol import RULES
from .scopes import DEEP, scope_without

REPEATED = "the conditions of the sub-select once more, behind it"


def main(names: list[str]) -> int:
    """Do what the command line says; the exit code."""
    if names == ["deep"]:
        return explore_deeply()
    known = {guard.full_name: guard.why for guard in GUARDS} | dict.fromkeys(AGAIN, REPEATED) | RULES
    if not names or not set(names) <= known.keys():
        for name, text in known.items():
            print(f"{name:28} {text}")
        return 0 if not names else 2
    found = scope_without(names[0]).explore(*names, tells_time=True)
    if found.counter_example is None:
        spare = [f"{name} is covered by {SPARE[name]}" for name in names if name in SPARE]
        print(f"no counter-example in {found.worlds:,} worlds. {'; '.join(spare)}".rstrip())
        return 1
    print(found.counter_example)
    return 0


def explore_deeply() -> int:
    for scope in DEEP:
        started = time.perf_counter()
        found = scope.explore()
        print(f"{scope}: {found.worlds:,} worlds, {time.perf_counter() - started:.0f} s", flush=True)
        if found.counter_example is not None:
            print(found.counter_example)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
