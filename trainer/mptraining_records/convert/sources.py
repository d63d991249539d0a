"""The source of a conversion as a table, by its kind."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from mptraining_api.problems import InvalidData
from mptraining_records.convert import arrow_files, folders, named_images
from mptraining_records.convert.request import FILES, Request
from mptraining_records.convert.table import Table
from mptraining_storage import storage

_KINDS = "a folder of images, of .txt files or of TensorFlow Datasets, .csv, .parquet, .npz or .txt"


@contextmanager
def open_source(request: Request) -> Iterator[Table]:
    """Open the source of the request, local or remote. Raises InvalidData if there is none of a known kind."""
    uri, suffix = request.source, request.suffix
    if uri is None:
        yield folders.open_pairs(request)
        return
    if suffix not in FILES:
        if not storage.is_remote(uri) and not storage.local_path(uri).is_dir():
            is_file = storage.exists(uri)
            cause = f"unknown kind of source {suffix or 'without a suffix'!r}" if is_file else "no such file or folder"
            raise InvalidData(uri, cause, expected=_KINDS)
        yield folders.open_folder(uri, request)
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
            yield Table(uri, arrow_files.Lines(uri, path), replace(request, columns=None))
        elif request.images is not None:
            yield named_images.open_named_images(uri, path, request)
        else:
            named_images.refuse_names(uri, path, request)
            yield Table(uri, arrow_files.open_table(uri, path), request, csv=path if suffix == ".csv" else None)
