"""Folders of images or text files: sub-folders as classes, and pairs of folders."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import PurePosixPath

import numpy as np

from mptraining_api.problems import InvalidData
from mptraining_records.convert import images, labelled_images, text
from mptraining_records.convert.files import FileRows
from mptraining_records.convert.request import Request
from mptraining_records.tfrecord.features import LABELS, Feature
from mptraining_storage import storage

_TEXT_SUFFIX = ".txt"
_SPLITS = frozenset(("train", "training", "val", "valid", "validation", "test", "testing", "eval", "evaluation"))


def open_folder(uri: str, request: Request) -> FileRows:
    """Open a folder of images, or of .txt files if there are no images; its sub-folders are the classes."""
    listed = images.list_folder(uri)
    chosen, name, kind = [each for each in listed if images.is_image(each.path)], images.IMAGE, "images"
    if not chosen:
        chosen = [each for each in listed if each.path.endswith(_TEXT_SUFFIX) and len(each.path.split("/")) > 1]
        name, kind = text.TEXT, "text files"
    if not chosen:
        raise InvalidData(uri, "no image in this folder", expected="JPEG or PNG files, or sub-folders with .txt files")
    folders = sorted({each.path.partition("/")[0] for each in chosen if "/" in each.path})
    loose = [each.path for each in chosen if "/" not in each.path]
    if loose and folders:
        raise InvalidData(
            uri,
            f"{kind} beside the sub-folders, such as {loose[0]!r}",
            expected="every image in the sub-folder of its class",
        )
    _refuse_other_layouts(uri, request, folders, chosen, listed)
    if len(listed) > len(chosen):
        request.notice(f"{len(listed) - len(chosen)} files that are not {kind} are skipped")
    label = (request.label or "label") if folders else None
    numbers = {folder: number for number, folder in enumerate(folders)}
    labels = np.array([numbers[each.path.partition("/")[0]] for each in chosen]) if folders else None
    return FileRows(
        request,
        {name: [each.uri for each in chosen]},
        {name: partial(images.load, size=request.image_size) if name == images.IMAGE else text.load},
        values={label: labels} if label is not None and labels is not None else {},
        value_features=(Feature(name=label, dtype="int64"),) if label else (),
        label=label,
        classes=tuple(folders) if folders else None,
    )


def open_pairs(request: Request) -> FileRows:
    """Open folders of images whose files belong together by name; the label is one of them."""
    by_feature = {feature: _images_by_name(folder) for feature, folder in request.pairs.items()}
    if any(set(files) != set(next(iter(by_feature.values()))) for files in by_feature.values()):
        by_feature = {feature: _without_common_end(files) for feature, files in by_feature.items()}
    (first, files), *others = by_feature.items()
    for other, partners in others:
        for one, its, two, theirs in ((first, files, other, partners), (other, partners, first, files)):
            alone = sorted(set(its) - set(theirs))
            if alone:
                raise InvalidData(
                    f"--pairs {two}={request.pairs[two]}",
                    f"no image for {its[alone[0]].path!r} of {one!r}; {len(alone):,} of {len(its):,} have none",
                    expected="files of the same names, apart from the suffix",
                    next_step="Rename the files, or write a CSV of their names",
                )
    names = list(request.pairs)
    label = request.label or next((name for name in LABELS if name in names), names[-1])
    if label not in names:
        raise InvalidData("--label", repr(label), expected="one of " + ", ".join(map(repr, names)))
    return FileRows(
        request,
        {feature: [each[name].uri for name in sorted(files)] for feature, each in by_feature.items()},
        {name: partial(images.load, size=request.image_size, is_label=name == label) for name in names},
        label=label,
    )


def _images_by_name(folder: str) -> dict[str, images.ListedFile]:
    """Return the images of a folder by their path without the suffix."""
    chosen = [each for each in images.list_folder(folder) if images.is_image(each.path)]
    if not chosen:
        raise InvalidData(folder, "no image in this folder", expected="JPEG or PNG files")
    found = {_stem(each.path): each for each in chosen}
    if len(found) < len(chosen):
        twice = next(each.path for each in chosen if found[_stem(each.path)] is not each)
        raise InvalidData(folder, f"two images are called {_stem(twice)!r}", expected="a different name for each")
    return found


def _without_common_end(files: Mapping[str, images.ListedFile]) -> dict[str, images.ListedFile]:
    """Return the files by their names without the ending that all of them have, such as `_blurred`."""
    end = _common_end(files)
    return {name.removesuffix(end): file for name, file in files.items()} if len(files) > 1 else dict(files)


def _common_end(names: Iterable[str]) -> str:
    backwards = sorted(name[::-1] for name in names)
    first, last = backwards[0], backwards[-1]
    length = next((at for at, character in enumerate(first) if character != last[at]), len(first))
    return first[:length][::-1]


def _stem(path: str) -> str:
    return str(PurePosixPath(path).with_suffix(""))


def _refuse_other_layouts(
    uri: str, request: Request, folders: list[str], chosen: list[images.ListedFile], listed: list[images.ListedFile]
) -> None:
    """Raise InvalidData if the sub-folders do not look like classes, with the command for what they look like."""
    if len(folders) == 1:
        below = storage.join(uri, folders[0])
        tables = [each for each in listed if each.path.endswith((".csv", ".parquet")) and "/" not in each.path]
        deeper = any(len(each.path.split("/")) > 2 for each in chosen)
        step = f"For {'classes below it' if deeper else 'images without labels'}: {request.command(below)}"
        if tables:
            step = f"For labels in a table: {labelled_images.command(tables[0].uri, below, request)}"
        raise InvalidData(
            uri,
            f"all images are in one sub-folder, {folders[0]!r}, which would be the only class",
            expected="one sub-folder for each class",
            next_step=step,
        )
    if folders and all(folder.lower() in _SPLITS for folder in folders):
        commands = [request.command(storage.join(uri, folder), "--name", folder) for folder in folders]
        raise InvalidData(
            uri,
            f"the sub-folders {', '.join(map(repr, folders))} are called like splits and would be the classes",
            expected="one sub-folder for each class",
            next_step="Convert each split: " + ", ".join(commands),
        )
    if len(folders) == 2 and request.label is None:
        first, second = (
            {_stem(each.path.partition("/")[2]): each for each in chosen if each.path.startswith(f"{folder}/")}
            for folder in folders
        )
        if set(first) == set(second) or set(_without_common_end(first)) == set(_without_common_end(second)):
            places = [f"{feature}={storage.join(uri, folder)}" for feature, folder in _roles(folders)]
            raise InvalidData(
                uri,
                f"the images in {folders[0]!r} and {folders[1]!r} have the same names",
                expected="different names in two classes",
                next_step=f"For pairs: {request.command(None, '--pairs', *places)}. "
                f"For classes: {request.command(uri, '--label', 'label')}",
            )


_CLEAN = ("sharp", "clean", "target", "gt", "ground", "truth", "mask", "label", "high", "hr", "original", "output")


def _roles(folders: list[str]) -> list[tuple[str, str]]:
    """Return the two folders as input and target; a folder that is called like a target comes last."""
    ordered = sorted(folders, key=lambda folder: any(word in folder.lower() for word in _CLEAN))
    return [("input", ordered[0]), ("target", ordered[1])]
