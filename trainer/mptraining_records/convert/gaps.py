"""Gaps in a table: the rows without a value in a column that needs one, and the message about all of them."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mptraining_api.problems import InvalidData
from mptraining_records.convert.arrow_files import lines_of
from mptraining_records.reading.order import Int64s

# More columns with gaps are counted only.
_SHOWN_COLUMNS = 20


def is_list(arrow_type: Any) -> bool:
    """Return whether the Arrow type is one of lists."""
    import pyarrow.types as kinds

    return bool(kinds.is_list(arrow_type) or kinds.is_large_list(arrow_type) or kinds.is_fixed_size_list(arrow_type))


def is_text(arrow_type: Any) -> bool:
    """Return whether the Arrow type is text, also with a dictionary."""
    import pyarrow.types as kinds

    text = arrow_type.value_type if kinds.is_dictionary(arrow_type) else arrow_type
    return bool(kinds.is_string(text) or kinds.is_large_string(text))


def is_gap(column: Any, *, is_label: bool, is_key: bool, is_csv: bool) -> NDArray[np.bool_]:
    """Return whether each value of an Arrow array, or a value in it if it is a list, is a gap.

    NaN is one in a CSV, a number that is not finite in a label, an empty text in a key.
    """
    import pyarrow.compute as pc

    gaps = np.array(column.is_null(nan_is_null=is_csv))
    if is_list(column.type):
        lists = np.asarray(pc.list_parent_indices(column))
        gaps[lists[is_gap(pc.list_flatten(column), is_label=False, is_key=False, is_csv=False)]] = True
    if is_label and str(column.type) in ("halffloat", "float", "double"):
        gaps |= ~np.isfinite(np.asarray(column))
    if is_key and is_text(column.type):
        gaps |= np.array([value == "" for value in column.to_pylist()], bool)
    return gaps


@dataclass(frozen=True)
class Gaps:
    """The rows of a table of `count` rows that have a gap, by column; only columns with gaps."""

    rows: Mapping[str, Int64s]
    count: int
    label: str | None
    csv: Path | None

    @property
    def complete(self) -> Int64s:
        """The rows without a gap."""
        complete = np.ones(self.count, bool)
        for rows in self.rows.values():
            complete[rows] = False
        return np.flatnonzero(complete)

    def problem(self, uri: str, stored: Sequence[str], keys: Sequence[str]) -> InvalidData:
        """Return the error for all gaps, with the options that leave them out."""
        left_out = self.count - len(self.complete)
        options = []
        if left_out < self.count:
            options.append(f"--missing drop leaves out {left_out:,} of {self.count:,} rows")
        full = [name for name in stored if name not in self.rows and name != self.label]
        if full and not self.rows.keys() & {self.label, *keys} and not any("," in name for name in full):
            options.append(f"{shlex.join(['--columns', ','.join(full)])} leaves out the columns with gaps")
        return InvalidData(
            uri,
            self.describe(),
            expected="a value in every row",
            next_step=f"Fill the gaps{'; or ' if options else ''}{', '.join(options)}",
        )

    def describe(self) -> str:
        """Return the number of gaps in each column, with the first row of each, of a CSV the line."""
        first = {name: int(rows[0]) for name, rows in list(self.rows.items())[:_SHOWN_COLUMNS]}
        lines = lines_of(self.csv, first.values()) if self.csv is not None else {}
        columns = [
            f"column {name!r}: {len(self.rows[name]):,} {'row has' if len(self.rows[name]) == 1 else 'rows have'} no "
            f"{'label' if name == self.label else 'value'}, the first in "
            f"{f'line {lines[row]}' if row in lines else f'row {row}'}"
            for name, row in first.items()
        ]
        more = [f"{len(self.rows) - len(first)} more columns"] if len(self.rows) > len(first) else []
        return "; ".join(columns + more)
