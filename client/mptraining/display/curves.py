"""Small curves as SVG for a notebook's cell: no script, no style sheet, and readable on a light and a dark background.

Text and lines of the frame have the colour of the surrounding text (`currentColor`), and each curve has a colour with
a contrast of at least 3 to white and to #111, so that the SVG fits the theme of any front end.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from mptraining.display.text import number, readable

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# Blue, orange, green, pink, brown, violet: distinct for most colour-blind readers too (after Okabe and Ito).
COLOURS = ("#1a7fc1", "#d55e00", "#0a9069", "#c2659a", "#9a7800", "#8368d0")
DASHES = ("", "5 3", "1.5 2.5")
MOST_POINTS = 300
# Gauges that are drawn by default, if they change.
MAIN_GAUGES = (
    *("learning_rate", "gradient_norm", "loss_scale", "step_seconds", "examples_per_second", "input_bound_percent"),
    *("peak_memory_bytes", "memory_used_bytes", "device_memory_used_bytes", "device_utilization_percent"),
)
# A logarithmic axis if positive values span at least this factor.
LOG_FACTOR = 30

# Units of the view box.
_WIDTH, _HEIGHT = 260, 124
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 8, 6, 16


@dataclass(frozen=True, slots=True)
class Curve:
    """Points (x, y) sorted by x; `style` is an index from 0 of colour and dashes."""

    label: str
    points: tuple[tuple[float, float], ...]
    style: int = 0

    @property
    def colour(self) -> str:
        return COLOURS[self.style % len(COLOURS)]


@dataclass(frozen=True, slots=True)
class Panel:
    """One chart; all its curves are against the same quantity, by default the training step."""

    title: str
    curves: tuple[Curve, ...]
    against: str = "step"

    @property
    def logarithmic(self) -> bool:
        """Return whether the values are positive and span a factor of LOG_FACTOR or more."""
        values = [y for curve in self.curves for _, y in _finite(curve.points)]
        return bool(values) and min(values) > 0 and max(values) >= LOG_FACTOR * min(values)


def shown_by_default(metrics: Sequence[str], gauges: Mapping[str, Sequence[tuple[float, float]]]) -> list[str]:
    """Return the names to draw: every metric, the loss first, and those of MAIN_GAUGES that change."""
    ordered = sorted(metrics, key=lambda name: name.removeprefix("val_") != "loss")
    return [*ordered, *(name for name in MAIN_GAUGES if len({y for _, y in gauges.get(name, ())}) > 1)]


def panels(series: Mapping[str, Sequence[tuple[float, float]]]) -> list[Panel]:
    """Return a chart of each series, `x` and `val_x` in one chart."""
    charts = []
    for title in dict.fromkeys(name.removeprefix("val_") for name in series):
        pair = [name for name in (title, f"val_{title}") if series.get(name)]
        curves = tuple(Curve(name, tuple(series[name]), style) for style, name in enumerate(pair))
        if curves:
            charts.append(Panel(readable(title), curves))
    return charts


def kept_points(x: NDArray[np.float64], y: NDArray[np.float64], pixels: int) -> NDArray[np.int64]:
    """Return the indices of the lowest and the highest point in each pixel's range of x, and of the first and last.

    These are at most 2 * pixels points that look the same at that width: no minimum and no maximum is lost.
    """
    import numpy as np

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


def downsampled(points: Sequence[tuple[float, float]], most: int = MOST_POINTS) -> list[tuple[float, float]]:
    """Return at most `most` points, as `kept_points` chooses them."""
    if len(points) <= most:
        return list(points)
    import numpy as np

    x, y = np.array(points, np.float64).T
    return [points[index] for index in kept_points(x, y, most // 2).tolist()]


def _finite(points: Sequence[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    return tuple(point for point in points if math.isfinite(point[1]))


def svg(panel: Panel) -> str:
    """Return the chart as an `<svg>` with its range of values and its last step; empty without finite points."""
    curves = [(curve, points) for curve in panel.curves if (points := _finite(curve.points))]
    if not curves:
        return ""
    level = math.log if panel.logarithmic else float
    xs = [x for _, points in curves for x, _ in points]
    ys = [y for _, points in curves for _, y in points]
    left, right, low, high = min(xs), max(xs), min(ys), max(ys)
    edge, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM

    def placed(x: float, y: float) -> tuple[str, str]:
        across = 0.5 if right == left else (x - left) / (right - left)
        up = 0.5 if high == low else (level(y) - level(low)) / (level(high) - level(low))
        return f"{_LEFT + across * (edge - _LEFT):.1f}", f"{bottom - up * (bottom - _TOP):.1f}"

    title = escape(f"{panel.title}, {number(low)} to {number(high)}, until {panel.against} {right:g}")
    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}" role="img" aria-label="{title}" '
        'style="max-width:100%;font:10px sans-serif;overflow:visible">',
        f'<path d="M{_LEFT} {_TOP}V{bottom}H{edge}" fill="none" stroke="currentColor" opacity=".45"/>',
        _text(_LEFT - 4, _TOP + 7, "end", number(high)),
        _text(_LEFT - 4, bottom, "end", number(low) if high > low else ""),
        _text(_LEFT - 4, (_TOP + bottom) / 2 + 3, "end", "log" if panel.logarithmic else ""),
        _text(_LEFT, _HEIGHT - 3, "start", f"{panel.against} {left:g}"),
        _text(edge, _HEIGHT - 3, "end", f"{right:g}" if right > left else ""),
    ]
    for curve, points in curves:
        (last_x, last_y), colour = points[-1], curve.colour
        x, y = placed(last_x, last_y)
        line = " ".join(map(",".join, (placed(*point) for point in downsampled(points))))
        hover = escape(f"{curve.label}: {number(last_y)} at {panel.against} {last_x:g}")
        # The dot at the end is all that there is of a curve of one point.
        parts.append(
            f'<g><title>{hover}</title><polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1.6" '
            f'stroke-linejoin="round"{_dashed(curve)}/><circle cx="{x}" cy="{y}" r="2" fill="{colour}"/></g>'
        )
    return "".join([*parts, "</svg>"])


def legend(curves: Sequence[Curve]) -> str:
    """Return the HTML of the curves' labels, each with its colour and last value."""
    return " &nbsp; ".join(
        f'<span style="white-space:nowrap">{swatch(curve)} {escape(curve.label)} '
        f"<b>{number(curve.points[-1][1])}</b></span>"
        for curve in curves
        if curve.points
    )


def swatch(curve: Curve) -> str:
    """Return a short piece of the curve's line, as SVG."""
    line = f'<path d="M0 5H18" stroke="{curve.colour}" stroke-width="3"{_dashed(curve)}/>'
    return f'<svg width="18" height="10" aria-hidden="true">{line}</svg>'


def _dashed(curve: Curve) -> str:
    dash = DASHES[curve.style // len(COLOURS) % len(DASHES)]
    return f' stroke-dasharray="{dash}"' if dash else ""


def _text(x: float, y: float, anchor: str, text: str) -> str:
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" fill="currentColor">{escape(text)}</text>'
