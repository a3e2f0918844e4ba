"""What the demonstration shows: live on a terminal, in plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from rich.console import Console, Group
from rich.live import Live
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from brooq_sa.states import State

from .numbers import Line

SHOWN = (State.PENDING, State.PROCESSING, State.FAILED, State.DONE)
STYLES = {State.PENDING: "dim", State.PROCESSING: "yellow", State.FAILED: "red", State.DONE: "green"}

WINDOW = 1.5
"""Seconds that the rate looks back."""
LINE_EVERY = 1.0
"""Seconds between plain lines."""
SHORTEST_BAR, LONGEST_BAR = 8, 40
"""Between these are the characters of the chart's longest bar, as there is room."""
GAP = 2
INDENT, WIDTH = 9, 60
"""Where the progress bar begins, below the text of the story, and how long it is."""


class Display:
    """Prints the story, and shows the counts of jobs by state while they change."""

    def __init__(self) -> None:
        self.console = Console(file=sys.stdout, highlight=False)
        self._started_at = time.monotonic()
        self._live: Live | None = None
        self._last_line = 0.0
        self._history: deque[tuple[float, int]] = deque()
        can_draw = "utf" in (self.console.encoding or "").lower()
        self._block, self._right, self._wrong = ("█", "✓", "✗") if can_draw else ("#", "ok", "WRONG")

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self._started_at

    def say(self, text: str) -> None:
        """Print a line of the story, above what is live."""
        self.console.print(Text(f"{self.elapsed:5.1f} s  {text}"), soft_wrap=True)

    @contextmanager
    def live(self) -> Iterator[None]:
        """Show counts while the block runs."""
        if not self.console.is_terminal:
            yield
            return
        # Refreshed by hand: processes are started while it is shown, and a second thread would be in the way of that.
        with Live(console=self.console, auto_refresh=False) as self._live:
            yield
        self._live = None

    def show(self, counts: Mapping[State, int], workers: Sequence[str]) -> None:
        """Show how many jobs are in each state now."""
        rate = self._rate(counts[State.DONE])
        if self._live is not None:
            self._live.update(self._panel(counts, workers, rate), refresh=True)
        elif self.elapsed - self._last_line >= LINE_EVERY:
            self._last_line = self.elapsed
            numbers = ", ".join(f"{counts[state]} {state}" for state in SHOWN)
            self.say(f"{numbers}; {rate:.0f} jobs a second")

    def _rate(self, done: int) -> float:
        now = time.monotonic()
        self._history.append((now, done))
        while now - self._history[0][0] > WINDOW:
            self._history.popleft()
        since, before = self._history[0]
        return (done - before) / (now - since) if now > since else 0.0

    def _panel(self, counts: Mapping[State, int], workers: Sequence[str], rate: float) -> Group:
        line = Text(" " * INDENT)
        for state in SHOWN:
            line.append(f"{counts[state]} {state}   ", STYLES[state])
        line.append(f"{rate:.0f} jobs a second   ", "bold")
        line.append(" ".join(workers), "dim")
        bar = ProgressBar(total=sum(counts.values()) or 1, completed=counts[State.DONE], width=WIDTH)
        return Group(line, Padding(bar, (0, 0, 0, INDENT)))

    def table(self, lines: Sequence[Line]) -> None:
        """The final table."""
        table = Table(box=None, padding=(0, 3, 0, 0))
        for header, justify in (
            ("counted in the database", "left"),
            ("jobs", "right"),
            ("expected", "right"),
            ("", "left"),
        ):
            table.add_column(header, justify=justify)  # type: ignore[arg-type]  # both are words that rich knows
        for line in lines:
            mark = Text(self._right, "green") if line.is_right else Text(self._wrong, "bold red")
            table.add_row(line.name, str(line.number), str(line.expected), mark)
        self.console.print()
        self.console.print(table)

    def chart(self, rows: Sequence[tuple[str, int, int, int]]) -> None:
        """Bars of the largest modules."""
        if not rows:
            return
        texts = [
            (name, f"{lines:,} lines, {functions} functions, {classes} classes")
            for name, lines, functions, classes in rows
        ]
        room = self.console.width - max(len(name) + len(text) for name, text in texts) - 3 * GAP
        longest = min(max(room, SHORTEST_BAR), LONGEST_BAR)
        most = max(lines for _, lines, _, _ in rows) or 1
        table = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False, show_header=False)
        for (name, text), (_, lines, _, _) in zip(texts, rows, strict=True):
            table.add_row(name, Text(self._block * max(1, round(lines / most * longest)), "cyan"), text)
        self.console.print()
        self.console.print(Text("The largest modules", "bold"))
        self.console.print(table)

    def hint(self, intro: str, commands: Sequence[str]) -> None:
        """Commands to try, each on a line of its own that can be copied."""
        self.console.print()
        self.console.print(Text(intro, "bold"))
        for command in commands:
            self.console.print(Text(f"  {command}"), soft_wrap=True)
