"""Images that a table names: one row of a CSV or Parquet file for each image file of a folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

from mptraining_api.problems import InvalidData, nearest
from mptraining_records.convert import images
from mptraining_records.convert.arrow_files import arrow_errors, first_values, open_table
from mptraining_records.convert.request import Request, check_columns
from mptraining_records.convert.table import FileColumn, Table
from mptraining_records.tfrecord.features import LABELS, choose_label
from mptraining_storage import storage

_FIRST_ROWS = 100


def open_named_images(uri: str, path: Path, request: Request) -> Table:
    """Open the images that a column of the table names; image and label are stored, other columns on request."""
    import pyarrow as pa

    assert request.images is not None
    first = first_values(uri, path, _FIRST_ROWS)
    files = _uris_by_name(request.images)
    named_by = _path_column(uri, first, files, request)
    others = [name for name in first if name not in (named_by, request.group)]
    label = choose_label(uri, others, request.label)
    if label is None and others and request.columns is None:
        question = f"which column is the label? The columns besides {named_by!r} are {', '.join(map(repr, others))}"
        options = ["--images", request.images, "--path-column", named_by, "--label", others[0]]
        step = f"{request.command(uri, *options)}, or --columns '' for images without labels"
        raise InvalidData(uri, question, next_step=step)
    check_columns(uri, "--columns", request.columns or (), others)
    kept = tuple(name for name in others if name == label or name in (request.columns or ()))
    left = [name for name in others if name not in kept]
    if left:
        request.notice(f"columns that are not stored: {', '.join(left)}; --columns {','.join(left)} stores them")
    if images.IMAGE in kept:
        clash = f"column {images.IMAGE!r} has the name of the image's own feature"
        raise InvalidData(uri, clash, next_step="Rename it")
    group = [name for name in first if name == request.group]
    with arrow_errors(uri):
        # Without a label of the request, none of the columns that are not stored may be one.
        table = open_table(uri, path, as_text=[named_by, *group]).to_table(columns=[named_by, *kept, *group])
    names = table.column(named_by).to_pylist()
    uris = [_find(files, name) for name in names]
    located = pa.array([image or name for image, name in zip(uris, names, strict=True)], pa.string())
    source = Table(
        uri,
        table.set_column(0, named_by, located),
        replace(request, label=label, columns=kept),
        files={images.IMAGE: FileColumn(named_by, partial(images.load, size=request.image_size))},
        # A row without a name is one without an image, which --bad-images skip leaves out too.
        keys=() if request.bad_images == "Skip" else (named_by,),
        csv=path if path.suffix.lower() == ".csv" else None,
    )
    missing = [number for number, row in enumerate(source.row_numbers) if uris[row] is None]
    absent = [f"row {row}: no image {str(names[row])!r} in {request.images}" for row in source.row_numbers[missing]]
    is_some = len(missing) < source.count
    if missing and not (is_some and request.bad_images == "Skip"):
        count = f"{len(missing):,} of {source.count:,} are missing"
        step = f"{nearest(str(names[source.row_numbers[missing[0]]]), files)} --bad-images skip leaves such rows out"
        step = step if is_some else "Name the folder that has them with --images"
        raise InvalidData(uri, f"column {named_by!r}, {absent[0]}; {count}", next_step=step)
    for text in absent:
        request.notice(f"skipped: {text}")
    source.leave_out(missing)
    return source


def refuse_names(uri: str, path: Path, request: Request) -> None:
    """Raise InvalidData if a text column holds names of image files, which would be stored as text."""
    first = first_values(uri, path, _FIRST_ROWS) if request.columns is None else {}
    if any(isinstance(value, bytes) for values in first.values() for value in values):
        return
    for name, values in first.items():
        if name not in (request.label, request.group) and _are_image_names(values):
            cause = f"column {name!r} holds names of image files, such as {values[0]!r}, which would be stored as text"
            images_step = f"To store the images: {command(uri, _folder_of(uri, values[0]), request)}"
            raise InvalidData(uri, cause, next_step=f"{images_step}. To store the text: --columns {','.join(first)}")


def command(uri: str, folder: str, request: Request) -> str:
    """Return the command that converts the images of `folder` with the labels of the table at `uri`."""
    with storage.as_local_file(uri) as path:
        first = first_values(uri, path, _FIRST_ROWS)
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
    if not storage.is_remote(uri):
        root = storage.local_path(uri.rpartition("/")[0] or ".")
        for folder in [root, *sorted(path for path in root.iterdir() if path.is_dir())]:
            if (folder / name).is_file():
                return str(folder)
    return "DIR"


def _uris_by_name(folder: str) -> dict[str, str | None]:
    """Return the images below a folder by path, by name, and by either without the suffix."""
    uris: dict[str, str | None] = {}
    for file in images.list_folder(folder):
        path = PurePosixPath(file.path)
        for key in {file.path, path.name, file.stem, path.stem} if images.is_image(file.path) else ():
            # A name that two sub-folders have names no file; the path does.
            uris[key] = None if key in uris and key != file.path else file.uri
    return uris


def _find(uris: Mapping[str, str | None], name: object) -> str | None:
    return uris.get(str(name).removeprefix("./"))


def _path_column(uri: str, first: Mapping[str, list[Any]], files: Mapping[str, str | None], request: Request) -> str:
    """Return the column with the names of the images; `first` has the first values of each column."""
    if request.path_column is not None:
        check_columns(uri, "--path-column", [request.path_column], list(first))
        return request.path_column
    fitting = [name for name, values in first.items() if any(_find(files, value) for value in values)]
    # A class number may be the name of a file without its suffix.
    fitting = [name for name in fitting if _are_image_names(first[name])] or fitting
    if len(fitting) == 1:
        return fitting[0]
    mistake = f"{len(fitting) or 'no'} columns hold names of images in {request.images}"
    raise InvalidData(uri, mistake, expected=f"--path-column with one of {', '.join(map(repr, fitting or first))}")
