"""HTML of a value in a notebook's cell: title, lines, table and small curves, without script and style sheet."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from mptraining.display.curves import Panel, legend, svg

_GRID = "display:flex;flex-wrap:wrap;gap:10px 22px;margin:6px 0"
_LINES = "margin:2px 0;white-space:pre-wrap;font:12px monospace;background:none;color:inherit;border:0;padding:0"
_CELL = "padding:2px 10px;white-space:nowrap;text-align:"
# Translucent green, on which the text keeps the contrast of the theme.
BEST = "font-weight:700;background:rgba(46,160,67,.25)"


def card(
    title: str, *, lines: Sequence[str] = (), table: str = "", panels: Sequence[Panel] = (), shared_legend: str = ""
) -> str:
    """Return the HTML of a value; `title` and `lines` are plain text, `table` and `shared_legend` are HTML.

    With a `shared_legend` the charts have none of their own.
    """
    body = f'<pre style="{_LINES}">{escape(chr(10).join(lines))}</pre>' if lines else ""
    return (
        f'<div style="line-height:1.35"><div><b>{escape(title)}</b></div>{body}{table}{shared_legend}'
        f"{charts(panels, with_legends=not shared_legend)}</div>"
    )


def charts(panels: Sequence[Panel], *, with_legends: bool = True) -> str:
    """Return the charts side by side, as many as fit; empty without panels."""
    drawn = [
        f'<div style="max-width:270px"><div style="font:12px sans-serif">'
        f"{legend(panel.curves) if with_legends else f'<b>{escape(panel.title)}</b>'}</div>{svg(panel)}</div>"
        for panel in panels
    ]
    return f'<div style="{_GRID}">{"".join(drawn)}</div>' if drawn else ""


def grid(head: Sequence[str], rows: Sequence[tuple[Sequence[str], frozenset[int]]]) -> str:
    """Return an HTML table of plain texts; each row comes with the indices of its best cells."""

    def row(tag: str, cells: Sequence[str], best: frozenset[int] = frozenset()) -> str:
        styles = (f"{_CELL}{'right' if at else 'left'}{';' + BEST if at in best else ''}" for at in range(len(cells)))
        columns = (f'<{tag} style="{style}">{escape(text)}</{tag}>' for style, text in zip(styles, cells, strict=True))
        return f'<tr style="background:none">{"".join(columns)}</tr>'

    return (
        '<div style="overflow-x:auto"><table style="border-collapse:collapse;font:12px sans-serif;margin:6px 0">'
        f"<thead>{row('th', head)}</thead><tbody>{''.join(row('td', *cells) for cells in rows)}</tbody></table></div>"
    )
