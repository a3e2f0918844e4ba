"""One frame of ``brooq-sa top``: lines of text that fit a screen, and what is chosen on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from .printing import clean, first_line

if TYPE_CHECKING:
    from brooq_sa.overview import Job, Overview
    from brooq_sa.progress import Progress

GAP = 2
FIXED = 9
"""Lines that are always there: two at the top, a blank and a header for each of three tables, one at the bottom."""

KEYS = "q quit  p hold  / filter  tab other jobs  ↑↓ choose  c cancel  r retry"


@dataclass
class View:
    """What the user has chosen to see.

    Attributes:
        wanted: text that a topic has to contain.
        is_held: whether the refresh is paused.
        shows_trouble: dead, canceled and failed jobs in place of running ones.
        chosen: the place of the chosen job in its list; None before one was chosen.
        bottom: the last line.
    """

    wanted: str = ""
    is_held: bool = False
    shows_trouble: bool = False
    chosen: int | None = None
    bottom: str = KEYS

    def jobs(self, seen: Overview) -> list[Job]:
        """Those that are to be shown, in order."""
        return [each for each in (seen.troubled if self.shows_trouble else seen.running) if self.wanted in each.topic]

    def job(self, seen: Overview) -> Job | None:
        """The chosen one."""
        jobs = self.jobs(seen)
        return None if self.chosen is None or not jobs else jobs[min(self.chosen, len(jobs) - 1)]

    def move(self, by: int, seen: Overview) -> None:
        """Choose another job; the first one, if none is chosen."""
        last = len(self.jobs(seen)) - 1
        self.chosen = None if last < 0 else 0 if self.chosen is None else min(max(self.chosen + by, 0), last)


class Column(NamedTuple):
    """A column of a table; of those with a width of 0, each gets an equal share of what is left."""

    name: str
    width: int = 0
    is_right: bool = False


def lines(seen: Overview, view: View, width: int, height: int | None = None) -> list[str]:
    """The frame, each line no wider than `width`, and no more lines than `height`; None shows all rows."""
    topics = [each for each in seen.topics if view.wanted in each.topic]
    workers = [each for each in seen.workers if not view.wanted or any(view.wanted in topic for topic in each.topics)]
    jobs = view.jobs(seen)
    rooms = _rooms(height, len(topics), len(workers), len(jobs))
    about = "~" if seen.is_estimated else ""
    ready, running = sum(each.ready for each in topics), sum(each.counts["processing"] for each in topics)
    busy, slots = sum(each.running for each in workers), sum(each.slots for each in workers)
    marks = "".join(
        (f"  only topics with {view.wanted!r}" if view.wanted else "", "  HELD: p goes on" if view.is_held else "")
    )
    at_work = f"{len(workers)} worker{'' if len(workers) == 1 else 's'}, {busy}/{slots} busy"
    frame = [
        f"brooq-sa top  {seen.at:%H:%M:%S} UTC{marks}",
        f"{about}{_count(ready)} waiting, {about}{_count(running)} running; {at_work}",
        "",
        *_table(
            _TOPICS,
            [
                (
                    each.topic + (" (paused)" if each.paused is not None else ""),
                    _count(each.ready),
                    _count(each.counts["processing"]),
                    _count(each.counts["dead"]),
                    _span(each.oldest),
                    f"{each.rate:.1f}" if each.rate else "",
                    _span(each.p95),
                )
                for each in topics
            ],
            width,
            rooms[0],
        ),
        "",
        *_table(
            _WORKERS,
            [
                (each.id, f"{each.running}/{each.slots}", _span(each.unseen), each.version, ", ".join(each.topics))
                for each in workers
            ],
            width,
            rooms[1],
        ),
        "",
        *_table(
            _TROUBLED if view.shows_trouble else _RUNNING, [_job(each) for each in jobs], width, rooms[2], view.chosen
        ),
    ]
    if height is not None:
        frame += [""] * (height - 1 - len(frame))
        frame = [*frame[: height - 1], _bottom(seen, view)]
    return [cut(clean(line), width) for line in frame]


def _bottom(seen: Overview, view: View) -> str:
    """The last line; instead of the keys, the chosen job's progress or error, which its row has no room for."""
    job = view.job(seen) if view.bottom == KEYS else None
    told = job and (str(job.progress) if job.progress and job.state == "processing" else first_line(job.error))
    return told or view.bottom


_TOPICS = (
    Column("topic"),
    *(Column(name, width, is_right=True) for name, width in (("waiting", 7), ("running", 7), ("dead", 7))),
    *(Column(name, 7, is_right=True) for name in ("oldest", "ended/s", "p95")),
)
_WORKERS = (
    Column("worker"),
    Column("busy", 7, is_right=True),
    Column("seen", 6, is_right=True),
    Column("version", 9),
    Column("serves"),
)
_RUNNING = (
    Column("running", 36),
    Column("topic"),
    Column("try", 3, is_right=True),
    Column("for", 6, True),
    Column("done", 6, True),
    Column("by"),
)
_TROUBLED = (
    Column("failed, dead, canceled", 36),
    Column("topic"),
    Column("state", 8),
    Column("since", 6, is_right=True),
    Column("error"),
)


def _job(job: Job) -> tuple[str, ...]:
    if job.state == "processing":
        late = " lapsed" if job.lease_left is not None and job.lease_left < 0 else ""
        return (
            str(job.id),
            job.topic,
            str(job.attempts),
            _span(job.seconds),
            _share(job.progress),
            f"{job.worker}{late}",
        )
    return str(job.id), job.topic, job.state, _span(job.seconds), first_line(job.error)


def _share(progress: Progress | None) -> str:
    if progress is None:
        return ""
    return _count(int(progress.done)) if progress.ratio is None else f"{progress.ratio:.0%}"


def _rooms(height: int | None, topics: int, workers: int, jobs: int) -> tuple[int, int, int]:
    """How many rows each table gets: what it needs, or its share of what there is."""
    if height is None:
        return topics, workers, jobs
    left = max(3, height - FIXED)
    for_workers = min(workers, max(1, left // 5))
    for_jobs = min(jobs, max(1, (left - for_workers) // 2))
    for_topics = min(topics, left - for_workers - for_jobs)
    return for_topics, for_workers, left - for_topics - for_workers


def _table(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int, room: int, chosen: int | None = None
) -> list[str]:
    """A header and up to `room` rows; the last of them tells how many more there are. The chosen row is in sight."""
    fixed = sum(column.width for column in columns) + GAP * (len(columns) - 1) + 2
    flexible = sum(not column.width for column in columns)
    share = max(4, (width - fixed) // flexible)
    first = 0 if chosen is None else max(0, min(chosen, len(rows) - 1) - max(0, room - 2))
    shown = rows[first : first + room]
    more = len(rows) - first - len(shown)
    if more > 0 and room > 0:
        shown, more = shown[:-1], more + 1
    written = [
        ("> " if chosen is not None and min(chosen, len(rows) - 1) == first + at else "  ") + _row(columns, row, share)
        for at, row in enumerate(shown)
    ]
    if more > 0 and room > 0:
        written.append(f"  ... and {more} more")
    return ["  " + _row(columns, [column.name for column in columns], share), *written]


def _row(columns: Sequence[Column], cells: Sequence[str], share: int) -> str:
    written = []
    for column, cell in zip(columns, cells, strict=True):
        written.append(_sized(clean(cell), column.width or share, column.is_right))
    return (" " * GAP).join(written).rstrip()


def _sized(text: str, width: int, is_right: bool) -> str:
    from rich.cells import cell_len

    fitting = cut(text, width)
    padding = " " * (width - cell_len(fitting))
    return padding + fitting if is_right else fitting + padding


def cut(text: str, width: int) -> str:
    """The text in no more than so many cells of a terminal."""
    from rich.cells import cell_len, set_cell_size

    return text if cell_len(text) <= width else set_cell_size(text, max(0, width - 1)).rstrip() + "…"


def _count(count: int) -> str:
    if count < 100_000:
        return f"{count:,}"
    return f"{count / 1e6:.1f}M" if count >= 1_000_000 else f"{count // 1000}k"


def _span(seconds: float | None) -> str:
    """How long that is in five characters or fewer: ``0.4s``, ``12s``, ``3m``, ``5h``, ``9d``."""
    if seconds is None:
        return ""
    if seconds < 10:
        return f"{max(0.0, seconds):.1f}s"
    for unit, length in (("s", 120), ("m", 7_200), ("h", 172_800)):
        if seconds < length:
            return f"{int(seconds // {'s': 1, 'm': 60, 'h': 3600}[unit])}{unit}"
    return f"{int(seconds // 86_400)}d"
