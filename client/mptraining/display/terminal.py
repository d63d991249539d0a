"""Display of a run on a terminal: permanent lines above one progress bar at the bottom."""

from __future__ import annotations

import sys
from typing import Literal

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from mptraining.display.text import (
    ends_validation,
    event_lines,
    is_indexing,
    is_shown,
    metrics,
    position_text,
    speed_text,
    time_left,
    with_worker_prefix,
)
from mptraining_api.events import Event, Finished, Notice, Progress, Recovered, Saved, Started

_STYLES = {Notice: "yellow", Recovered: "yellow", Started: "bold"}


class TerminalDisplay:
    """Display on `console`; lines that the program prints appear above the bar, unchanged.

    Every epoch leaves one line: that with its validation metrics, or its last progress if it has none. A saved
    checkpoint appears in the bar.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False)
        self._live = Live(console=self._console, transient=True, refresh_per_second=8)
        self._trains = False
        self._last: Progress | None = None
        self._printed_epoch = 0
        self._saved: int | None = None

    def say(self, text: str) -> None:
        self._print(text)

    def waiting(self, text: str) -> None:
        """Show what the run waits for, with a spinner, until the next event."""
        self._live.update(Spinner("dots", Text(text, style="dim")))
        self._live.start(refresh=True)

    def event(self, worker: int, event: Event) -> None:
        if not is_shown(worker, event):
            return
        if isinstance(event, Progress):
            self._progress(event)
            return
        if is_indexing(event):
            self._live.update(Text(" ".join(event_lines(event)), style="dim", no_wrap=True, overflow="ellipsis"))
            self._live.start(refresh=True)
            return
        if isinstance(event, Saved):
            self._saved = event.step
            if self._last is not None:
                self._live.update(bar(self._last, self._saved))
            return
        # No event reports that the index is ready, so the next event of another kind removes its line.
        if isinstance(event, Finished) or not self._trains:
            self.close()
        if isinstance(event, Finished):
            self._print_epoch(self._last)
        quiet = isinstance(event, Notice) and event.level == "Info"
        for text in event_lines(event):
            self._print(with_worker_prefix(worker, text), "" if quiet else _STYLES.get(type(event), ""))
        if isinstance(event, Started):
            self.waiting("building and compiling the training step…")

    def _progress(self, event: Progress) -> None:
        if self._last is not None and event.epoch > self._last.epoch:
            self._print_epoch(self._last)
        self._live.update(bar(event, self._saved))
        self._live.start()
        validated = ends_validation(event, self._last)
        self._trains, self._last = True, event
        if validated:
            self._printed_epoch = event.epoch
            self._print(progress_line(event))

    def _print_epoch(self, last: Progress | None) -> None:
        """Print the line of an epoch that had no validation."""
        if last is not None and last.epoch > self._printed_epoch:
            self._printed_epoch = last.epoch
            self._print(progress_line(last))

    def line(self, worker: int, stream: Literal["stdout", "stderr"], text: str) -> None:
        if stream == "stderr" and not sys.stderr.isatty():
            print(with_worker_prefix(worker, text), file=sys.stderr, flush=True)
        else:
            self._console.print(Text.from_ansi(with_worker_prefix(worker, text)), soft_wrap=True)

    def close(self) -> None:
        self._live.stop()

    def _print(self, text: str, style: str = "") -> None:
        self._console.print(Text(text, style=style))


def progress_line(event: Progress) -> str:
    """Return the permanent line of a Progress event, without the speed, which the bar shows."""
    return f"{position_text(event)}  {metrics(event.metrics)}"


def bar(event: Progress, saved: int | None = None) -> Group:
    """Return the progress bar in two lines: position and time left, then metrics, speed and the last saved step.

    The number of retries is the total, because the bar is redrawn before a user could read a difference.
    """
    row = Table.grid(padding=(0, 2), expand=True)
    row.add_column(no_wrap=True)
    row.add_column(ratio=1)
    row.add_column(no_wrap=True, justify="right")
    total = event.total_steps
    share = "" if not total else f"{100 * event.step / total:.0f}%"
    drawn = ProgressBar(total=total, completed=event.step, pulse=total is None)
    end = "  ".join(part for part in (time_left(event), share) if part)
    row.add_row(Text(position_text(event), style="bold"), drawn, end)
    below = Text(metrics(event.metrics), style="green", no_wrap=True, overflow="ellipsis")
    below.append("  " + speed_text(event, with_time_left=False), style="dim")
    if saved is not None:
        below.append(f"  saved step {saved}", style="dim")
    return Group(row, below)
