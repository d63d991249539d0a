"""Images that a table names: one row of a CSV or Parquet file for each image file of a folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from mptraining_api.problems import InvalidData, nearest
from mptraining_records.convert import images, tables
from mptraining_records.convert.files import FileRows
from mptraining_records.convert.request import Request, check_column
from mptraining_records.convert.tables import Table
from mptraining_records.tfrecord.features import LABELS, choose_label
from mptraining_storage import storage

_FIRST_ROWS = 100


def open_labelled_images(uri: str, path: Path, request: Request) -> FileRows:
    """Open the images that a column of the table names; image and label are stored, other columns on request."""
    assert request.images is not None
    first = tables.first_values(uri, path, _FIRST_ROWS)
    files = _Files(request.images)
    named_by = _path_column(uri, first, files, request)
    others = [name for name in first if name not in (named_by, request.group)]
    label = choose_label(uri, others, request.label)
    if label is None and others and request.columns is None:
        options = ["--images", request.images, "--path-column", named_by, "--label", others[0]]
        raise InvalidData(
            uri,
            f"which column is the label? The columns besides {named_by!r} are {', '.join(map(repr, others))}",
            next_step=f"{request.command(uri, *options)}, or --columns '' for images without labels",
        )
    for name in request.columns or ():
        check_column(uri, "--columns", name, others)
    kept = tuple(name for name in others if name == label or name in (request.columns or ()))
    left = [name for name in others if name not in kept]
    if left:
        request.notice(f"columns that are not stored: {', '.join(left)}; --columns {','.join(left)} stores them")
    # A row without a name is one without an image, which --bad-images Skip leaves out too.
    keys = () if request.skip_bad_images else (named_by,)
    table = Table(uri, path, replace(request, label=label, columns=kept), keys)
    rows = {int(table.row_numbers[number]): row for number, row in table.rows()} if kept else {}
    values = {name: {number: row[name] for number, row in rows.items()} for name in kept}
    names = tables.column_values(uri, path, named_by)
    uris = files.find_all(uri, named_by, {int(number): names[number] for number in table.row_numbers}, request)
    if images.IMAGE in values:
        raise InvalidData(
            uri, f"column {images.IMAGE!r} has the name of the image's own feature", next_step="Rename it"
        )
    groups = tables.column_values(uri, path, request.group) if request.group else None
    return FileRows(
        request,
        {images.IMAGE: list(uris.values())},
        {images.IMAGE: partial(images.load, size=request.image_size)},
        values={name: [column[number] for number in uris] for name, column in values.items()},
        value_features=table.features() if kept else (),
        group_of_row=np.array([str(groups[number]) for number in uris]) if groups is not None else None,
        label=label,
        classes=table.classes if kept else None,
    )


def refuse_names(uri: str, path: Path, request: Request) -> None:
    """Raise InvalidData if a text column holds names of image files, which would be stored as text."""
    if request.columns is not None:
        return
    first = tables.first_values(uri, path, _FIRST_ROWS)
    if any(isinstance(value, bytes) for values in first.values() for value in values):
        return
    for name, values in first.items():
        if name not in (request.label, request.group) and _are_image_names(values):
            raise InvalidData(
                uri,
                f"column {name!r} holds names of image files, such as {values[0]!r}, which would be stored as text",
                next_step=f"To store the images: {command(uri, _folder_of(uri, values[0]), request)}. To store the "
                f"text: --columns {','.join(first)}",
            )


def command(uri: str, folder: str, request: Request) -> str:
    """Return the command that converts the images of `folder` with the labels of the table at `uri`."""
    with storage.as_local_file(uri) as path:
        first = tables.first_values(uri, path, _FIRST_ROWS)
    named_by = next((name for name, values in first.items() if _are_image_names(values)), None)
    others = [name for name in first if name != named_by]
    label = request.label or next((name for name in LABELS if name in others), None) or next(iter(others), None)
    options = ["--images", folder]
    options += ["--path-column", named_by] if named_by else []
    return request.command(uri, *options, *(["--label", label] if label and named_by else []))


def _are_image_names(values: Sequence[Any]) -> bool:
    return all(isinstance(value, str) and images.is_image(value) for value in values)


def _folder_of(uri: str, name: str) -> str:
    """Return the folder beside the table that has the image, else `DIR`."""
    beside = uri.rpartition("/")[0] or "."
    if storage.is_remote(uri):
        return "DIR"
    root = storage.local_path(beside)
    for folder in [root, *sorted(each for each in root.iterdir() if each.is_dir())]:
        if (folder / name).is_file():
            return str(folder)
    return "DIR"


class _Files:
    """The images below a folder, by path, by name, and by either without the suffix."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._found: dict[str, str | None] = {}
        for each in images.list_folder(folder):
            if not images.is_image(each.path):
                continue
            path = PurePosixPath(each.path)
            for key in {each.path, path.name, str(path.with_suffix("")), path.stem}:
                # A name that two sub-folders have names no file; the path does.
                self._found[key] = None if key in self._found and key != each.path else each.uri

    def find(self, value: object) -> str | None:
        return self._found.get(str(value).removeprefix("./"))

    def find_all(self, uri: str, column: str, names: Mapping[int, Any], request: Request) -> dict[int, str]:
        """Return the URI of the image of each row. Raises InvalidData for a missing one unless they are skipped."""
        found = {number: self.find(name) for number, name in names.items()}
        missing = [number for number, each in found.items() if each is None]
        some = len(missing) < len(names)
        if missing and not (some and request.skip_bad_images):
            first = str(names[missing[0]])
            raise InvalidData(
                uri,
                f"column {column!r}, row {missing[0]}: no image {first!r} in {self._folder}; "
                f"{len(missing):,} of {len(names):,} are missing",
                next_step=f"{nearest(first, self._found)} --bad-images Skip leaves such rows out"
                if some
                else "Name the folder that has them with --images",
            )
        for number in missing:
            request.notice(f"skipped: row {number}: no image {str(names[number])!r} in {self._folder}")
        return {number: each for number, each in found.items() if each is not None}


def _path_column(uri: str, first: Mapping[str, Sequence[Any]], files: _Files, request: Request) -> str:
    """Return the column with the names of the images; `first` has the first values of each column."""
    if request.path_column is not None:
        check_column(uri, "--path-column", request.path_column, list(first))
        return request.path_column
    fitting = [name for name, values in first.items() if any(files.find(value) for value in values)]
    # A class number may be the name of a file without its suffix.
    fitting = [name for name in fitting if _are_image_names(first[name])] or fitting
    if len(fitting) == 1:
        return fitting[0]
    raise InvalidData(
        uri,
        f"{len(fitting) or 'no'} columns hold names of images in {request.images}",
        expected=f"--path-column with one of {', '.join(map(repr, fitting or first))}",
    )
