"""Displays of a sweep that runs here: a live table on a terminal, a cell of a notebook, or one line for each trial."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from mptraining.display.notebook import Show, is_notebook, show_in_cell
from mptraining.display.text import metrics, position_text, time_left
from mptraining.sweeps.cell import html
from mptraining.sweeps.driver import SweepDisplay
from mptraining.sweeps.view import SweepView, best_text, counts_text, heads, row, trial_line
from mptraining_api.events import Progress
from mptraining_api.sweep.status import Trial

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

# Ended trials in the live table, the best ones: it must fit a terminal.
MOST_ROWS = 10
# The table of a cell is long: it is drawn again at once when a trial changes, and for progress alone less often.
REDRAW_SECONDS = 1.0


def sweep_display_here(*, plain: bool = False) -> SweepDisplay:
    """Return the display for this environment; `plain` forces plain lines."""
    if not plain and is_notebook():
        return CellDisplay()
    return LiveTable() if not plain and sys.stdout.isatty() else PlainLines()


class PlainLines:
    """One line for each trial that has ended, for a log or a pipe."""

    def update(self, view: SweepView, running: Mapping[int, Progress | None]) -> None: ...

    def ended(self, view: SweepView, trial: Trial) -> None:
        self.say(trial_line(view, trial))

    def say(self, text: str) -> None:
        print(text, flush=True)

    def close(self) -> None: ...


class LiveTable:
    """A table at the bottom of the terminal: the running trials, then the best of those that have ended."""

    def __init__(self, console: Console | None = None) -> None:
        from rich.console import Console as RichConsole
        from rich.live import Live

        self._console = console or RichConsole(highlight=False)
        self._live = Live(console=self._console, transient=True, refresh_per_second=4)

    def update(self, view: SweepView, running: Mapping[int, Progress | None]) -> None:
        self._live.update(live_table(view, running))
        self._live.start()

    def ended(self, view: SweepView, trial: Trial) -> None:
        self.say(trial_line(view, trial))

    def say(self, text: str) -> None:
        from rich.text import Text

        self._console.print(Text(text))

    def close(self) -> None:
        self._live.stop()


def live_table(view: SweepView, running: Mapping[int, Progress | None]) -> RenderableType:
    """Return the running trials with their progress, and the best trials that have ended."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    title = f"{view.name}: {view.sweep.spec.algorithm.name}, {counts_text(view)}"
    best = best_text(view)
    table = Table(show_edge=False, pad_edge=False, header_style="bold")
    for at, head in enumerate([*heads(view), "progress"]):
        table.add_column(head, overflow="ellipsis", no_wrap=True, justify="right" if at > 1 else "left")
    for each in view.trials:
        if each.number in running:
            table.add_row(*map(Text, [*row(view, each), progress_text(running[each.number])]), style="bold")
    ended = [each for each in view.ranked() if each.objective is not None and each.number not in running]
    for each in ended[:MOST_ROWS]:
        is_best = view.status.best is not None and each.number == view.status.best.number
        table.add_row(*map(Text, [*row(view, each), ""]), style="green" if is_best else "")
    more = len(ended) - MOST_ROWS
    lines = [Text(title, style="bold"), Text(f"best: {best}" if best else "no trial has ended yet", style="green")]
    return Group(*lines, table, *([Text(f"and {more} more", style="dim")] if more > 0 else []))


def progress_text(progress: Progress | None) -> str:
    """Return the progress of a running trial in one line."""
    if progress is None:
        return "starting TensorFlow…"
    return "  ".join(part for part in (position_text(progress), metrics(progress.metrics), time_left(progress)) if part)


class CellDisplay:
    """One HTML output of a notebook's cell, updated in place: the sweep, its curve and its best trials."""

    def __init__(self, show: Show = show_in_cell, clock: Callable[[], float] = time.monotonic) -> None:
        self._show = show
        self._clock = clock
        self._update: Callable[[str], None] | None = None
        self._drawn = -math.inf
        self._view: SweepView | None = None
        self._running: Mapping[int, Progress | None] = {}
        self._said: list[str] = []

    def update(self, view: SweepView, running: Mapping[int, Progress | None]) -> None:
        changed = self._view is None or self._view.status is not view.status
        self._view, self._running = view, running
        if changed or self._clock() - self._drawn >= REDRAW_SECONDS:
            self._draw()

    def ended(self, view: SweepView, trial: Trial) -> None: ...

    def say(self, text: str) -> None:
        self._said.append(text)
        self._draw()

    def close(self) -> None:
        self._running = {}
        self._draw()

    def _draw(self) -> None:
        """Replace the cell's content; messages before the first view are shown with it."""
        if self._view is None:
            return
        self._drawn = self._clock()
        texts = [f"trial {number}: {progress_text(each)}" for number, each in sorted(self._running.items())]
        content = html(self._view, lines=[*self._said, *texts])
        if self._update is None:
            self._update = self._show(content)
        else:
            self._update(content)
