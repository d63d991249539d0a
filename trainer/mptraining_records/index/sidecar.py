"""Sidecar files: the indexes of remote shards, stored in `.index/` of their folder, so that only one reader scans each.

A file has the indexes of one or many shards: a request for each of 100,000 short shards takes longer than their scan.
It has the payload lengths (offsets follow from them), the damaged end and the version of each shard; the index of
another version is ignored. Of a compressed shard it says only that it is one. Local files have no sidecar: a scan is
cheap, and a modification time is unreliable.

    b"MPTX3\\n" | JSON header | b"\\n" | payload lengths of all shards, int64 little-endian
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

import google_crc32c
import numpy as np

from mptraining_api.problems import InvalidData
from mptraining_records.index import shard_index
from mptraining_records.index.shard_index import ShardIndex
from mptraining_records.tfrecord import framing
from mptraining_records.tfrecord.framing import BadRecord
from mptraining_storage import ranges, storage
from mptraining_storage.preconditions import StoredObject

_MAGIC = b"MPTX3\n"
_THREADS = 16


def uri_of(shard_uri: str) -> str:
    """Return `folder/.index/shard` for `folder/shard`; in a separate folder no glob matches it as a shard."""
    folder, _, name = shard_uri.rpartition("/")
    return f"{folder}/.index/{name}"


def save(*shards: ShardIndex) -> None:
    """Write one sidecar of these shards, which are in one folder."""
    plain = [np.zeros(0, "<i8") if shard.expanded else shard.lengths.astype("<i8") for shard in shards]
    lengths = np.concatenate(plain).tobytes()
    header = {"lengths_crc32c": google_crc32c.value(lengths), "shards": list(map(_entry, shards))}
    first = shards[0].object
    # With the version, a file of many shards is not replaced when only the first of them was.
    uri = uri_of(first.uri) + (f".{first.version}" if len(shards) > 1 else "")
    storage.write(uri, b"".join((_MAGIC, json.dumps(header).encode(), b"\n", lengths)))


def _entry(shard: ShardIndex) -> dict[str, object]:
    stored = {"name": shard.object.name, "version": shard.object.version, "size": shard.object.size}
    if shard.expanded:
        return {**stored, "compressed": True}
    damage = shard.damage and shard.damage.cause
    return {**stored, "count": shard.count, "checksum": shard.checksum, "damage": damage}


def load(stored: StoredObject) -> ShardIndex | None:
    """Load the index of exactly this version of the object; None if there is none or it is invalid."""
    sidecars = Sidecars([stored])
    sidecars.load()
    return sidecars.shards.get(stored.uri)


class Sidecars:
    """The valid indexes of some objects by URI, `shards`, and those objects that are `compressed`.

    `outdated` are the files that only have indexes of other versions of these objects.
    """

    def __init__(self, objects: Iterable[StoredObject]) -> None:
        self._objects = {stored.uri: stored for stored in objects}
        self._loaded: set[StoredObject] = set()
        self.shards: dict[str, ShardIndex] = {}
        self.compressed: set[str] = set()
        self.outdated: set[StoredObject] = set()

    def missing(self, objects: Iterable[StoredObject]) -> list[StoredObject]:
        """Return those of the objects of which nothing is known."""
        return [stored for stored in objects if stored.uri not in self.shards and stored.uri not in self.compressed]

    def load(self) -> bool:
        """Load the files that were written since the last call; return whether they have any new index."""
        before = len(self.shards) + len(self.compressed)
        folders = {stored.uri.rpartition("/")[0] for stored in self.missing(self._objects.values())}
        files = [file for folder in folders for file in self._list(folder) if file not in self._loaded]
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="sidecars") as pool:
            for file, content in zip(files, pool.map(_read, [file.uri for file in files]), strict=True):
                self._loaded.add(file)
                try:
                    entries = list(self._entries(file.uri, content))
                except (ValueError, LookupError, TypeError, AttributeError):
                    continue
                self.shards |= {shard.object.uri: shard for _, shard in entries if shard}
                uris = {uri for uri, _ in entries}
                if uris <= self._objects.keys() and not uris & (self.shards.keys() | self.compressed):
                    self.outdated.add(file)
        return len(self.shards) + len(self.compressed) > before

    def _list(self, folder: str) -> list[StoredObject]:
        try:
            return storage.list_objects(f"{folder}/.index")
        except InvalidData:
            # An account that may not list can read objects by their names.
            inside = (uri for uri in self._objects if uri.rpartition("/")[0] == folder)
            return [StoredObject(uri_of(uri), 0, "") for uri in inside]

    def _entries(self, uri: str, content: bytes) -> Iterator[tuple[str, ShardIndex | None]]:
        """Yield the URI of each shard in a file and its index, None without a valid one for these objects."""
        header, _, lengths = content.removeprefix(_MAGIC).partition(b"\n")
        fields = json.loads(header)
        if not content.startswith(_MAGIC) or fields["lengths_crc32c"] != google_crc32c.value(lengths):
            raise ValueError(uri)
        sizes = np.frombuffer(lengths, "<i8").astype(np.int64)
        folder, at = uri.rpartition("/.index/")[0], 0
        for entry in fields["shards"]:
            stored = self._objects.get(f"{folder}/{entry['name']}")
            is_current = stored is not None and (entry["version"], entry["size"]) == (stored.version, stored.size)
            index = None
            if "compressed" in entry:
                self.compressed |= {stored.uri} if stored and is_current else set()
            else:
                part = sizes[at : at + entry["count"]]
                at += entry["count"]
                index = _index(stored, part, entry["checksum"], entry["damage"]) if stored and is_current else None
            yield f"{folder}/{entry['name']}", index


def _read(uri: str) -> bytes:
    """Return the content of a sidecar; empty if it does not exist any more."""
    try:
        return ranges.fetch_whole(uri) if storage.is_remote(uri) else storage.read(uri)
    except InvalidData:
        return b""


def _index(stored: StoredObject, lengths: shard_index.Int64s, checksum: int, cause: str | None) -> ShardIndex | None:
    """Return the index of an object with these lengths; None if they do not add up to its size."""
    # A file may have invalid lengths with a correct sum, such as a huge one and its negative.
    if not 0 <= lengths.min(initial=0) <= lengths.max(initial=0) <= stored.size:
        return None
    end = int(np.sum(lengths + framing.OVERHEAD))
    if end > stored.size or (end < stored.size) != bool(cause):
        return None
    damage = BadRecord(stored.uri, len(lengths), end, str(cause), stored.size - end) if cause else None
    return shard_index.from_lengths(stored, lengths, checksum, damage)
