"""Curves as they are drawn: cut to a range, and downsampled to the minimum and maximum of each pixel."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import isfinite
from typing import Any, get_args

import numpy as np

from mptraining.display.curves import kept_points
from mptraining.runs.columns import GAUGE_NAMES, Axis, Column, Curves

# Points of a curve: two for each of these pixels.
PIXELS = 600
AXES: tuple[Axis, ...] = get_args(Axis)
_NUMBERS = ("gradientNorm", "lossScale", "skippedSteps", "learningRate", "recoveries")


def groups(names: Iterable[str]) -> dict[str, list[str]]:
    """Return the names of series by the group of charts that they belong to."""
    found: dict[str, list[str]] = {"training": [], "validation": [], "numbers": [], "system": []}
    for name in names:
        if name in _NUMBERS:
            found["numbers"].append(name)
        elif name in GAUGE_NAMES:
            found["system"].append(name)
        else:
            found["validation" if name.startswith("val_") else "training"].append(name)
    found["numbers"].sort(key=_NUMBERS.index)
    return found


_UNITS = {
    "BytesPerSecond": "bytesPerSecond",
    "xamplesPerSecond": "examples/s",
    "Seconds": "seconds",
    "Bytes": "bytes",
    "Percent": "percent",
    "Watts": "watts",
    "Celsius": "celsius",
}


def unit(name: str) -> str:
    """Return the unit of a gauge by the end of its name; `number` for metrics and plain numbers."""
    found = (text for end, text in _UNITS.items() if name in GAUGE_NAMES and name.endswith(end))
    return next(found, "number")


def drawn(
    curves: Curves,
    name: str,
    *,
    pixels: int = PIXELS,
    x: Axis = "step",
    begin: float | None = None,
    end: float | None = None,
) -> dict[str, list[float | None]]:
    """Return the points of a series to draw: `y` and its three axes. Which are kept does not depend on the axis `x`.

    `begin` and `end` are a range of x; the next point on each side is kept, to which lines lead.
    """
    axes = {axis: curves.series(name, axis) for axis in AXES}
    y = axes["step"][1]
    kept = np.flatnonzero(~np.isnan(y))
    if begin is not None or end is not None:
        at = axes[x][0][kept]
        inside = np.flatnonzero(
            (at >= (-np.inf if begin is None else begin)) & (at <= (np.inf if end is None else end))
        )
        kept = kept[max(0, int(inside[0]) - 1) : int(inside[-1]) + 2] if len(inside) else kept[:0]
    kept = kept[kept_points(axes["step"][0][kept], y[kept], pixels)]
    return {**{axis: numbers(at[kept]) for axis, (at, _) in axes.items()}, "y": numbers(y[kept])}


def chart(name: str, x: Axis, runs: Mapping[str, Curves], **options: Any) -> dict[str, Any]:
    """Return one chart of the API: `name` of all runs against x. Runs without this series are absent.

    `options` are those of `drawn`.
    """
    found = []
    for run, curves in runs.items():
        if name in curves.values:
            points = drawn(curves, name, x=x, **options)
            found.append({"run": run, "x": points[x], "y": points["y"]})
    return {"name": name, "x": x, "unit": unit(name), "series": found}


def whole_series(curves: Curves) -> dict[str, dict[str, Any]]:
    """Return all series of a run, as a chart without a range shows them."""
    return {name: {"unit": unit(name), **drawn(curves, name)} for name in curves.values}


def numbers(values: Column) -> list[float | None]:
    """Return JSON numbers, whole ones exact and others with seven significant digits; None for what is not finite."""
    return [_number(value) if isfinite(value) else None for value in values.tolist()]


def _number(value: float) -> float:
    return int(value) if value.is_integer() and abs(value) < 2**53 else float(f"{value:.7g}")
