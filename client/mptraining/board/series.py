"""Curves as they are drawn: smoothed, cut to a range, and downsampled to the minimum and maximum of each pixel."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from mptraining.board.curves import Curves
from mptraining.board.event_batches import GAUGE_NAMES, Column

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


def smoothed(y: Column, weight: float) -> Column:
    """Return the exponential moving average with that weight of the past, without the bias of its beginning."""
    if not 0 < weight < 1 or len(y) < 2:
        return y
    finite = np.where(np.isfinite(y), y, 0.0)
    averages, debias = np.empty_like(finite), np.empty_like(finite)
    average, weights = 0.0, 0.0
    for at, value in enumerate(finite.tolist()):
        average = weight * average + (1 - weight) * value
        weights = weight * weights + (1 - weight)
        averages[at], debias[at] = average, weights
    result: Column = averages / debias
    return result


def kept_points(x: Column, y: Column, pixels: int) -> Any:
    """Return the indices of the lowest and the highest point in each pixel's range of x, and of the first and last."""
    count = len(x)
    if count <= 2 * pixels:
        return np.arange(count)
    pixels = max(1, pixels - 1)
    low, high = float(x.min()), float(x.max())
    pixel = np.minimum(((x - low) * (pixels / ((high - low) or 1.0))).astype(np.int64), pixels - 1)
    # Sorted by pixel and within each by y: the ends of each pixel's part are its minimum and maximum.
    order = np.lexsort((y, pixel))
    starts = np.flatnonzero(np.diff(pixel[order], prepend=-1))
    ends = np.append(starts[1:], count) - 1
    return np.unique(np.concatenate([[0, count - 1], order[starts], order[ends]]))


def downsample(x: Column, y: Column, pixels: int) -> tuple[Column, Column]:
    """Return at most 2 * pixels points that look the same at that width: no minimum and no maximum is lost."""
    kept = kept_points(x, y, pixels)
    return x[kept], y[kept]


def chart(
    name: str,
    x: str,
    runs: Mapping[str, Curves],
    *,
    pixels: int,
    begin: float | None = None,
    end: float | None = None,
    smooth: float = 0.0,
) -> dict[str, Any]:
    """Return one chart of the API: `name` of all runs against x. Runs without this series are absent."""
    found = []
    for id, curves in runs.items():
        at, y = curves.series(name, x)
        if not len(at):
            continue
        y = smoothed(y, smooth)
        if begin is not None or end is not None:
            at, y = _cut(at, y, begin, end)
        at, y = downsample(at, y, pixels)
        found.append({"run": id, "x": numbers(at), "y": numbers(y)})
    return {"name": name, "x": x, "unit": unit(name), "series": found}


def whole_series(curves: Curves, pixels: int) -> dict[str, dict[str, Any]]:
    """Return all series of a run, downsampled by step, with all three axes."""
    found: dict[str, dict[str, Any]] = {}
    for name in curves.values:
        step, y = curves.series(name, "step")
        kept = kept_points(step, y, pixels)
        axes = {axis: numbers(curves.series(name, axis)[0][kept]) for axis in ("step", "epoch", "seconds")}
        found[name] = {"unit": unit(name), **axes, "y": numbers(y[kept])}
    return found


def _cut(x: Column, y: Column, begin: float | None, end: float | None) -> tuple[Column, Column]:
    """Keep the points in the range and the next one on each side, to which lines lead."""
    inside = np.flatnonzero((x >= (-np.inf if begin is None else begin)) & (x <= (np.inf if end is None else end)))
    if not len(inside):
        return x[:0], y[:0]
    which = slice(max(0, int(inside[0]) - 1), int(inside[-1]) + 2)
    return x[which], y[which]


def numbers(values: Column) -> list[float | None]:
    """Return JSON numbers with seven significant digits; None for what is not finite."""
    finite = np.isfinite(values)
    if not finite.all():
        rounded = iter(numbers(values[finite]))
        return [next(rounded) if known else None for known in finite.tolist()]
    if (values == np.rint(values)).all() and (np.abs(values) < 2**53).all():
        whole: list[float | None] = values.astype(np.int64).tolist()
        return whole
    with np.errstate(divide="ignore"):
        digits = 6 - np.floor(np.log10(np.abs(values)))
    # Beyond 300 the scale itself would not be finite; 0 has none.
    scale = 10.0 ** np.clip(np.where(np.isfinite(digits), digits, 0), -300, 300)
    short: list[float | None] = (np.rint(values * scale) / scale).tolist()
    return short
