"""Self-contained HTML page of a comparison: table, notes and metric curves as inline SVG."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from mptraining.comparison import Comparison, metric_names, metric_title
from mptraining.display.text import number
from mptraining.runs import Point, Run

COLOURS = 8
MOST_POINTS = 240

# Units of the SVG view box, which is narrow so that its text is readable on a phone with 340 pixels.
WIDTH, HEIGHT = 480, 300
LEFT, RIGHT, TOP, BOTTOM = 54, 24, 10, 42


@dataclass(frozen=True, slots=True)
class Curve:
    """Points (x, y) sorted by x; `colour` is an index from 0."""

    label: str
    points: tuple[tuple[float, float], ...]
    colour: int
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis from `low` to `high` with round numbers at `ticks`."""

    low: float
    high: float
    ticks: tuple[float, ...]
    logarithmic: bool = False

    def share(self, value: float) -> float:
        """Return the position of `value` between the ends, 0 to 1."""
        if self.logarithmic:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


def linear_axis(low: float, high: float, most_ticks: int = 6) -> Axis:
    """Return a linear axis that covers `low` to `high` and ends at round numbers."""
    if high <= low:
        margin = abs(low) * 0.1 or 1.0
        low, high = low - margin, high + margin
    raw = (high - low) / (most_ticks - 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return Axis(first * step, last * step, tuple(tick * step for tick in range(first, last + 1)))


def logarithmic_axis(low: float, high: float) -> Axis:
    """Return a logarithmic axis with ticks at powers of ten, also at 2 and 5 if these are few; `low` is positive."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    finely = [factor * 10.0**power for power in range(first, last + 1) for factor in (1, 2, 5)]
    start = max(tick for tick in finely if tick <= low * 1.001)
    end = min(tick for tick in finely if tick >= high * 0.999)
    stride = max(1, (last - first) // 6)
    decades = [10.0**power for power in range(first, last + 1, stride)]
    ticks = finely if last - first <= 3 else decades
    return Axis(start, end, tuple(tick for tick in ticks if start <= tick <= end), logarithmic=True)


def value_axis(values: Sequence[float]) -> Axis:
    """Return a logarithmic axis if the values are positive and span a factor of 30 or more, else a linear one."""
    low, high = min(values), max(values)
    return logarithmic_axis(low, high) if low > 0 and high / low >= 30 else linear_axis(low, high)


def tick_text(value: float, axis: Axis) -> str:
    """Format a tick with few digits: 0.25, 1500, 20k, 1e-05."""
    if value == 0 or abs(value) < 1e-12 * abs(axis.high):
        return "0"
    if abs(value) >= 10_000:
        return f"{value / 1000:g}k" if abs(value) < 1e7 else f"{value:.3g}"
    return f"{value:.4g}"


def thinned(points: Sequence[tuple[float, float]], most: int = MOST_POINTS) -> list[tuple[float, float]]:
    """Return at most `most` evenly spaced points, including the first and the last."""
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
    """Return an `<svg>` of the curves; empty if they have no points. `point_text` returns a point's tooltip."""
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
    # The points are drawn after all lines, so that no line covers the tooltip area of a point.
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


_LIGHT = ("#0072b2", "#d55e00", "#00805c", "#b8478a", "#8a6d00", "#2b8fc9", "#7a4fbf", "#5b5b5b")
_DARK = ("#56b4e9", "#ff9248", "#2fd0a0", "#f09cc9", "#e3c04b", "#9ad1f5", "#b79cf0", "#b8b8b8")

_STYLE = """
:root{color-scheme:light dark;--ink:#1c2024;--dim:#5d6670;--paper:#fff;
--rule:#dfe3e8;--best:#00703c;--bestpaper:#e7f6ee}
@media(prefers-color-scheme:dark){:root{--ink:#e8eaed;--dim:#9aa4af;--paper:#15181c;--rule:#30363d;--best:#5fe0a4;
--bestpaper:#12301f}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:1240px;padding:24px 16px 48px;background:var(--paper);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Liberation Sans",sans-serif}
h1{font-size:1.5rem;margin:0 0 16px}h2{font-size:1.1rem;margin:32px 0 8px}
.scroll{overflow-x:auto;border:1px solid var(--rule);border-radius:8px}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{padding:6px 14px;text-align:right;white-space:nowrap;border-top:1px solid var(--rule)}
thead th{border-top:0}tbody th{font-weight:400;color:var(--dim)}
th:first-child{text-align:left;position:sticky;left:0;background:var(--paper)}
td.best{color:var(--best);background:var(--bestpaper);font-weight:650}
.swatch{display:inline-block;width:.8em;height:.8em;border-radius:2px;margin-right:.4em;background:var(--c)}
ul.notes{margin:12px 0 0;padding-left:1.2em;color:var(--dim)}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,440px),1fr));gap:20px 28px}
figure{margin:0;min-width:0}figcaption{font-weight:600;margin-bottom:2px}
.legend{display:flex;flex-wrap:wrap;gap:2px 16px;margin:0 0 6px;color:var(--dim);font-size:.85rem}
.legend i{display:inline-block;width:22px;border-top:2.5px solid var(--c);
margin-right:6px;vertical-align:middle}
.legend i.dashed{border-top-style:dashed}.any{--c:var(--dim)}
svg{display:block;width:100%;height:auto}
svg text{fill:var(--dim);font-size:12px}.grid{stroke:var(--rule);stroke-width:1}
.line{fill:none;stroke:var(--c);stroke-width:1.8;stroke-linejoin:round}
.line.dashed{stroke-dasharray:6 4}
.reach{fill:transparent}.mark{fill:var(--c);opacity:0}
.dot .mark,.point:hover .mark{opacity:1}
@media(max-width:600px){th,td{padding:6px 9px}svg text{font-size:14px}
th{white-space:normal}tbody th{min-width:7.5em}}
"""

_NOTHING_ELSE = "default-src 'none'; style-src 'unsafe-inline'"


def page(comparison: Comparison, *, title: str = "Comparison of runs") -> str:
    """Return the complete HTML document, which loads no resource and runs no script."""
    head = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{_NOTHING_ELSE}">'
        f"<title>{escape(title)}</title><style>{_STYLE}{_colours()}</style></head>"
    )
    body = f"<h1>{escape(title)}</h1>{_table(comparison)}{_notes(comparison.notes)}{_charts(comparison)}"
    return f"{head}<body>{body}</body></html>\n"


def _colours() -> str:
    def rules(colours: Sequence[str]) -> str:
        return "".join(f".c{at}{{--c:{colour}}}" for at, colour in enumerate(colours))

    return f"{rules(_LIGHT)}@media(prefers-color-scheme:dark){{{rules(_DARK)}}}"


def _table(comparison: Comparison) -> str:
    heads = "".join(
        f'<th class="c{at % COLOURS}" title="{escape(run.folder)}"><span class="swatch"></span>{escape(label)}</th>'
        for at, (run, label) in enumerate(zip(comparison.runs, comparison.labels, strict=True))
    )
    rows = []
    for row in comparison.rows:
        cells = "".join(
            f'<td class="best">{escape(text)}</td>' if at in row.best else f"<td>{escape(text)}</td>"
            for at, text in enumerate(row.texts)
        )
        rows.append(f"<tr><th>{escape(row.title)}</th>{cells}</tr>")
    return (
        f'<div class="scroll"><table><thead><tr><th></th>{heads}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _notes(notes: Sequence[str]) -> str:
    items = "".join(f"<li>{escape(each)}</li>" for each in notes)
    return f'<ul class="notes">{items}</ul>' if items else ""


def _charts(comparison: Comparison) -> str:
    """Return the charts of each metric against step and against time; training and validation share a chart."""
    longest = max((point.seconds for run in comparison.runs for point in run.history.points), default=0.0)
    unit, seconds = _unit(longest)
    axes: list[tuple[str, Callable[[Point], float]]] = [
        ("step", lambda point: float(point.step)),
        (unit, lambda point: point.seconds / seconds),
    ]
    figures = [_figure(comparison, metric, x_label, x) for metric in _charted(comparison.runs) for x_label, x in axes]
    drawn = "".join(figures)
    return f'<h2>Curves</h2><div class="charts">{drawn}</div>' if drawn else ""


def _charted(runs: Sequence[Run]) -> list[str]:
    """Return the metrics to chart, without `val_`, the loss first."""
    found = list(dict.fromkeys(name.removeprefix("val_") for name in metric_names(runs)))
    return sorted(found, key=lambda name: name != "loss")


def _figure(comparison: Comparison, metric: str, x_label: str, x: Callable[[Point], float]) -> str:
    curves = []
    for at, (run, label) in enumerate(zip(comparison.runs, comparison.labels, strict=True)):
        for name, dashed in ((metric, False), (f"val_{metric}", True)):
            points = tuple((x(point), point.metrics[name]) for point in run.history.points if name in point.metrics)
            if points:
                curves.append(Curve(label, points, at, dashed))
    title = f"{metric_title(metric)} against {x_label}"

    def point_text(curve: Curve, x_value: float, y_value: float) -> str:
        at = f"step {x_value:.0f}" if x_label == "step" else f"{number(x_value)} {x_label}"
        name = metric_title(f"val_{metric}" if curve.dashed else metric)
        return f"{curve.label}: {name} {number(y_value)} at {at}"

    drawn = chart(curves, title=title, x_label=x_label, y_label=metric_title(metric), point_text=point_text)
    if not drawn:
        return ""
    return f"<figure><figcaption>{escape(title)}</figcaption>{_legend(curves)}{drawn}</figure>"


def _legend(curves: Sequence[Curve]) -> str:
    """Return the legend: one colour per run, and one entry for the dashed validation curves."""
    names = {curve.colour: curve.label for curve in curves}
    keys = [f'<span class="c{at % COLOURS}"><i></i>{escape(label)}</span>' for at, label in names.items()]
    if any(curve.dashed for curve in curves):
        keys.append('<span class="any"><i class="dashed"></i>validation</span>')
    return f'<div class="legend">{"".join(keys)}</div>'


def _unit(longest: float) -> tuple[str, float]:
    """Return the unit of the time axis, and its length in seconds."""
    if longest < 600:
        return "seconds", 1.0
    return ("minutes", 60.0) if longest < 7200 else ("hours", 3600.0)
