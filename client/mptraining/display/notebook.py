"""Display of a run in a notebook cell: one HTML output that is updated in place, without ipywidgets."""

from __future__ import annotations

import importlib
import math
import sys
import time
from collections import deque
from collections.abc import Callable
from html import escape
from typing import Literal

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
from mptraining_api.events import Event, Finished, Progress

# The cell keeps only the last lines; `Job.logs()` prints all of them.
LINES_KEPT = 200
# Shortest time between two updates: front ends do not draw faster, and Jupyter limits the message rate of a kernel.
SECONDS = 0.25

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


class NotebookDisplay:
    """Display of permanent lines above one progress bar."""

    def __init__(self, show: Show = show_in_cell, clock: Callable[[], float] = time.monotonic) -> None:
        self._show = show
        self._clock = clock
        self._lines: deque[str] = deque(maxlen=LINES_KEPT)
        self._dropped = 0
        self._moving = ""
        self._update: Callable[[str], None] | None = None
        self._drawn = -math.inf

    def say(self, text: str) -> None:
        self._keep(text)
        self._draw(now=True)

    def event(self, worker: int, event: Event) -> None:
        if not is_shown(worker, event):
            return
        if is_indexing(event):
            self._moving = escape(" ".join(event_lines(event)))
        elif isinstance(event, Progress):
            self._moving = bar(event)
            if is_validation(event):
                self._keep(f"{position_text(event)}  {metrics(event.metrics)}")
        else:
            if isinstance(event, Finished):
                self._moving = ""
            for text in event_lines(event):
                self._keep(with_worker_prefix(worker, text))
        self._draw()

    def line(self, worker: int, stream: Literal["stdout", "stderr"], text: str) -> None:
        del stream
        self._keep(with_worker_prefix(worker, text))
        self._draw()

    def close(self) -> None:
        self._moving = ""
        self._draw(now=True)

    def _keep(self, text: str) -> None:
        self._dropped += len(self._lines) == LINES_KEPT
        self._lines.append(text)

    def _draw(self, *, now: bool = False) -> None:
        if not now and self._clock() - self._drawn < SECONDS:
            return
        self._drawn = self._clock()
        html = page(list(self._lines), self._moving, self._dropped)
        if self._update is None:
            self._update = self._show(html)
        else:
            self._update(html)


def page(kept: list[str], moving: str, left_out: int = 0) -> str:
    """Return the HTML of the cell; `moving` is HTML, the lines in `kept` are plain text."""
    more = f"<div><i>{left_out} earlier lines are not shown</i></div>" if left_out else ""
    text = escape("\n".join(kept))
    return f'{more}<pre style="margin:0;white-space:pre-wrap">{text}</pre><div>{moving}</div>'


def bar(event: Progress) -> str:
    """Return the HTML of the progress bar, with metrics and speed."""
    total = event.total_steps
    value = f' max="{total}" value="{min(event.step, total)}"' if total else ""
    share = f" {100 * event.step / total:.0f}%" if total else ""
    below = "  ".join(part for part in (metrics(event.metrics), speed_text(event)) if part)
    drawn = f'<progress style="width:60%"{value}></progress>'
    return f"<b>{escape(position_text(event))}</b> {drawn}{share}<br><small>{escape(below)}</small>"
