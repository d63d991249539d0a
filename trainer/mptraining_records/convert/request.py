"""The request of a conversion: source, destination, and how rows are read, split and ordered."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from mptraining_api.problems import InvalidData
from mptraining_records.tfrecord.features import unknown_name

SHARD_BYTES = 128 << 20
VALIDATION = "validation"


@dataclass(frozen=True)
class Request:
    """The options of `mptj records convert`.

    `source` is None for `pairs`: folders of images by feature name. `images` is the folder of the files that the column
    `path_column` of a table names. `columns` are stored besides images and label, None for the default of the source.
    `missing` is what a gap in a row of a table does. `image_size` is (height, width).

    With a `validation_fraction` in (0, 1), that share of the rows goes to the split `validation`: of every class that
    has enough rows for both splits, of all rows where the label is no class, or of the values of the column `group`.
    `seed` decides the order of the rows, unless `keep_order`, and the validation rows. `notice` gets lines for users.
    """

    source: str | None
    destination: str
    notice: Callable[[str], object]
    name: str = "train"
    label: str | None = None
    label_as: Literal["Auto", "Classes", "Numbers"] = "Auto"
    missing: Literal["Error", "Drop"] = "Error"
    columns: Sequence[str] | None = None
    images: str | None = None
    path_column: str | None = None
    pairs: Mapping[str, str] = field(default_factory=dict)
    bad_images: Literal["Fail", "Skip"] = "Fail"
    image_size: tuple[int, int] | None = None
    validation_fraction: float = 0.0
    group: str | None = None
    seed: int = 0
    keep_order: bool = False
    shard_bytes: int = SHARD_BYTES
    overwrite: bool = False

    @property
    def permutation_seed(self) -> int | None:
        return None if self.keep_order else self.seed

    def split_names(self) -> list[str]:
        """Return the names of the splits to write. Raises InvalidData if these options contradict each other."""
        fraction = self.validation_fraction
        if not 0 <= fraction < 1:
            raise InvalidData("validation fraction", str(fraction), expected="0 or more, less than 1")
        if self.group is not None and not fraction:
            expected = "--validation-fraction besides; groups stay in one split"
            raise InvalidData("--group", repr(self.group), expected=expected)
        if fraction and self.name == VALIDATION:
            raise InvalidData("name", repr(self.name), expected="another name than that of the validation split")
        return [self.name, VALIDATION] if fraction else [self.name]

    def identity(self) -> dict[str, Any]:
        """Return what decides the records, serializable as JSON."""
        return {name: value for name, value in vars(self).items() if name not in ("destination", "notice")}

    def command(self, source: str | None, *options: str) -> str:
        """Return the command line that converts `source` to this destination."""
        words = ["mptj", "records", "convert", *([source] if source else []), self.destination, *options]
        return f"`{shlex.join(words)}`"

    def stored_columns(self, uri: str, names: Sequence[str], label: str | None) -> list[str]:
        """Return the columns to store: those of the request, else all but the group; the label always."""
        if self.columns is None:
            return [name for name in names if name != self.group or name == label]
        check_columns(uri, "--columns", self.columns, names)
        return [name for name in names if name in self.columns or name == label]


def check_columns(uri: str, option: str, wanted: Sequence[str | None], names: Sequence[str]) -> None:
    """Raise InvalidData if the table lacks a column that the option names."""
    for name in wanted:
        if name is not None and name not in names:
            raise unknown_name(uri, f"no column {name!r} for {option}", name, names)
