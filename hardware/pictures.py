"""The page's pictures as SVG: memory against batch size, and speed by policy. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

_WIDTH, _HEIGHT = 720, 360
_LEFT, _RIGHT, _TOP, _BOTTOM = 74, 16, 40, 46
# Okabe and Ito's colours, which people with colour blindness tell apart.
_COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7")
_STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#333}.t{font-weight:600}"
    ".g{stroke:#ccc;stroke-width:1}.e{text-anchor:end}.m{text-anchor:middle}"
    "@media(prefers-color-scheme:dark){text{fill:#ddd}.g{stroke:#555}}"
)


def line_chart(
    title: str, x_title: str, y_title: str, lines: Mapping[str, Sequence[tuple[float, float]]], order: Sequence[str]
) -> str:
    """Return a chart of (x, y) points; x is on a logarithmic axis with a tick at each point.

    `order` are the names of all lines that there may be, so that a name has the same colour in every picture.
    """
    points = [point for line in lines.values() for point in line]
    ticks = sorted({x for x, _ in points})
    top, step = _scale(max(y for _, y in points))
    first, last = math.log2(ticks[0]), math.log2(ticks[-1])

    def x_of(x: float) -> float:
        share = (math.log2(x) - first) / (last - first) if last > first else 0.5
        return _LEFT + 30 + share * (_WIDTH - _LEFT - _RIGHT - 60)

    parts = [*_axes(title, y_title, top, step), _text(_WIDTH / 2, _HEIGHT - 6, x_title, "m")]
    parts += [_text(x_of(x), _HEIGHT - _BOTTOM + 18, f"{x:g}", "m") for x in ticks]
    for name, line in lines.items():
        colour = _COLOURS[order.index(name)]
        path = " ".join(f"{x_of(x):.1f},{_y(y, top):.1f}" for x, y in sorted(line))
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        for x, y in line:
            label = f"{name}, {x:g}: {y:g}"
            parts.append(
                f'<circle cx="{x_of(x):.1f}" cy="{_y(y, top):.1f}" r="4" fill="{colour}">'
                f"<title>{escape(label)}</title></circle>"
            )
    return _svg(title, [*parts, *_legend([name for name in order if name in lines], order)])


def bar_chart(title: str, y_title: str, groups: Mapping[str, Mapping[str, float]], order: Sequence[str]) -> str:
    """Return a chart with one group of bars for each key, and a bar for each of its values, in the order given."""
    names = [name for name in order if any(name in group for group in groups.values())]
    top, step = _scale(max(value for group in groups.values() for value in group.values()))
    parts = _axes(title, y_title, top, step)
    room = (_WIDTH - _LEFT - _RIGHT) / len(groups)
    width = min(36.0, 0.8 * room / len(names))
    for number, (group, values) in enumerate(groups.items()):
        middle = _LEFT + (number + 0.5) * room
        parts.append(_text(middle, _HEIGHT - _BOTTOM + 18, group, "m"))
        begin = middle - len(values) * width / 2
        for place, name in enumerate(name for name in order if name in values):
            value = values[name]
            y = _y(value, top)
            parts.append(
                f'<rect x="{begin + place * width:.1f}" y="{y:.1f}" width="{width - 2:.1f}" '
                f'height="{_HEIGHT - _BOTTOM - y:.1f}" fill="{_COLOURS[order.index(name)]}">'
                f"<title>{escape(f'{group}, {name}: {value:.3g}')}</title></rect>"
            )
    return _svg(title, [*parts, *_legend(names, order)])


def _scale(most: float) -> tuple[float, float]:
    """Return the top of an axis and the distance of its ticks, of which there are 4 to 10: 1, 2 or 5 times 10^n."""
    power = 10.0 ** math.floor(math.log10(most)) if most > 0 else 1.0
    step = next(step * power for step in (0.1, 0.2, 0.5, 1.0, 2.0, 5.0) if most / (step * power) <= 8)
    return step * math.ceil(most / step), step


def _y(value: float, top: float) -> float:
    return _HEIGHT - _BOTTOM - value / top * (_HEIGHT - _TOP - _BOTTOM - 24)


def _axes(title: str, y_title: str, top: float, step: float) -> list[str]:
    parts = [f'<text x="{_LEFT}" y="18" class="t">{escape(title)}</text>', _text(_LEFT - 8, 40, y_title, "e")]
    for number in range(round(top / step) + 1):
        y = _y(number * step, top)
        parts.append(f'<line class="g" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(_text(_LEFT - 8, y + 4, f"{number * step:,.10g}", "e"))
    return parts


def _legend(names: Sequence[str], order: Sequence[str]) -> list[str]:
    parts, x = [], float(_LEFT + 8)
    for name in names:
        colour = _COLOURS[order.index(name)]
        parts.append(f'<rect x="{x:.0f}" y="30" width="12" height="12" fill="{colour}"/>')
        parts.append(_text(x + 18, 41, name, ""))
        x += 46 + 7.5 * len(name)
    return parts


def _text(x: float, y: float, text: str, kind: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}">{escape(text)}</text>'


def _svg(title: str, parts: Sequence[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">'
    return "\n".join([head, f"<title>{escape(title)}</title>", f"<style>{_STYLE}</style>", *parts, "</svg>", ""])
