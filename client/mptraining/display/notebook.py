"""Display of a run in a notebook cell: one HTML output that is updated in place, without ipywidgets.

Lines, a progress bar, and curves of the loss and of the first validation metric.
"""

from __future__ import annotations

import importlib
import math
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import Any, Literal

from mptraining.display.curves import MOST_POINTS, Panel, downsampled, panels
from mptraining.display.html import charts
from mptraining.display.narrator import Line, RunNarrator
from mptraining.display.text import metrics, position_text, speed_text, with_worker_prefix
from mptraining_api.events import Event, Progress, Recovered, Started

# The cell keeps only the last lines; `Job.logs()` prints all of them.
LINES_KEPT = 200
# Shortest time between two updates: front ends do not draw faster, and Jupyter limits the message rate of a kernel.
SECONDS = 0.25
MOST_CHARTS = 2
# Dark enough on white and light enough on black.
_WARNING = "color:#b3670b;font-weight:600"


def is_notebook() -> bool:
    """Return whether this process runs in a notebook kernel."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return shell is not None and (hasattr(shell, "kernel") or "google.colab" in sys.modules)


class CellOutput:
    """One HTML output of the running cell, which is replaced in place."""

    def __init__(self) -> None:
        self._handle: Any = None

    def __call__(self, html: str) -> None:
        ipython = importlib.import_module("IPython.display")
        if self._handle is None:
            self._handle = ipython.display(ipython.HTML(html), display_id=True)
        else:
            self._handle.update(ipython.HTML(html))


class LiveCurves:
    """Values of the metrics so far: memory and the size of the cell are bounded however long the run is."""

    def __init__(self) -> None:
        self._points: dict[str, list[tuple[float, float]]] = {}

    def add(self, event: Event) -> None:
        """Add the metrics of a progress; drop the points that are trained again."""
        match event:
            case Progress():
                for name, value in event.metrics.items():
                    points = self._points.setdefault(name, [])
                    points.append((event.step, value))
                    if len(points) > 2 * MOST_POINTS:
                        points[:] = downsampled(points)
            case Started(first_step=step) | Recovered(to_step=step):
                for points in self._points.values():
                    points[:] = [point for point in points if point[0] <= step]

    def panels(self) -> list[Panel]:
        """Return the chart of the loss, and that of the next metric, each with its validation."""
        names = sorted(self._points, key=lambda name: name.removeprefix("val_") != "loss")
        drawn = panels({name: self._points[name] for name in names})[:MOST_CHARTS]
        # One point is no curve yet.
        return [panel for panel in drawn if any(len(curve.points) > 1 for curve in panel.curves)]


class NotebookDisplay(RunNarrator):
    """Display of permanent lines above one progress bar and small curves, which stay after the end."""

    def __init__(
        self, output: Callable[[str], None] | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__()
        self._output = output or CellOutput()
        self._clock = clock
        self._kept: deque[Line] = deque(maxlen=LINES_KEPT)
        self._dropped = 0
        self._curves = LiveCurves()
        self._drawn = -math.inf

    def event(self, worker: int, event: Event) -> None:
        if worker == 0:
            self._curves.add(event)
        super().event(worker, event)

    def line(self, worker: int, stream: Literal["stdout", "stderr"], text: str) -> None:
        del stream
        self.show([Line(with_worker_prefix(worker, text))])

    def close(self) -> None:
        self.waiting("")

    def show(self, lines: Sequence[Line], *, now: bool = False) -> None:
        self._dropped += max(0, len(self._kept) + len(lines) - LINES_KEPT)
        self._kept += lines
        if now or self._clock() - self._drawn >= SECONDS:
            self._drawn = self._clock()
            moving = escape(self.moving) if isinstance(self.moving, str) else bar(self.moving, self.saved)
            self._output(page(self._kept, moving + charts(self._curves.panels()), self._dropped))


def page(kept: Iterable[Line], below: str, dropped: int = 0) -> str:
    """Return the HTML of the cell; `below` is HTML, `dropped` the number of lines before those that are kept."""
    more = f"<div><i>{dropped} earlier lines are not shown</i></div>" if dropped else ""
    lines = (
        f'<span style="{_WARNING}">{escape(line.text)}</span>' if line.tone == "warning" else escape(line.text)
        for line in kept
    )
    text = "\n".join(lines)
    return f'{more}<pre style="margin:0;white-space:pre-wrap">{text}</pre><div>{below}</div>'


def bar(event: Progress, saved: int | None = None) -> str:
    """Return the HTML of the progress bar, with metrics, speed and the last saved step."""
    total = event.total_steps
    value = f' max="{total}" value="{min(event.step, total)}"' if total else ""
    share = f" {100 * event.step / total:.0f}%" if total else ""
    parts = (metrics(event.metrics), speed_text(event), "" if saved is None else f"saved step {saved}")
    below = "  ".join(part for part in parts if part)
    drawn = f'<progress style="width:60%"{value}></progress>'
    return f"<b>{escape(position_text(event))}</b> {drawn}{share}<br><small>{escape(below)}</small>"
