"""Display of a run on a terminal: permanent lines above one progress bar at the bottom."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Literal

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from mptraining.display.narrator import Line, RunNarrator
from mptraining.display.text import metrics, position_text, speed_text, time_left, with_worker_prefix
from mptraining_api.events import Progress

_STYLES = {"": "", "strong": "bold", "warning": "yellow"}


class TerminalDisplay(RunNarrator):
    """Display on `console`; lines that the program prints appear above the bar, unchanged."""

    def __init__(self, console: Console | None = None) -> None:
        super().__init__()
        self._console = console or Console(highlight=False)
        self._live = Live(console=self._console, transient=True, refresh_per_second=8)

    def show(self, lines: Sequence[Line], *, now: bool = False) -> None:
        del now
        if not self.moving:
            self.close()
        elif isinstance(self.moving, str):
            self._live.update(Spinner("dots", Text(self.moving, style="dim")))
            self._live.start(refresh=True)
        else:
            self._live.update(bar(self.moving, self.saved))
            self._live.start()
        for line in lines:
            self._console.print(Text(line.text, style=_STYLES[line.tone]))

    def line(self, worker: int, stream: Literal["stdout", "stderr"], text: str) -> None:
        if stream == "stderr" and not sys.stderr.isatty():
            print(with_worker_prefix(worker, text), file=sys.stderr, flush=True)
        else:
            self._console.print(Text.from_ansi(with_worker_prefix(worker, text)), soft_wrap=True)

    def close(self) -> None:
        self.moving = ""
        self._live.stop()


def bar(event: Progress, saved: int | None = None) -> Group:
    """Return the progress bar in two lines: position and time left, then metrics, speed and the last saved step."""
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
