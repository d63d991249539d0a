"""Curves as inline SVG: lines, axes with round numbers, a title on every point; colours are the page's.

Line `n` has the class `c<n>` (modulo COLOURS), so that one style sheet serves light and dark.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

COLOURS = 8
MOST_POINTS = 240

# Units of the view box. Narrow, so that the letters are still readable when a phone shows it at 340 pixels.
WIDTH, HEIGHT = 480, 300
LEFT, RIGHT, TOP, BOTTOM = 54, 24, 10, 42


@dataclass(frozen=True, slots=True)
class Curve:
    """Points (x, y) in the order of x; `colour` from 0."""

    label: str
    points: tuple[tuple[float, float], ...]
    colour: int
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Axis:
    """From `low` to `high` with round numbers at `ticks`."""

    low: float
    high: float
    ticks: tuple[float, ...]
    logarithmic: bool = False

    def share(self, value: float) -> float:
        """Where `value` lies between the ends: 0 to 1."""
        if self.logarithmic:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


def linear_axis(low: float, high: float, most_ticks: int = 6) -> Axis:
    """An axis that holds `low` to `high`, its ends round numbers too."""
    if high <= low:
        margin = abs(low) * 0.1 or 1.0
        low, high = low - margin, high + margin
    raw = (high - low) / (most_ticks - 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return Axis(first * step, last * step, tuple(tick * step for tick in range(first, last + 1)))


def logarithmic_axis(low: float, high: float) -> Axis:
    """An axis over powers of ten, with 2 and 5 between them where these are few; `low` above 0."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    finely = [factor * 10.0**power for power in range(first, last + 1) for factor in (1, 2, 5)]
    start = max(tick for tick in finely if tick <= low * 1.001)
    end = min(tick for tick in finely if tick >= high * 0.999)
    stride = max(1, (last - first) // 6)
    decades = [10.0**power for power in range(first, last + 1, stride)]
    ticks = finely if last - first <= 3 else decades
    return Axis(start, end, tuple(tick for tick in ticks if start <= tick <= end), logarithmic=True)


def value_axis(values: Sequence[float]) -> Axis:
    """Logarithmic where the values span far more than one power of ten, else linear."""
    low, high = min(values), max(values)
    return logarithmic_axis(low, high) if low > 0 and high / low >= 30 else linear_axis(low, high)


def tick_text(value: float, axis: Axis) -> str:
    """As short as it can be and still differ from its neighbours: 0.25, 1500, 20k, 1e-05."""
    if value == 0 or abs(value) < 1e-12 * abs(axis.high):
        return "0"
    if abs(value) >= 10_000:
        return f"{value / 1000:g}k" if abs(value) < 1e7 else f"{value:.3g}"
    return f"{value:.4g}"


def thinned(points: Sequence[tuple[float, float]], most: int = MOST_POINTS) -> list[tuple[float, float]]:
    """At most `most` of the points, evenly, the first and the last among them."""
    if len(points) <= most:
        return list(points)
    return [points[round(at * (len(points) - 1) / (most - 1))] for at in range(most)]


def chart(
    curves: Sequence[Curve],
    *,
    title: str,
    x_label: str,
    y_label: str,
    point_text: Callable[[Curve, float, float], str],
) -> str:
    """An `<svg>` of the curves; empty when they have no points. `point_text` is shown when hovering over
    one.
    """
    everything = [point for curve in curves for point in curve.points]
    if not everything:
        return ""
    x_axis = linear_axis(min(0.0, *(x for x, _ in everything)), max(x for x, _ in everything))
    y_axis = value_axis([y for _, y in everything])

    def x_at(value: float) -> float:
        return LEFT + x_axis.share(value) * (WIDTH - LEFT - RIGHT)

    def y_at(value: float) -> float:
        return HEIGHT - BOTTOM - y_axis.share(value) * (HEIGHT - TOP - BOTTOM)

    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">']
    for tick in y_axis.ticks:
        parts.append(
            f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y_at(tick):.1f}" y2="{y_at(tick):.1f}"/>'
        )
        text = tick_text(tick, y_axis)
        parts.append(f'<text class="tick" x="{LEFT - 6}" y="{y_at(tick) + 4:.1f}" text-anchor="end">{text}</text>')
    for tick in x_axis.ticks:
        at = f"{x_at(tick):.1f}"
        parts.append(f'<line class="grid" x1="{at}" x2="{at}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>')
        below = HEIGHT - BOTTOM + 16
        parts.append(f'<text class="tick" x="{at}" y="{below}" text-anchor="middle">{tick_text(tick, x_axis)}</text>')
    middle_x, middle_y = (LEFT + WIDTH - RIGHT) / 2, (TOP + HEIGHT - BOTTOM) / 2
    parts.append(f'<text class="axis" x="{middle_x}" y="{HEIGHT - 6}" text-anchor="middle">{escape(x_label)}</text>')
    parts.append(
        f'<text class="axis" x="14" y="{middle_y}" text-anchor="middle" '
        f'transform="rotate(-90 14 {middle_y})">{escape(y_label)}</text>'
    )
    # Points over all lines: a line must not hide another's title.
    marks = []
    for curve in curves:
        colour = f"c{curve.colour % COLOURS}"
        placed = [(x_at(x), y_at(y), x, y) for x, y in thinned(curve.points)]
        path = " ".join(f"{left:.1f},{top:.1f}" for left, top, _, _ in placed)
        dashed = " dashed" if curve.dashed else ""
        parts.append(f'<polyline class="line {colour}{dashed}" points="{path}"/>')
        seen = " dot" if len(placed) <= 40 else ""
        for left, top, x, y in placed:
            hover = escape(point_text(curve, x, y))
            marks.append(
                f'<g class="point{seen} {colour}">'
                f'<circle class="reach" cx="{left:.1f}" cy="{top:.1f}" r="7"/>'
                f'<circle class="mark" cx="{left:.1f}" cy="{top:.1f}" r="2.5"/><title>{hover}</title></g>'
            )
    return "".join([*parts, *marks, "</svg>"])
