"""The request of a conversion: source, destination, and how rows are read, split and ordered."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Literal

from mptraining_api.problems import InvalidData
from mptraining_records.tfrecord.features import unknown_name

SHARD_BYTES = 128 << 20
VALIDATION = "validation"
TABLES = (".csv", ".parquet")
_PLACES = ("destination", "notice")
FILES = (*TABLES, ".npz", ".txt")


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

    @property
    def split_names(self) -> list[str]:
        return [self.name, VALIDATION] if self.validation_fraction else [self.name]

    @property
    def suffix(self) -> str:
        return PurePosixPath(self.source or "").suffix.lower()

    def check(self) -> None:
        """Raise InvalidData for options that contradict each other, or do not apply to this kind of source."""
        group, images, named_by, fraction = self.group, self.images, self.path_column, self.validation_fraction
        is_table, has_images = self.suffix in TABLES, self.suffix not in FILES or images is not None
        other_name = "another name than that of the validation split"
        besides = "--validation-fraction besides; groups stay in one split"
        table = "a .csv or .parquet file as the source"
        rows, of_source = f"{table}, with one row for each image", f"with the source {self.source}"
        both, folder = "a source besides the folders of pairs", "--images DIR, the folder of the images"
        for is_wrong, option, mistake, expected in (
            (not 0 <= fraction < 1, "--validation-fraction", str(fraction), "0 or more, less than 1"),
            (group is not None and not fraction, "--group", repr(group), besides),
            (fraction and self.name == VALIDATION, "name", repr(self.name), other_name),
            (self.source is None and not self.pairs, "--pairs", "no source", "one of them"),
            (self.source is not None and self.pairs, "--pairs", both, "one of them"),
            (len(self.pairs) == 1, "--pairs", "one folder", "two: --pairs input=DIR target=DIR"),
            (images is not None and not is_table, "--images", f"{images!r} {of_source}", rows),
            (named_by is not None and not is_table, "--path-column", f"{named_by!r} {of_source}", rows),
            (named_by is not None and images is None, "--path-column", repr(named_by), folder),
            (self.image_size and not has_images, "--image-size", "not possible for this source", "files of images"),
            (self.label_as != "Auto" and not is_table, "--label-as", repr(self.label_as.lower()), table),
            (self.missing != "Error" and not is_table, "--missing", repr(self.missing.lower()), table),
        ):
            if is_wrong:
                raise InvalidData(option, mistake, expected=expected)

    def identity(self) -> bytes:
        """Return what decides the records, as JSON."""
        return json.dumps({name: value for name, value in vars(self).items() if name not in _PLACES}).encode()

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


def check_columns(uri: str, option: str, columns: Sequence[str | None], names: Sequence[str]) -> None:
    """Raise InvalidData if the table lacks a column that the option names."""
    for name in columns:
        if name is not None and name not in names:
            raise unknown_name(uri, f"no column {name!r} for {option}", name, names)
