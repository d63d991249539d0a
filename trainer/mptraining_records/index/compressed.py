"""Index of TFRecord files that are compressed as a whole, GZIP or ZLIB, by expanding each into a local file once.

A compressed file has no random access, which a shuffled order of records requires.
"""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from mptraining_api.problems import InvalidData, StorageUnavailable
from mptraining_records.index import scanner
from mptraining_records.index.shard_index import ShardIndex
from mptraining_records.tfrecord import framing
from mptraining_records.tfrecord.framing import BadRecord
from mptraining_storage import local, storage
from mptraining_storage.preconditions import StoredObject
from mptraining_storage.ranges import Traffic, windows

_READ = 1 << 18
_WRITE = 4 << 20
# 32 makes zlib detect GZIP and ZLIB headers; 15 accepts every window size.
_AUTO_DETECT = 32 + 15
_DAMAGED = "the compressed data is damaged"


def scan(stored: StoredObject, folder: Path | None = None, traffic: Traffic | None = None) -> ShardIndex:
    """Return the index of a compressed object, expanded into `folder` (default: one deleted when the process exits).

    A truncated or damaged stream yields the records before the damage, and the rest as one damaged record. Raises
    InvalidData if it has no TFRecords or was replaced since it was listed, StorageFull if the disk is full.
    """
    path = _new_folder(folder or _process_folder()) / stored.name
    damage = _expand(stored, path, traffic or Traffic())
    expanded = storage.stat(str(path))
    if damage and not expanded.size:
        raise InvalidData(stored.uri, f"neither a TFRecord file nor a readable GZIP or ZLIB file: {damage}")
    shard = scanner.scan(stored, expanded=expanded)
    if not damage or shard.damage is not None:
        return shard
    return replace(shard, damage=BadRecord(stored.uri, shard.count, expanded.size, damage, 0))


def _expand(stored: StoredObject, path: Path, traffic: Traffic) -> str:
    """Write the expanded content to `path`; returns the cause of damage, or an empty string."""
    damage = ""
    try:
        with local.atomic_write(path) as unfinished, unfinished.open("wb", buffering=_WRITE) as file:
            damage = _inflate(_pieces(stored, traffic), file)
    except StorageUnavailable as problem:
        if problem.where != str(path):
            raise
        raise type(problem)(
            stored.uri,
            f"no room to expand this compressed file: {problem.found} ({path.parent})",
            next_step="Give that disk more room (TMPDIR names another), or store the records uncompressed",
        ) from problem
    return damage


def _inflate(pieces: Iterator[bytes], file: BinaryIO) -> str:
    """Expand consecutive GZIP members with at most _WRITE bytes of output in memory; returns as `_expand`."""
    inflate = zlib.decompressobj(_AUTO_DETECT)
    for piece in pieces:
        rest = piece
        while rest:
            if inflate.eof:
                # Some writers pad the end of the file with zeros.
                rest = rest.lstrip(b"\0")
                if not rest:
                    break
                inflate = zlib.decompressobj(_AUTO_DETECT)
            before = inflate.copy()
            try:
                file.write(inflate.decompress(rest, _WRITE))
            except zlib.error:
                _write_before_damage(before, rest, file)
                return _DAMAGED
            rest = inflate.unused_data if inflate.eof else inflate.unconsumed_tail
    file.write(inflate.flush())
    return "" if inflate.eof else framing.TRUNCATED


def _write_before_damage(inflate: zlib._Decompress, piece: bytes, file: BinaryIO) -> None:
    # A failing call returns no output, so that only single bytes recover everything before the damage.
    for at in range(len(piece)):
        try:
            file.write(inflate.decompress(piece[at : at + 1]))
        except zlib.error:
            return


def _pieces(stored: StoredObject, traffic: Traffic) -> Iterator[bytes]:
    if storage.is_remote(stored.uri):
        contents: Iterator[bytes | memoryview] = (content for _, _, content in windows([stored], traffic))
    else:
        starts = range(0, stored.size, _READ)
        contents = (storage.read_range(stored.uri, start, _READ, version=stored.version) for start in starts)
    for content in contents:
        for at in range(0, len(content), _READ):
            yield bytes(content[at : at + _READ])


@functools.cache
def _process_folder() -> Path:
    folder = _new_folder(None)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _new_folder(parent: Path | None) -> Path:
    try:
        return Path(tempfile.mkdtemp(prefix="mptraining-expanded-", dir=parent))
    except OSError as error:
        raise InvalidData(
            str(parent or "TMPDIR"),
            f"no place to expand compressed files in: {error.strerror or error}",
            next_step="Name a folder with TMPDIR, or store the records uncompressed",
        ) from error
