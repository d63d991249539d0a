"""Curves as they are drawn: cut to a range, and downsampled to the minimum and maximum of each pixel."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterable, Mapping
from math import isfinite
from typing import Any, get_args

import numpy as np

from mptraining.display.curves import kept_points
from mptraining.display.text import readable
from mptraining.runs.columns import GAUGE_NAMES, Axis, Column, Curves

# Points of a curve: two for each of these pixels.
PIXELS = 600
AXES: tuple[Axis, ...] = get_args(Axis)
_NUMBERS = ("gradientNorm", "lossScale", "skippedSteps", "learningRate", "recoveries")
# Series of one quantity share a chart where a single run is drawn.
_SYSTEM: Mapping[str, tuple[str, ...]] = {
    "GPU utilization": ("deviceUtilizationPercent",),
    "GPU or TPU memory": ("deviceMemoryUsedBytes", "deviceMemoryPeakBytes", "deviceMemoryTotalBytes"),
    "GPU power": ("devicePowerWatts",),
    "GPU temperature": ("deviceTemperatureCelsius",),
    "CPU": ("cpuPercent",),
    "RAM": ("memoryUsedBytes", "memoryLimitBytes"),
    "Peak memory of the process": ("peakMemoryBytes",),
    "Waiting for input": ("inputBoundPercent",),
    "Disk": ("diskReadBytesPerSecond", "diskWriteBytesPerSecond"),
    "Network": ("networkReceiveBytesPerSecond", "networkSendBytesPerSecond"),
    "Input from buckets": ("inputBytesPerSecond",),
    "Examples per second": ("examplesPerSecond",),
    "Time per step": ("stepSeconds",),
}
_UNIT = re.compile(r" (bytes per second|bytes|percent|seconds|watts|celsius)$")


def sections(names: Collection[str], *, single: bool = False, together: bool = True) -> list[dict[str, Any]]:
    """Return the charts of these series by section: `{title, charts: [{title, names}]}`.

    With `together` a metric and its validation share a chart; with `single`, for one run, gauges of a kind do.
    """
    metrics = [name for name in names if name not in GAUGE_NAMES and name not in _NUMBERS]
    bases = sorted(dict.fromkeys(name.removeprefix("val_") for name in metrics), key=lambda name: name != "loss")
    pairs = [[name for name in (base, f"val_{base}") if name in metrics] for base in bases]
    system = {title: [name for name in series if name in names] for title, series in _SYSTEM.items()}
    listed = {*itertools.chain(*_SYSTEM.values()), *_NUMBERS}
    shown = {
        "Training and validation" if single else "Metrics": pairs if together else _apart(map(reversed, pairs)),
        "Numbers": [[name] for name in _NUMBERS if name in names],
        "System": [
            *(system.values() if single else _apart(system.values())),
            *([name] for name in names if name in GAUGE_NAMES - listed),
        ],
    }
    titles = {series[0]: title for title, series in system.items() if series and (single or len(series) == 1)}
    charts = {
        section: [
            {"title": titles.get(series[0]) or label(series[0]), "names": series} for series in all_series if series
        ]
        for section, all_series in shown.items()
    }
    return [{"title": section, "charts": drawn} for section, drawn in charts.items() if drawn]


def _apart(charts: Iterable[Iterable[str]]) -> list[list[str]]:
    return [[name] for series in charts for name in series]


def label(name: str) -> str:
    """Return the title of a series, of a gauge without the unit, which `unit` returns: cpuPercent is CPU."""
    return _UNIT.sub("", readable(name)) if name in GAUGE_NAMES else readable(name)


_UNITS = {
    "BytesPerSecond": "bytes/s",
    "xamplesPerSecond": "examples/s",
    "Seconds": "seconds",
    "Bytes": "bytes",
    "Percent": "percent",
    "Watts": "watts",
    "Celsius": "celsius",
}


def unit(name: str) -> str:
    """Return the unit of a gauge by the end of its name; `number` for metrics and plain numbers."""
    matching = (text for end, text in _UNITS.items() if name in GAUGE_NAMES and name.endswith(end))
    return next(matching, "number")


def drawn(
    curves: Curves,
    name: str,
    *,
    pixels: int = PIXELS,
    x: Axis = "step",
    shown: Collection[Axis] = AXES,
    begin: float | None = None,
    end: float | None = None,
) -> dict[str, Any]:
    """Return the points of a series to draw: `y`, the axes that are `shown`, and `index`.

    `index` numbers the points among all of the series, for smoothing. Which are kept does not depend on the axis
    `x`. `begin` and `end` are a range of x; the next point on each side is kept, to which lines lead.
    """
    axes = {axis: curves.series(name, axis) for axis in AXES}
    y = axes["step"][1]
    kept = index = np.flatnonzero(~np.isnan(y))
    if name.startswith("val_") and len(kept):
        # A validation is reported again with each step until the next one.
        kept = index = kept[np.append(True, np.diff(y[kept]) != 0)]
    if begin is not None or end is not None:
        at = axes[x][0][kept]
        inside = np.flatnonzero(
            (at >= (-np.inf if begin is None else begin)) & (at <= (np.inf if end is None else end))
        )
        kept = kept[max(0, int(inside[0]) - 1) : int(inside[-1]) + 2] if len(inside) else kept[:0]
    kept = kept[kept_points(axes["step"][0][kept], y[kept], pixels)]
    points: dict[str, Any] = {axis: numbers(axes[axis][0][kept]) for axis in shown}
    return {**points, "y": numbers(y[kept]), "index": np.searchsorted(index, kept).tolist()}


def chart(name: str, x: Axis, runs: Mapping[str, Curves], **options: Any) -> dict[str, Any]:
    """Return one chart of the API: `name` of all runs against x. Runs without this series are absent.

    `options` are those of `drawn`.
    """
    drawn_runs = []
    for run, curves in runs.items():
        if name in curves.values:
            points = drawn(curves, name, x=x, shown=(x,), **options)
            drawn_runs.append({"run": run, "x": points[x], "y": points["y"], "index": points["index"]})
    return {"name": name, "label": label(name), "x": x, "unit": unit(name), "series": drawn_runs}


def whole_series(curves: Curves) -> dict[str, dict[str, Any]]:
    """Return all series of a run, as a chart without a range shows them."""
    return {name: {"label": label(name), "unit": unit(name), **drawn(curves, name)} for name in curves.values}


def numbers(values: Column) -> list[float | None]:
    """Return JSON numbers, whole ones exact and others with seven significant digits; None for what is not finite."""
    return [_number(value) if isfinite(value) else None for value in values.tolist()]


def _number(value: float) -> float:
    return int(value) if value.is_integer() and abs(value) < 2**53 else float(f"{value:.7g}")
