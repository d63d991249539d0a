"""Plots of recorded values: by matplotlib if it is installed, else as SVG in a notebook."""

from __future__ import annotations

import importlib
import math
from collections.abc import Sequence
from typing import Any

from mptraining.display.curves import Panel
from mptraining.display.html import charts
from mptraining.display.notebook import is_notebook
from mptraining_api.problems import InvalidProgram

_COLUMNS = 3


class Drawing(tuple[Panel, ...]):
    """Charts that a notebook shows as SVG."""

    def __repr__(self) -> str:
        return f"<Drawing of {', '.join(panel.title for panel in self) or 'nothing'}>"

    def _repr_html_(self) -> str:
        return charts(self)


def plot(panels: Sequence[Panel]) -> Any:
    """Draw the panels; return a list of matplotlib's axes, or a Drawing in a notebook without matplotlib.

    Raises InvalidProgram if nothing here can draw.
    """
    try:
        pyplot: Any = importlib.import_module("matplotlib.pyplot")
    except ImportError:
        if is_notebook():
            return Drawing(panels)
        step = "pip install matplotlib; a notebook needs none"
        raise InvalidProgram("", "matplotlib is not installed here", next_step=step) from None
    return _draw(pyplot, panels)


def _draw(pyplot: Any, panels: Sequence[Panel]) -> list[Any]:
    columns = max(1, min(_COLUMNS, len(panels)))
    rows = max(1, math.ceil(len(panels) / columns))
    figure, grid = pyplot.subplots(rows, columns, figsize=(4.2 * columns, 3.0 * rows), squeeze=False)
    axes = [ax for row in grid for ax in row]
    for ax, panel in zip(axes, panels, strict=False):
        for curve in panel.curves:
            marker = "o" if len(curve.points) == 1 else None
            ax.plot(*zip(*curve.points, strict=True), label=curve.label, color=curve.colour, marker=marker)
        ax.set_title(panel.title)
        ax.set_xlabel(panel.against)
        if panel.logarithmic:
            ax.set_yscale("log")
        if len(panel.curves) > 1:
            ax.legend()
    for ax in axes[len(panels) :]:
        ax.remove()
    figure.tight_layout()
    return axes[: len(panels)]


def load_pandas() -> Any:
    """Return the module pandas. Raises InvalidProgram if it is not installed."""
    try:
        return importlib.import_module("pandas")
    except ImportError:
        step = "pip install pandas; without it: history['loss'], history.series('loss')"
        raise InvalidProgram("", "pandas is not installed here", next_step=step) from None
