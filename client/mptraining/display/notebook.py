"""Display of a run in a notebook cell: one HTML output that is updated in place, without ipywidgets.

Lines, a progress bar, and curves of the loss and of the first validation metric.
"""

from __future__ import annotations

import importlib
import math
import sys
import time
from collections import deque
from collections.abc import Callable
from html import escape
from typing import Literal

from mptraining.display.curves import MOST_POINTS, Curve, Panel, downsampled
from mptraining.display.html import charts
from mptraining.display.text import (
    ends_validation,
    event_lines,
    is_indexing,
    is_shown,
    metrics,
    position_text,
    speed_text,
    with_worker_prefix,
)
from mptraining_api.events import Event, Finished, Notice, Progress, Recovered, Started

# The cell keeps only the last lines; `Job.logs()` prints all of them.
LINES_KEPT = 200
# Shortest time between two updates: front ends do not draw faster, and Jupyter limits the message rate of a kernel.
SECONDS = 0.25

# Charts in the cell, and the colour of warnings: dark enough on white and light enough on black.
MOST_CHARTS = 2
_WARNING = "color:#b3670b;font-weight:600"

# Displays HTML in the cell and returns a function that replaces it.
Show = Callable[[str], Callable[[str], None]]


def is_notebook() -> bool:
    """Return whether this process runs in a notebook kernel."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return shell is not None and (hasattr(shell, "kernel") or "google.colab" in sys.modules)


def show_in_cell(html: str) -> Callable[[str], None]:
    """Display HTML in the running cell; return a function that replaces it."""
    ipython = importlib.import_module("IPython.display")
    handle = ipython.display(ipython.HTML(html), display_id=True)
    return lambda newer: handle.update(ipython.HTML(newer))


class LiveCurves:
    """Values of the metrics so far: memory and the size of the cell are bounded however long the run is."""

    def __init__(self) -> None:
        self._points: dict[str, list[tuple[float, float]]] = {}

    def add(self, event: Progress) -> None:
        for name, value in event.metrics.items():
            points = self._points.setdefault(name, [])
            points.append((event.step, value))
            if len(points) > 2 * MOST_POINTS:
                points[:] = downsampled(points)

    def back_to(self, step: int) -> None:
        """Drop the points after `step`, which are trained again."""
        for points in self._points.values():
            points[:] = [each for each in points if each[0] <= step]

    def panels(self) -> list[Panel]:
        """Return the chart of the loss, and that of the next metric, each with its validation."""
        titles = dict.fromkeys(name.removeprefix("val_") for name in self._points)
        ordered = sorted(titles, key=lambda title: title != "loss")[:MOST_CHARTS]
        found = []
        for title in ordered:
            pair = enumerate((title, f"val_{title}"))
            curves = tuple(Curve(name, tuple(points), at) for at, name in pair if (points := self._points.get(name)))
            # One point is no curve yet.
            if any(len(curve.points) > 1 for curve in curves):
                found.append(Panel(title, curves))
        return found


class NotebookDisplay:
    """Display of permanent lines above one progress bar and small curves, which stay after the end."""

    def __init__(self, show: Show = show_in_cell, clock: Callable[[], float] = time.monotonic) -> None:
        self._show = show
        self._clock = clock
        # Each line with whether it is a warning.
        self._lines: deque[tuple[str, bool]] = deque(maxlen=LINES_KEPT)
        self._dropped = 0
        self._moving = ""
        self._last: Progress | None = None
        self._curves = LiveCurves()
        self._update: Callable[[str], None] | None = None
        self._drawn = -math.inf

    def say(self, text: str) -> None:
        self._keep(text, warning=text.startswith("warning: "))
        self._draw(now=True)

    def event(self, worker: int, event: Event) -> None:
        if not is_shown(worker, event):
            return
        self._follow_curves(event)
        if is_indexing(event):
            self._moving = escape(" ".join(event_lines(event)))
        elif isinstance(event, Progress):
            self._moving = bar(event)
            if ends_validation(event, self._last):
                self._keep(f"{position_text(event)}  {metrics(event.metrics)}")
            self._last = event
        else:
            if isinstance(event, Finished):
                self._moving = ""
            warning = isinstance(event, Recovered) or (isinstance(event, Notice) and event.level == "Warning")
            for text in event_lines(event):
                self._keep(with_worker_prefix(worker, text), warning=warning)
        self._draw()

    def line(self, worker: int, stream: Literal["stdout", "stderr"], text: str) -> None:
        del stream
        self._keep(with_worker_prefix(worker, text))
        self._draw()

    def close(self) -> None:
        self._moving = ""
        self._draw(now=True)

    def _follow_curves(self, event: Event) -> None:
        match event:
            case Progress():
                self._curves.add(event)
            case Started():
                self._curves.back_to(event.first_step)
            case Recovered():
                self._curves.back_to(event.to_step)

    def _keep(self, text: str, *, warning: bool = False) -> None:
        self._dropped += len(self._lines) == LINES_KEPT
        self._lines.append((text, warning))

    def _draw(self, *, now: bool = False) -> None:
        if not now and self._clock() - self._drawn < SECONDS:
            return
        self._drawn = self._clock()
        html = page(list(self._lines), self._moving + charts(self._curves.panels()), self._dropped)
        if self._update is None:
            self._update = self._show(html)
        else:
            self._update(html)


def page(kept: list[tuple[str, bool]], moving: str, left_out: int = 0) -> str:
    """Return the HTML of the cell; `moving` is HTML, `kept` are lines of plain text and whether each is a warning."""
    more = f"<div><i>{left_out} earlier lines are not shown</i></div>" if left_out else ""
    lines = (f'<span style="{_WARNING}">{escape(text)}</span>' if warning else escape(text) for text, warning in kept)
    text = "\n".join(lines)
    return f'{more}<pre style="margin:0;white-space:pre-wrap">{text}</pre><div>{moving}</div>'


def bar(event: Progress) -> str:
    """Return the HTML of the progress bar, with metrics and speed."""
    total = event.total_steps
    value = f' max="{total}" value="{min(event.step, total)}"' if total else ""
    share = f" {100 * event.step / total:.0f}%" if total else ""
    below = "  ".join(part for part in (metrics(event.metrics), speed_text(event)) if part)
    drawn = f'<progress style="width:60%"{value}></progress>'
    return f"<b>{escape(position_text(event))}</b> {drawn}{share}<br><small>{escape(below)}</small>"
