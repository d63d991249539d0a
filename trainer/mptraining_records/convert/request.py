"""The request of a conversion: source, destination and how the source is read."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from mptraining_records.tfrecord.features import unknown_name

LabelAs = Literal["Auto", "Classes", "Numbers"]
Missing = Literal["Error", "Drop"]


@dataclass(frozen=True)
class Request:
    """`source` is None for `pairs`, which has folders of images by feature name; `image_size` is (height, width).

    `images` is the folder of the image files that column `path_column` of the table `source` names. `columns` are the
    columns to store besides images and label, None for the default of the source. `split` is the name of the split,
    which a folder of TensorFlow Datasets must have.
    `missing` is what a gap in a row of a table does. `notice` gets lines for the user.
    """

    source: str | None
    destination: str
    notice: Callable[[str], None]
    split: str = "train"
    label: str | None = None
    label_as: LabelAs = "Auto"
    missing: Missing = "Error"
    columns: tuple[str, ...] | None = None
    images: str | None = None
    path_column: str | None = None
    pairs: Mapping[str, str] = field(default_factory=dict)
    group: str | None = None
    image_size: tuple[int, int] | None = None
    skip_bad_images: bool = False

    def identity(self) -> dict[str, Any]:
        """Return what decides the records, serializable as JSON."""
        return {name: value for name, value in vars(self).items() if name not in ("destination", "notice")}

    def command(self, source: str | None, *options: str) -> str:
        """Return the command line that converts `source` to this destination."""
        words = ["mptj", "records", "convert", *([source] if source else []), self.destination, *options]
        return f"`{shlex.join(words)}`"


def stored_columns(uri: str, names: Sequence[str], label: str | None, request: Request) -> list[str]:
    """Return the columns to store: those of the request, else all but the group; the label always."""
    if request.columns is None:
        return [name for name in names if name != request.group]
    for name in request.columns:
        check_column(uri, "--columns", name, names)
    return [name for name in names if name in request.columns or name == label]


def check_column(uri: str, option: str, name: str, names: Sequence[str]) -> None:
    """Raise InvalidData if the table has no such column."""
    if name not in names:
        raise unknown_name(uri, f"no column {name!r} for {option}", name, names)
