"""Plots of recorded values: by matplotlib if it is installed, else as SVG in a notebook."""

from __future__ import annotations

import importlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mptraining.display.curves import Panel
from mptraining.display.html import charts
from mptraining.display.notebook import is_notebook
from mptraining_api.problems import InvalidProgram

_COLUMNS = 3


@dataclass(frozen=True, slots=True)
class Drawing:
    """Charts that a notebook shows as SVG."""

    panels: tuple[Panel, ...]

    def __repr__(self) -> str:
        return f"<Drawing of {', '.join(panel.title for panel in self.panels) or 'nothing'}>"

    def _repr_html_(self) -> str:
        return charts(self.panels)


def plot(panels: Sequence[Panel], *, notebook: bool | None = None) -> Any:
    """Draw the panels; return a list of matplotlib's axes, or a Drawing in a notebook without matplotlib.

    `notebook`: whether this is a notebook; None to find out. Raises InvalidProgram if nothing here can draw.
    """
    try:
        pyplot: Any = importlib.import_module("matplotlib.pyplot")
    except ImportError:
        if is_notebook() if notebook is None else notebook:
            return Drawing(tuple(panels))
        raise InvalidProgram(
            "", "matplotlib is not installed here", next_step="pip install matplotlib; a notebook needs none"
        ) from None
    return _draw(pyplot, panels)


def _draw(pyplot: Any, panels: Sequence[Panel]) -> list[Any]:
    columns = max(1, min(_COLUMNS, len(panels)))
    rows = max(1, math.ceil(len(panels) / columns))
    figure, grid = pyplot.subplots(rows, columns, figsize=(4.2 * columns, 3.0 * rows), squeeze=False)
    places = [place for row in grid for place in row]
    for place, panel in zip(places, panels, strict=False):
        for curve in panel.curves:
            marker = "o" if len(curve.points) == 1 else None
            xs, ys = [x for x, _ in curve.points], [y for _, y in curve.points]
            place.plot(xs, ys, label=curve.label, color=curve.colour, marker=marker)
        place.set_title(panel.title)
        place.set_xlabel("step")
        if panel.logarithmic:
            place.set_yscale("log")
        if len(panel.curves) > 1:
            place.legend()
    for place in places[len(panels) :]:
        place.remove()
    figure.tight_layout()
    return places[: len(panels)]


def load_pandas() -> Any:
    """Return the module pandas. Raises InvalidProgram if it is not installed."""
    try:
        return importlib.import_module("pandas")
    except ImportError:
        step = "pip install pandas; without it: history['loss'], history.series('loss')"
        raise InvalidProgram("", "pandas is not installed here", next_step=step) from None
