"""Folders of images or text files: sub-folders as classes, and pairs of folders."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from mptraining_api.problems import InvalidData
from mptraining_records.convert import images, named_images
from mptraining_records.convert.arrow_files import TEXT, utf8
from mptraining_records.convert.images import Content, ListedFile
from mptraining_records.convert.request import Request
from mptraining_records.convert.table import FileColumn, Table
from mptraining_records.tfrecord.features import LABELS
from mptraining_storage import storage

_TARGETS = ("sharp", "clean", "target", "gt", "ground", "truth", "mask", "label", "high", "hr", "original", "output")
_SPLITS = frozenset(("train", "training", "val", "valid", "validation", "test", "testing", "eval", "evaluation"))


def open_folder(uri: str, request: Request) -> Table:
    """Open a folder of images, or of .txt files if there are no images; its sub-folders are the classes."""
    import pyarrow as pa

    listed = images.list_folder(uri)
    chosen, name, kind = [file for file in listed if images.is_image(file.path)], images.IMAGE, "images"
    if not chosen:
        chosen = [file for file in listed if file.path.endswith(".txt") and "/" in file.path]
        name, kind = TEXT, "text files"
    if not chosen:
        raise InvalidData(uri, "no image in this folder", expected="JPEG or PNG files, or sub-folders with .txt files")
    folders = sorted({file.folder for file in chosen} - {""})
    loose = [file.path for file in chosen if not file.folder]
    if loose and folders:
        mistake = f"{kind} beside the sub-folders, such as {loose[0]!r}"
        raise InvalidData(uri, mistake, expected="every image in the sub-folder of its class")
    _refuse_other_layouts(uri, request, folders, chosen, listed)
    if len(listed) > len(chosen):
        request.notice(f"{len(listed) - len(chosen)} files that are not {kind} are skipped")
    label = (request.label or "label") if folders else None
    columns = {name: [file.uri for file in chosen]} | ({label: [file.folder for file in chosen]} if label else {})
    load = partial(images.load, size=request.image_size) if name == images.IMAGE else _load_text
    return _table(uri, pa.table(columns), replace(request, label=label), {name: load})


def _load_text(uri: str) -> Content:
    content = storage.read(uri)
    utf8(uri, content)
    return Content(content)


def open_pairs(request: Request) -> Table:
    """Open folders of images whose files belong together by name; the label is one of them."""
    import pyarrow as pa

    by_feature = {feature: _images_by_name(folder) for feature, folder in request.pairs.items()}
    if any(set(files) != set(next(iter(by_feature.values()))) for files in by_feature.values()):
        by_feature = {feature: _without_common_end(files) for feature, files in by_feature.items()}
    names = list(by_feature)
    for partner in names[1:]:
        for feature, other in ((names[0], partner), (partner, names[0])):
            files = by_feature[feature]
            alone = sorted(set(files) - set(by_feature[other]))
            if alone:
                first, count = files[alone[0]].path, f"{len(alone):,} of {len(files):,}"
                raise InvalidData(
                    f"--pairs {other}={request.pairs[other]}",
                    f"no image for {first!r} of {feature!r}; {count} have none",
                    expected="files of the same names, apart from the suffix",
                    next_step="Rename the files, or write a CSV of their names",
                )
    label = request.label or next((name for name in LABELS if name in names), names[-1])
    if label not in names:
        raise InvalidData("--label", repr(label), expected="one of " + ", ".join(map(repr, names)))
    columns = {feature: [files[name].uri for name in sorted(files)] for feature, files in by_feature.items()}
    loads = {name: partial(images.load, size=request.image_size, is_label=name == label) for name in names}
    return _table("--pairs", pa.table(columns), replace(request, label=label), loads)


def _table(uri: str, columns: Any, request: Request, loads: Mapping[str, Callable[[str], Content]]) -> Table:
    if request.group is not None:
        mistake, expected = f"{request.group!r}: these files have no columns", "a table with a column of that name"
        step = "Write a CSV of names, labels and groups, and convert it with --images"
        raise InvalidData("--group", mistake, expected=expected, next_step=step)
    files = {name: FileColumn(name, load) for name, load in loads.items()}
    return Table(uri, columns, replace(request, columns=None), files=files)


def _images_by_name(folder: str) -> dict[str, ListedFile]:
    """Return the images of a folder by their path without the suffix."""
    chosen = [file for file in images.list_folder(folder) if images.is_image(file.path)]
    if not chosen:
        raise InvalidData(folder, "no image in this folder", expected="JPEG or PNG files")
    by_name = {file.stem: file for file in chosen}
    if len(by_name) < len(chosen):
        twice = next(file.stem for file in chosen if by_name[file.stem] is not file)
        raise InvalidData(folder, f"two images are called {twice!r}", expected="a different name for each")
    return by_name


def _without_common_end(files: Mapping[str, ListedFile]) -> dict[str, ListedFile]:
    """Return the files by their names without the ending that all of them have, such as `_blurred`."""
    # Characters, not the parts of a path.
    length = len(os.path.commonprefix([name[::-1] for name in files])) if len(files) > 1 else 0  # noqa: RUF071
    return {name[: len(name) - length]: file for name, file in files.items()}


def _refuse_other_layouts(
    uri: str, request: Request, folders: Sequence[str], chosen: Sequence[ListedFile], listed: Sequence[ListedFile]
) -> None:
    """Raise InvalidData if the sub-folders do not look like classes, with the command for what they look like."""
    expected = "one sub-folder for each class"
    if len(folders) == 1:
        below = storage.join(uri, folders[0])
        tables = [file for file in listed if file.path.endswith((".csv", ".parquet")) and not file.folder]
        kind = "classes below it" if any(file.path.count("/") > 1 for file in chosen) else "images without labels"
        step = f"For {kind}: {request.command(below)}"
        if tables:
            step = f"For labels in a table: {named_images.command(tables[0].uri, below, request)}"
        mistake = f"all images are in one sub-folder, {folders[0]!r}, which would be the only class"
        raise InvalidData(uri, mistake, expected=expected, next_step=step)
    if folders and all(folder.lower() in _SPLITS for folder in folders):
        commands = [request.command(storage.join(uri, folder), "--name", folder) for folder in folders]
        mistake = f"the sub-folders {', '.join(map(repr, folders))} are called like splits and would be the classes"
        raise InvalidData(uri, mistake, expected=expected, next_step=f"Convert each split: {', '.join(commands)}")
    if len(folders) == 2 and request.label is None:
        first, second = (
            {file.stem.partition("/")[2]: file for file in chosen if file.folder == name} for name in folders
        )
        if set(first) == set(second) or set(_without_common_end(first)) == set(_without_common_end(second)):
            # A folder that is called like a target comes last.
            ordered = sorted(folders, key=lambda folder: any(word in folder.lower() for word in _TARGETS))
            places = [
                f"{role}={storage.join(uri, name)}" for role, name in zip(("input", "target"), ordered, strict=True)
            ]
            raise InvalidData(
                uri,
                f"the images in {folders[0]!r} and {folders[1]!r} have the same names",
                expected="different names in two classes",
                next_step=f"For pairs: {request.command(None, '--pairs', *places)}. "
                f"For classes: {request.command(uri, '--label', 'label')}",
            )
