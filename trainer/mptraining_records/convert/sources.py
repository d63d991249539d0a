"""The sources of a conversion, by their kind: rows of named values, and the features that describe them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from numpy.typing import NDArray

from mptraining_api.problems import InvalidData
from mptraining_records.convert import folders, labelled_images, tfds
from mptraining_records.convert.arrays import Arrays
from mptraining_records.convert.request import Request
from mptraining_records.convert.tables import Table
from mptraining_records.convert.text import Lines
from mptraining_records.reading.order import Int64s
from mptraining_records.tfrecord.example import Encodable
from mptraining_records.tfrecord.features import Feature
from mptraining_storage import storage

_KINDS = "a folder of images, of .txt files or of TensorFlow Datasets, .csv, .parquet, .npz or .txt"
_TABLES = (".csv", ".parquet")


class Source(Protocol):
    """A source of rows. `features` is complete after all rows are read."""

    @property
    def random_access(self) -> bool: ...
    @property
    def count(self) -> int: ...
    @property
    def label(self) -> str | None: ...
    @property
    def classes(self) -> tuple[str, ...] | None: ...
    def rows(self, numbers: Int64s | None = None) -> Iterator[tuple[int, Mapping[str, Encodable]]]:
        """Yield number and values of the rows: all, or with random access those of `numbers` in that order."""

    def features(self) -> tuple[Feature, ...]: ...
    def labels(self) -> Int64s | None:
        """Return the label of every row as stored, None if it is not one integer. It may read all rows."""

    def groups(self) -> NDArray[Any]:
        """Return the value of every row in the column `group` of the request, or a number for it."""

    def origin(self, number: int) -> str:
        """Return where a row is from, for people."""


@contextmanager
def open_source(request: Request) -> Iterator[Source]:
    """Open the source of the request, local or remote. Raises InvalidData if there is none of a known kind."""
    _check_options(request)
    if request.pairs:
        yield folders.open_pairs(request)
        return
    uri = request.source
    assert uri is not None
    suffix = Path(uri).suffix.lower()
    if suffix not in (*_TABLES, ".npz", ".txt"):
        if not storage.is_remote(uri) and storage.exists(uri):
            raise InvalidData(uri, f"unknown kind of source {suffix or 'without a suffix'!r}", expected=_KINDS)
        if not storage.is_remote(uri) and not storage.local_path(uri).exists():
            raise InvalidData(uri, "no such file or folder", expected=_KINDS)
        if storage.exists(storage.join(uri, tfds.FEATURES)):
            yield tfds.TfdsFolder(uri, request)
        else:
            yield folders.open_folder(uri, request)
        return
    with storage.as_local_file(uri) as path:
        if suffix == ".npz":
            yield Arrays(uri, path, request)
        elif suffix == ".txt":
            yield Lines(uri, path, request)
        elif request.images is not None:
            yield labelled_images.open_labelled_images(uri, path, request)
        else:
            labelled_images.refuse_names(uri, path, request)
            yield Table(uri, path, request)


def _check_options(request: Request) -> None:
    """Raise InvalidData for options that do not apply to this kind of source."""
    if (request.source is None) != bool(request.pairs):
        raise InvalidData(
            "--pairs", "a source besides the folders of pairs" if request.pairs else "no source", expected="one of them"
        )
    if len(request.pairs) == 1:
        raise InvalidData("--pairs", "one folder", expected="two: --pairs input=DIR target=DIR")
    is_table = request.source is not None and Path(request.source).suffix.lower() in _TABLES
    for option, value in (("--images", request.images), ("--path-column", request.path_column)):
        if value is not None and not is_table:
            raise InvalidData(
                option,
                f"{value!r} with the source {request.source}",
                expected="a .csv or .parquet file as the source, with one row for each image",
            )
    is_folder = bool(request.pairs) or Path(request.source or "").suffix.lower() not in (*_TABLES, ".npz", ".txt")
    if request.image_size and not is_folder and request.images is None:
        raise InvalidData("--image-size", "not possible for this source", expected="files of images")
    for option, value, default in (("--label-as", request.label_as, "Auto"), ("--missing", request.missing, "Error")):
        if value != default and not is_table:
            raise InvalidData(option, repr(value), expected="a .csv or .parquet file as the source")
    if request.path_column is not None and request.images is None:
        raise InvalidData("--path-column", repr(request.path_column), expected="--images DIR, the folder of the images")
