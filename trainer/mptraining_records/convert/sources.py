"""The source of a conversion by its kind: a table, or a prepared folder of TensorFlow Datasets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from mptraining_api.problems import InvalidData
from mptraining_records.convert import arrow_files, folders, named_images, tfds
from mptraining_records.convert.request import Request
from mptraining_records.convert.table import Table
from mptraining_records.convert.tfds import TfdsFolder
from mptraining_storage import storage

_KINDS = "a folder of images, of .txt files or of TensorFlow Datasets, .csv, .parquet, .npz or .txt"
_TABLES = (".csv", ".parquet")
Source = Table | TfdsFolder


@contextmanager
def open_source(request: Request) -> Iterator[Source]:
    """Open the source of the request, local or remote. Raises InvalidData if there is none of a known kind."""
    suffix = Path(request.source or "").suffix.lower()
    is_table = suffix in _TABLES
    is_file = is_table or suffix in (".npz", ".txt")
    _check_options(request, is_table=is_table, has_images=not is_file or request.images is not None)
    if request.pairs:
        yield folders.open_pairs(request)
        return
    uri = request.source
    assert uri is not None
    if not is_file:
        if not storage.is_remote(uri) and storage.exists(uri):
            raise InvalidData(uri, f"unknown kind of source {suffix or 'without a suffix'!r}", expected=_KINDS)
        if not storage.is_remote(uri) and not storage.local_path(uri).exists():
            raise InvalidData(uri, "no such file or folder", expected=_KINDS)
        is_tfds = storage.exists(storage.join(uri, tfds.FEATURES))
        yield TfdsFolder(uri, request) if is_tfds else folders.open_folder(uri, request)
        return
    with storage.as_local_file(uri) as path:
        if suffix == ".npz":
            arrays, described = arrow_files.read_arrays(uri, path, request)
            # Integers are class numbers as they are.
            yield Table(uri, arrays, replace(request, label_as="Numbers"), described=described)
        elif suffix == ".txt":
            for option, value in (("--label", request.label), ("--group", request.group)):
                if value is not None:
                    expected = "a CSV, or a folder of .txt files with one sub-folder for each class"
                    raise InvalidData(uri, f"no column {value!r} for {option} in a text file", expected=expected)
            yield Table(uri, arrow_files.Lines(uri, path), request)
        elif request.images is not None:
            yield named_images.open_named_images(uri, path, request)
        else:
            named_images.refuse_names(uri, path, request)
            yield Table(uri, arrow_files.open_table(uri, path), request, csv=path if suffix == ".csv" else None)


def _check_options(request: Request, *, is_table: bool, has_images: bool) -> None:
    """Raise InvalidData for options that do not apply to this kind of source."""
    if (request.source is None) != bool(request.pairs):
        found = "a source besides the folders of pairs" if request.pairs else "no source"
        raise InvalidData("--pairs", found, expected="one of them")
    if len(request.pairs) == 1:
        raise InvalidData("--pairs", "one folder", expected="two: --pairs input=DIR target=DIR")
    for option, value in (("--images", request.images), ("--path-column", request.path_column)):
        if value is not None and not is_table:
            raise InvalidData(
                option,
                f"{value!r} with the source {request.source}",
                expected="a .csv or .parquet file as the source, with one row for each image",
            )
    if request.image_size and not has_images:
        raise InvalidData("--image-size", "not possible for this source", expected="files of images")
    for option, value, default in (("--label-as", request.label_as, "Auto"), ("--missing", request.missing, "Error")):
        if value != default and not is_table:
            raise InvalidData(option, repr(value), expected="a .csv or .parquet file as the source")
    if request.path_column is not None and request.images is None:
        raise InvalidData("--path-column", repr(request.path_column), expected="--images DIR, the folder of the images")
