"""Array files of a checkpoint: reading and writing with checksums, large files in parts.

model.safetensors  model-part-1.safetensors  model-part-2.safetensors  optimizer.safetensors  …
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from mptraining_api.model import Model
from mptraining_storage import local, storage

# One stream to a bucket does not use the network's bandwidth, so larger files are split and uploaded in parallel.
PART_BYTES = 128 << 20
_PART, _UNFINISHED = "-part-", ".unfinished-"
# safetensors reports an error of the operating system as text.
_OS_ERROR = re.compile(r"\(os error (\d+)\)")
_CUT = re.compile(r"(.*) \[rows from \d{12}\]", re.DOTALL)


class FileState(Model):
    bytes: int
    crc32c: int


def write(folder: Path, arrays: Mapping[str, dict[str, Any]]) -> dict[str, FileState]:
    """Write the named tensors of each file into a local folder; return sizes and checksums by file name.

    Raise StorageFull if the disk is full, StorageUnavailable if it fails.
    """
    files = {}
    for name, tensors in split_into_parts(arrays).items():
        path = folder / f"{name}.safetensors"
        with local.translate_errors(path):
            _save(tensors, path)
        files[path.name] = FileState(bytes=path.stat().st_size, crc32c=_crc32c(path))
    return files


def _save(tensors: dict[str, Any], path: Path) -> None:
    try:
        save_file(tensors, path)
    except SafetensorError as error:
        number = _OS_ERROR.search(str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from error


def read(uri: str, files: Mapping[str, FileState]) -> dict[str, list[Any]]:
    """Return the arrays below `uri` in the order of their names, by file. Raise ValueError for a damaged file."""
    tensors: dict[str, dict[str, Any]] = {}
    for name, expected in files.items():
        with storage.as_local_file(storage.join(uri, name)) as path:
            if path.stat().st_size != expected.bytes or _crc32c(path) != expected.crc32c:
                raise ValueError(f"{name} is damaged: its checksum does not match")
            try:
                loaded = load_file(path)
            # A dtype that NumPy lacks is a KeyError.
            except (SafetensorError, KeyError, ValueError, OverflowError) as error:
                raise ValueError(f"{name} is damaged: {error}") from error
            tensors.setdefault(path.stem.partition(_PART)[0], {}).update(loaded)
    try:
        return {name: join_parts(named) for name, named in tensors.items()}
    except ValueError as error:
        raise ValueError(f"{', '.join(files)}: parts that do not fit together: {error}") from error


def scratch_folder(folder: str) -> tempfile.TemporaryDirectory[str]:
    """Return a scratch folder for files of `folder`: on the same disk if it is local, so that they can be renamed."""
    if storage.is_remote(folder):
        return tempfile.TemporaryDirectory(prefix="mptraining-")
    return tempfile.TemporaryDirectory(prefix=_UNFINISHED, dir=storage.local_folder(folder), ignore_cleanup_errors=True)


def delete_unfinished(folder: str) -> None:
    """Remove the unfinished files of killed writers below `folder`."""
    if not storage.is_remote(folder):
        for unfinished in storage.local_path(folder).glob(f"{_UNFINISHED}*"):
            shutil.rmtree(unfinished, ignore_errors=True)


def split_into_parts(arrays: Mapping[str, dict[str, Any]], limit: int | None = None) -> dict[str, dict[str, Any]]:
    """Return the same tensors by file; no file exceeds `limit` bytes (default PART_BYTES) unless a single row does.

    A larger tensor, such as an embedding table, is split along its first dimension; `join_parts` concatenates it.
    """
    limit = PART_BYTES if limit is None else limit
    parts: dict[str, dict[str, Any]] = {}
    for name, tensors in arrays.items():
        number, part, size = 0, parts.setdefault(name, {}), 0
        for key, array in tensors.items():
            for piece_key, piece in _cut(key, array, limit):
                if part and size + piece.nbytes > limit:
                    number, size = number + 1, 0
                    part = parts[f"{name}{_PART}{number}"] = {}
                part[piece_key] = piece
                size += piece.nbytes
    return parts


def join_parts(tensors: Mapping[str, Any]) -> list[Any]:
    """Return the tensors of one file's parts in the order of their keys, split tensors concatenated."""
    whole: dict[str, list[Any]] = {}
    for key in sorted(tensors):
        cut = _CUT.fullmatch(key)
        whole.setdefault(cut[1] if cut else key, []).append(tensors[key])
    return [pieces[0] if len(pieces) == 1 else np.concatenate(pieces) for pieces in whole.values()]


def _cut(key: str, array: Any, limit: int) -> Iterator[tuple[str, Any]]:
    if array.nbytes <= limit or array.ndim == 0 or len(array) == 1:
        yield key, array
        return
    rows = max(1, limit // (array.nbytes // len(array)))
    for first in range(0, len(array), rows):
        yield f"{key} [rows from {first:012d}]", array[first : first + rows]


def _crc32c(path: Path) -> int:
    checksum = google_crc32c.Checksum()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            checksum.update(chunk)
    return int.from_bytes(checksum.digest(), "big")
