"""Comparison as text: a column per run for few runs, else a row per run, in blocks that fit the width."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mptraining.comparison.compared import Comparison, Row

if TYPE_CHECKING:
    from rich.console import Group
    from rich.text import Text

# Labels are broken beyond it.
_LABEL_WIDTH = 28
_VALUE_WIDTH = 34
_GAP = 2
_BEST, _DIFFERENT = "bold green", "bold"


@dataclass(frozen=True, slots=True)
class Cell:
    """Text, already broken into lines, and its rich style."""

    lines: tuple[str, ...]
    style: str = ""

    @property
    def width(self) -> int:
        return max(map(len, self.lines), default=0)


def table(comparison: Comparison, width: int) -> Group:
    """Return the comparison as a rich renderable at most `width` characters wide, as far as its values allow.

    The best values are green and bold, settings in which the runs differ are bold; settings that all runs share are
    named once, below.
    """
    from rich.console import Group
    from rich.text import Text

    drawn = [_drawn(block) for block in _blocks(comparison, width)]
    parts: list[Text] = []
    for each in drawn:
        parts += [*([Text("")] if parts else []), *each]
    shared = comparison.shared_text
    if shared:
        parts += [Text(line, "dim") for line in textwrap.wrap(shared, width, break_long_words=False)]
    return Group(*parts)


def plain_text(comparison: Comparison, width: int) -> str:
    """Return the table and the notes as plain text."""
    from rich.console import Console

    file = io.StringIO()
    console = Console(file=file, width=max(width, 1000), color_system=None)
    console.print(table(comparison, width))
    for note in comparison.notes:
        print(f"note: {note}", file=file)
    return file.getvalue().rstrip("\n")


def _blocks(comparison: Comparison, width: int) -> list[list[list[Cell]]]:
    """Return tables as lists of columns of equally many cells, the first of which is the heading."""
    if not comparison.many:
        columns = _by_columns(comparison)
        if _width(columns) <= width:
            return [columns]
    names, *columns = _by_rows(comparison)
    blocks = [[names]]
    for column in columns:
        if len(blocks[-1]) > 1 and _width([*blocks[-1], column]) > width:
            blocks.append([names])
        blocks[-1].append(column)
    return blocks


def _by_columns(comparison: Comparison) -> list[list[Cell]]:
    """Return the titles of the rows, then a column of each run: the results, then the settings that differ."""
    rows = comparison.shown
    styles = [_DIFFERENT if _is_different(row) else "dim" for row in rows]
    titles = [_cell(row.title, _VALUE_WIDTH, style) for row, style in zip(rows, styles, strict=True)]
    columns = [
        [_cell(label, _LABEL_WIDTH, "bold"), *(_value(row, at) for row in rows)]
        for at, label in enumerate(comparison.labels)
    ]
    return [[_cell("", 1), *titles], *columns]


def _by_rows(comparison: Comparison) -> list[list[Cell]]:
    """Return the labels of the runs, then a column of each quantity: the settings that differ, then the results."""
    names = [_cell("run", _LABEL_WIDTH, "bold"), *(_cell(label, _LABEL_WIDTH) for label in comparison.labels)]
    columns = []
    for row in comparison.shown:
        cells = [_value(row, at) for at in range(len(comparison.runs))]
        # A heading may be as wide as the values below it, or else as its longest word.
        words = max((len(word) for word in row.title.split()), default=1)
        heading = _cell(row.title, max(words, *(cell.width for cell in cells)), "bold")
        columns.append([heading, *cells])
    return [names, *columns]


def _is_different(row: Row) -> bool:
    return row.kind == "setting" and row.differs


def _value(row: Row, at: int) -> Cell:
    style = _BEST if at in row.best else _DIFFERENT if _is_different(row) else ""
    return _cell(row.texts[at], _VALUE_WIDTH, style)


def _cell(text: str, width: int, style: str = "") -> Cell:
    return Cell(tuple(textwrap.wrap(text, width, break_on_hyphens=False)) or ("",), style)


def _width(columns: Sequence[Sequence[Cell]]) -> int:
    return sum(max(cell.width for cell in column) for column in columns) + _GAP * (len(columns) - 1)


def _drawn(columns: Sequence[Sequence[Cell]]) -> list[Text]:
    """Return the lines of a table: the first column to the left, the others to the right, headings at the bottom."""
    from rich.text import Text

    widths = [max(cell.width for cell in column) for column in columns]
    lines: list[Text] = []
    for number, cells in enumerate(zip(*columns, strict=True)):
        height = max(len(cell.lines) for cell in cells)
        for level in range(height):
            line = Text()
            for at, (cell, width) in enumerate(zip(cells, widths, strict=True)):
                # Headings end on the same line, cells begin on it.
                above = height - len(cell.lines) if number == 0 else 0
                text = cell.lines[level - above] if 0 <= level - above < len(cell.lines) else ""
                line.append(" " * (_GAP * (at > 0)))
                line.append(text.ljust(width) if at == 0 else text.rjust(width), cell.style)
            line.rstrip()
            lines.append(line)
        if number == 0:
            lines.append(Text("-" * _width(columns), "dim"))
    return lines
