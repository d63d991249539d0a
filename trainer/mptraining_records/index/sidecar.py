"""Sidecar files: the indexes of remote shards, stored in `.index/` of their folder, so that only one reader scans each.

A file has the indexes of one or many shards: a request for each of 100,000 short shards takes longer than their scan.
It has the payload lengths (offsets follow from them), the damaged end and the version of each shard; the index of
another version is ignored. A compressed shard has no lengths. Local files have no sidecar: a scan is cheap, and a
modification time is unreliable.

    b"MPTX3\\n" | JSON header | b"\\n" | payload lengths of all shards, int64 little-endian
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import google_crc32c
import numpy as np

from mptraining_api.problems import InvalidData, StorageUnavailable
from mptraining_records.index import shard_index
from mptraining_records.index.shard_index import Int64s, ShardIndex
from mptraining_records.tfrecord import framing
from mptraining_records.tfrecord.framing import BadRecord
from mptraining_storage import ranges, storage
from mptraining_storage.preconditions import StoredObject

_MAGIC = b"MPTX3\n"
_THREADS = 16
# A worker scans so much in a few seconds; then the others learn of it. An attempt that ends loses at most this.
_MOST_BYTES = 1000 << 20


def uri_of(shard_uri: str) -> str:
    """Return `folder/.index/shard` for `folder/shard`; in a separate folder no glob matches it as a shard."""
    folder, _, name = shard_uri.rpartition("/")
    return f"{folder}/.index/{name}"


def groups(shards: Iterable[ShardIndex]) -> Iterator[list[ShardIndex]]:
    """Yield the consecutive shards that one sidecar describes: those of one folder, of about `_MOST_BYTES`."""
    group: list[ShardIndex] = []
    size = 0
    for shard in shards:
        if group and (size >= _MOST_BYTES or _folder(shard.stored.uri) != _folder(group[0].stored.uri)):
            yield group
            group, size = [], 0
        group.append(shard)
        # The request for a short object takes as long.
        size += max(shard.stored.size, ranges.RANGE)
    if group:
        yield group


def save(*shards: ShardIndex) -> None:
    """Write one sidecar of these shards, which are in one folder."""
    plain = [np.zeros(0, "<i8") if shard.expanded else shard.lengths.astype("<i8") for shard in shards]
    lengths = np.concatenate(plain).tobytes()
    header = {"lengths_crc32c": google_crc32c.value(lengths), "shards": list(map(_entry, shards))}
    first = shards[0].stored
    # With the version, a file of many shards is not replaced when only the first of them was.
    uri = uri_of(first.uri) + (f".{first.version}" if len(shards) > 1 else "")
    storage.write(uri, b"".join((_MAGIC, json.dumps(header).encode(), b"\n", lengths)))


def _entry(shard: ShardIndex) -> dict[str, object]:
    stored = {"name": shard.stored.name, "version": shard.stored.version, "size": shard.stored.size}
    if shard.expanded:
        return stored
    return {**stored, "count": shard.count, "checksum": shard.checksum, "damage": shard.damage and shard.damage.cause}


class Sidecars:
    """The valid sidecars of some objects: `known` has the index of each by URI, None for a compressed one."""

    def __init__(self, objects: Iterable[StoredObject]) -> None:
        self._objects = {stored.uri: stored for stored in objects}
        self._loaded: set[StoredObject] = set()
        self.known: dict[str, ShardIndex | None] = {}

    def missing(self, objects: Iterable[StoredObject]) -> list[StoredObject]:
        """Return those of the objects that no sidecar describes."""
        return [stored for stored in objects if stored.uri not in self.known]

    def load(self) -> bool:
        """Load the files that were written since the last call; return whether they describe any further object."""
        before = len(self.known)
        folders = {_folder(stored.uri) for stored in self.missing(self._objects.values())}
        files = [file for folder in folders for file in self._list(folder) if file not in self._loaded]
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="sidecars") as pool:
            for file, content in zip(files, pool.map(_read, files), strict=True):
                if content:
                    self._loaded.add(file)
                # A file of another format, or a damaged one.
                with suppress(ValueError, LookupError, TypeError, AttributeError):
                    self._add(file, content)
        return len(self.known) > before

    def _list(self, folder: str) -> list[StoredObject]:
        try:
            return storage.list_objects(f"{folder}/.index")
        except InvalidData:
            # An account that may not list can read objects by their names.
            return [StoredObject(uri_of(uri), 0, "") for uri in self._objects if _folder(uri) == folder]

    def _add(self, file: StoredObject, content: bytes) -> None:
        header, _, lengths = content.removeprefix(_MAGIC).partition(b"\n")
        fields = json.loads(header)
        if not content.startswith(_MAGIC) or fields["lengths_crc32c"] != google_crc32c.value(lengths):
            return
        sizes = np.frombuffer(lengths, "<i8").astype(np.int64)
        folder, at = file.uri.rpartition("/.index/")[0], 0
        current: dict[str, ShardIndex | None] = {}
        for entry in fields["shards"]:
            count = entry.get("count", 0)
            stored = self._objects.get(f"{folder}/{entry['name']}")
            if stored is not None and (entry["version"], entry["size"]) == (stored.version, stored.size):
                index = _index(stored, sizes[at : at + count], entry) if "count" in entry else None
                if index or "count" not in entry:
                    current[stored.uri] = index
            at += count
        self.known |= current
        if not current and all(f"{folder}/{entry['name']}" in self._objects for entry in fields["shards"]):
            # It only describes other versions of these objects. Another worker may have deleted it.
            with suppress(InvalidData, StorageUnavailable):
                storage.delete(file.uri, version=file.version)


def _folder(uri: str) -> str:
    return uri.rpartition("/")[0]


def _read(file: StoredObject) -> bytes:
    """Return the content of a sidecar; empty if it does not exist any more."""
    try:
        return storage.read(file.uri)
    except InvalidData:
        return b""


def _index(stored: StoredObject, lengths: Int64s, entry: dict[str, Any]) -> ShardIndex | None:
    """Return the index of an object with these lengths; None if they do not add up to its size."""
    # A file may have invalid lengths with a correct sum, such as a huge one and its negative.
    if not 0 <= lengths.min(initial=0) <= lengths.max(initial=0) <= stored.size:
        return None
    end, cause = int(np.sum(lengths + framing.OVERHEAD)), entry["damage"]
    if end > stored.size or (end < stored.size) != bool(cause):
        return None
    damage = BadRecord(stored.uri, len(lengths), end, str(cause), stored.size - end) if cause else None
    return shard_index.from_lengths(stored, lengths, entry["checksum"], damage)
