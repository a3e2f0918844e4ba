"""A process of the suite: ``python -m chaos.child worker|consumer|producer ...``.

A worker is the command ``brooq-sa worker`` itself, with two things added: it may be a mutant, and SIGUSR1 steps the
clock that Python's `time.time` tells, by hours in either direction. The rest of the host, and `datetime`, keep theirs.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from random import Random

PARENT_CHECK = 1.0


def main() -> None:
    role, *arguments = sys.argv[1:]
    _end_with(os.getppid())
    _let_the_clock_step()
    from chaos import mutants

    assert mutants.VARIABLE not in os.environ or os.environ[mutants.VARIABLE] in mutants.MUTANTS
    match role:
        case "worker":
            from brooq_sa.cli import main as command

            sys.argv = ["brooq-sa", "worker", "--http-addr=off", *arguments]
            command()
        case "consumer":
            from chaos.consumer import run

            run(*arguments)
        case "producer":
            from chaos.producer import run as produce

            produce(*arguments)


def _end_with(parent: int) -> None:
    """Do not outlive a suite that was killed."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(PARENT_CHECK)
        os._exit(99)

    threading.Thread(target=watch, name="parent", daemon=True).start()


def _let_the_clock_step() -> None:
    true_time, offset, chance = time.time, [0.0], Random(os.getpid())

    def step(*_: object) -> None:
        offset[0] = chance.uniform(-3, 3) * 3_600

    time.time = lambda: true_time() + offset[0]
    signal.signal(signal.SIGUSR1, step)


if __name__ == "__main__":
    main()
