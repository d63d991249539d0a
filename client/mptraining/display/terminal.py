"""Display of a run on a terminal: permanent lines above one progress bar at the bottom."""

from __future__ import annotations

import sys
from typing import Literal

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from mptraining.display.text import (
    event_lines,
    is_indexing,
    is_shown,
    is_validation,
    metrics,
    position_text,
    speed_text,
    with_worker_prefix,
)
from mptraining_api.events import Event, Finished, Notice, Progress, Recovered, Started

_STYLES = {Notice: "yellow", Recovered: "yellow", Started: "bold"}


class TerminalDisplay:
    """Display on `console`; lines that the program prints appear above the bar, unchanged."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False)
        self._live = Live(console=self._console, transient=True, refresh_per_second=8)
        self._trains = False

    def say(self, text: str) -> None:
        self._print(text)

    def event(self, worker: int, event: Event) -> None:
        if not is_shown(worker, event):
            return
        if isinstance(event, Progress):
            self._live.update(bar(event))
            self._live.start()
            self._trains = True
        if is_indexing(event):
            self._live.update(Text(" ".join(event_lines(event)), style="dim", no_wrap=True, overflow="ellipsis"))
            self._live.start(refresh=True)
            return
        # No event reports that the index is ready, so the next event of another kind removes its line.
        if isinstance(event, Finished) or not self._trains:
            self.close()
        if not isinstance(event, Progress) or is_validation(event):
            quiet = isinstance(event, Notice) and event.level == "Info"
            for text in permanent_lines(event):
                self._print(with_worker_prefix(worker, text), "" if quiet else _STYLES.get(type(event), ""))

    def line(self, worker: int, stream: Literal["stdout", "stderr"], text: str) -> None:
        if stream == "stderr" and not sys.stderr.isatty():
            print(with_worker_prefix(worker, text), file=sys.stderr, flush=True)
        else:
            self._console.print(Text.from_ansi(with_worker_prefix(worker, text)), soft_wrap=True)

    def close(self) -> None:
        self._live.stop()

    def _print(self, text: str, style: str = "") -> None:
        self._console.print(Text(text, style=style))


def permanent_lines(event: Event) -> list[str]:
    """Return the permanent lines of an event; for Progress without the speed, which the bar shows."""
    if isinstance(event, Progress):
        return [f"{position_text(event)}  {metrics(event.metrics)}"]
    return event_lines(event)


def bar(event: Progress) -> Group:
    """Return the progress bar in two lines: position, then metrics and speed.

    The number of retries is the total, because the bar is redrawn before a user could read a difference.
    """
    row = Table.grid(padding=(0, 2), expand=True)
    row.add_column(no_wrap=True)
    row.add_column(ratio=1)
    row.add_column(no_wrap=True, justify="right")
    total = event.total_steps
    share = "" if not total else f"{100 * event.step / total:.0f}%"
    drawn = ProgressBar(total=total, completed=event.step, pulse=total is None)
    row.add_row(Text(position_text(event), style="bold"), drawn, share)
    below = Text(metrics(event.metrics), style="green", no_wrap=True, overflow="ellipsis")
    below.append("  " + speed_text(event), style="dim")
    return Group(row, below)
