"""What a process pays for having us: memory, and time at its start."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.bench import Bench
from benchmarks.crowds import fill
from benchmarks.drains import STRAGGLERS, watch
from benchmarks.jobs import Noop
from benchmarks.measuring import Demand, Figures, Row, Side
from benchmarks.queues import Ours

BASE = "sqlalchemy, sqlalchemy.orm, sqlalchemy.dialects.postgresql"
"""What whoever uses SQLAlchemy on PostgreSQL has imported without us."""

IMPORT = f"""
import json, time
began = time.perf_counter()
import {BASE}
between = time.perf_counter()
import brooq_sa
imported = time.perf_counter()
from brooq_sa import JobBase, enqueue
ended = time.perf_counter()
times = {{"SQLAlchemy": between - began, "brooq_sa": imported - between, "to enqueue": ended - between}}
print(json.dumps({{what: taken * 1000 for what, taken in times.items()}}))
"""


def memory(bench: Bench) -> Figures:
    """MB that a worker process has resident, after few jobs and after many."""
    few, many = bench.sizes.footprint
    queue = Ours(bench, Noop)
    queue.empty()
    with bench.server.connect(queue.database) as connection:
        fill(connection, many, "noop")
    bench.calm(queue.database)
    with bench.process(queue.worker()) as worker:
        watch([worker], few - STRAGGLERS)
        at_first = worker.memory
        watch([worker], many - STRAGGLERS)
        return {"after few": at_first, "after many": worker.memory}


def imports(bench: Bench) -> Figures:
    """Milliseconds of the imports, in processes of their own."""
    outputs = _outputs(bench, [sys.executable, "-c", IMPORT])
    runs: list[Figures] = [json.loads(output) for output, _ in outputs]
    return {name: statistics.median(run[name] for run in runs) for name in runs[0]}


def command(bench: Bench) -> Figures:
    """Milliseconds that the command takes from its start to its end."""
    script = Path(sys.executable).with_name("brooq-sa")
    return {"ms": statistics.median(taken for _, taken in _outputs(bench, [str(script), "--help"]))}


def _outputs(bench: Bench, given: list[str]) -> list[tuple[str, float]]:
    """What a process printed and how many milliseconds it took, each time it was started.

    Everything is compiled by then, as it is in any process but the first after an installation.
    """
    found = []
    for _ in range(bench.sizes.starts + 1):
        began = time.perf_counter()
        output = subprocess.run(given, env=bench.environment, capture_output=True, text=True, check=True).stdout
        found.append((output, (time.perf_counter() - began) * 1_000))
    return found[1:]


MEMORY = Side("brooq-sa", memory)
IMPORTS = Side("import brooq_sa", imports)
COMMAND = Side("brooq-sa --help", command)

ROWS = (
    Row(
        "memory",
        "memory",
        "resident memory of a worker process after 1,000,000 jobs",
        (MEMORY,),
        (
            Demand("in all", lambda of: of(MEMORY.name, "after many"), 80.0, 60.0, at_most=True, unit=" MB"),
            Demand(
                "more than after 100,000",
                lambda of: of(MEMORY.name, "after many") - of(MEMORY.name, "after few"),
                3.0,
                1.0,
                at_most=True,
                unit=" MB",
            ),
        ),
        once=True,
    ),
    Row(
        "imports",
        "imports",
        f"imports after `import {BASE}`; `brooq-sa --help`",
        (IMPORTS, COMMAND),
        (
            Demand("`import brooq_sa`", lambda of: of(IMPORTS.name, "brooq_sa"), 40.0, 20.0, at_most=True, unit=" ms"),
            Demand(
                "`from brooq_sa import JobBase, enqueue`",
                lambda of: of(IMPORTS.name, "to enqueue"),
                40.0,
                20.0,
                at_most=True,
                unit=" ms",
            ),
            Demand("the command", lambda of: of(COMMAND.name, "ms"), 300.0, 200.0, at_most=True, unit=" ms"),
        ),
    ),
)
