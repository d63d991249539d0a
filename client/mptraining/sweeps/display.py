"""Displays of a sweep that runs here: a live table on a terminal, a cell of a notebook, or one line for each trial."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from mptraining.display.curves import Curve, Panel
from mptraining.display.html import card, grid
from mptraining.display.notebook import CellOutput, is_notebook
from mptraining.display.text import metrics, position_text, time_left
from mptraining.sweeps.view import SweepView, best_text, counts_text, heads, one_line, row, trial_line
from mptraining_api.events import Progress
from mptraining_api.sweep.status import Trial

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

# Ended trials in the live table, the best ones: it must fit a terminal.
MOST_ROWS = 10
MOST_ROWS_OF_CELL = 15
# The table of a cell is long: a changed trial draws it again at once, progress less often.
REDRAW_SECONDS = 1.0


def sweep_display_here(*, plain: bool = False) -> SweepDisplay:
    """Return the display for this environment; `plain` forces plain lines."""
    if not plain and is_notebook():
        return CellDisplay()
    return LiveTable() if not plain and sys.stdout.isatty() else SweepDisplay()


class SweepDisplay:
    """One line for each trial that has ended, for a log or a pipe; subclasses draw more."""

    def update(self, view: SweepView, running: Mapping[int, Progress | None]) -> None:
        """Show the sweep; `running` has the last progress of each trial that runs, by its number."""

    def ended(self, view: SweepView, trial: Trial) -> None:
        """Show a trial that has just ended."""
        self.say(trial_line(view, trial))

    def say(self, text: str) -> None:
        """Show a permanent line."""
        print(text, flush=True)

    def close(self) -> None: ...


class LiveTable(SweepDisplay):
    """A table at the bottom of the terminal: the running trials, then the best of those that have ended."""

    def __init__(self, console: Console | None = None) -> None:
        from rich.console import Console as RichConsole
        from rich.live import Live

        self._console = console or RichConsole(highlight=False)
        self._live = Live(console=self._console, transient=True, refresh_per_second=4)

    def update(self, view: SweepView, running: Mapping[int, Progress | None]) -> None:
        self._live.update(live_table(view, running))
        self._live.start()

    def say(self, text: str) -> None:
        self._console.print(text, markup=False, emoji=False)

    def close(self) -> None:
        self._live.stop()


def live_table(view: SweepView, running: Mapping[int, Progress | None]) -> RenderableType:
    """Return the running trials with their progress, and the best trials that have ended."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    best = best_text(view)
    table = Table(show_edge=False, pad_edge=False, header_style="bold")
    for at, head in enumerate([*heads(view), "progress"]):
        table.add_column(head, overflow="ellipsis", no_wrap=True, justify="right" if at > 1 else "left")
    for trial in view.trials:
        if trial.number in running:
            table.add_row(*map(Text, [*row(view, trial), progress_text(running[trial.number])]), style="bold")
    ended = [trial for trial in view.ranked() if trial.objective is not None and trial.number not in running]
    for trial in ended[:MOST_ROWS]:
        is_best = view.status.best is not None and trial.number == view.status.best.number
        table.add_row(*map(Text, [*row(view, trial), ""]), style="green" if is_best else "")
    title = Text(f"{view.name}: {view.sweep.spec.algorithm.name}, {counts_text(view)}", style="bold")
    result = Text(f"best: {best}" if best else "no trial has ended yet", style="green")
    more = [Text(f"and {len(ended) - MOST_ROWS} more", style="dim")] if len(ended) > MOST_ROWS else []
    return Group(title, result, table, *more)


def progress_text(progress: Progress | None) -> str:
    if progress is None:
        return "starting TensorFlow…"
    return "  ".join(part for part in (position_text(progress), metrics(progress.metrics), time_left(progress)) if part)


class CellDisplay(SweepDisplay):
    """One HTML output of a notebook's cell, updated in place: the sweep, its curve and its best trials."""

    def __init__(
        self, output: Callable[[str], None] | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._output = output or CellOutput()
        self._clock = clock
        self._drawn = -math.inf
        self._view: SweepView | None = None
        self._running: Mapping[int, Progress | None] = {}
        self._messages: list[str] = []

    def update(self, view: SweepView, running: Mapping[int, Progress | None]) -> None:
        changed = self._view is None or self._view.status is not view.status
        self._view, self._running = view, running
        if changed or self._clock() - self._drawn >= REDRAW_SECONDS:
            self._draw()

    def ended(self, view: SweepView, trial: Trial) -> None: ...

    def say(self, text: str) -> None:
        self._messages.append(text)
        self._draw()

    def close(self) -> None:
        self._running = {}
        self._draw()

    def _draw(self) -> None:
        """Replace the cell's content; messages before the first view are shown with it."""
        if self._view is not None:
            self._drawn = self._clock()
            running = sorted(self._running.items())
            progress = (f"trial {number}: {progress_text(progress)}" for number, progress in running)
            self._output(sweep_html(self._view, lines=[*self._messages, *progress]))


def sweep_html(view: SweepView, *, lines: Sequence[str] = ()) -> str:
    """Return the HTML of a sweep: its state, its chart and its best trials; `lines` are plain text below its title."""
    ranked = [trial for trial in view.ranked() if trial.objective is not None]
    rows = [(row(view, trial), frozenset(() if at else (2,))) for at, trial in enumerate(ranked[:MOST_ROWS_OF_CELL])]
    more = [f"and {len(ranked) - len(rows)} more trials"] if len(ranked) > len(rows) else []
    table = grid(heads(view), rows) if rows else ""
    return card(one_line(view), lines=[*lines, *more], table=table, panels=sweep_panels(view))


def sweep_panels(view: SweepView) -> list[Panel]:
    """Return the chart of the objective of each trial in the order of their ends, with the best so far."""
    ended = [trial for trial in view.trials if trial.objective is not None]
    ended.sort(key=lambda trial: (trial.completion_time or "", trial.number))
    values = [trial.objective for trial in ended if trial.objective is not None]
    if len(values) < 2:
        return []
    title = f"best {view.metric} so far"
    best = Curve(title, tuple(enumerate(accumulate(values, max if view.maximizes else min), 1)), 0)
    return [Panel(title, (best, Curve(view.metric, tuple(enumerate(values, 1)), 1)), against="trial")]
