"""Sidecar files: the index of a remote shard, stored in `.index/` of its folder, so that only one reader scans it.

A sidecar has the payload lengths (offsets follow from them), the damaged end and the version of its object; a sidecar
of another version is ignored. Local files have none: a scan is cheap, and a modification time is unreliable.

    b"MPTX2\\n" | JSON header | b"\\n" | payload lengths, int64 little-endian
"""

from __future__ import annotations

import json
from collections.abc import Sequence
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

_MAGIC = b"MPTX2\n"
_THREADS = 16


def uri_of(shard_uri: str) -> str:
    """Return `folder/.index/shard` for `folder/shard`; in a separate folder no glob matches it as a shard."""
    folder, _, name = shard_uri.rpartition("/")
    return f"{folder}/.index/{name}"


def save(shard: ShardIndex) -> None:
    """Write the sidecar of one shard, which must not be compressed."""
    lengths = shard.lengths.astype("<i8").tobytes()
    header = {
        "version": shard.object.version,
        "size": shard.object.size,
        "checksum": shard.checksum,
        "damage": shard.damage and shard.damage.cause,
        "lengths_crc32c": google_crc32c.value(lengths),
    }
    storage.write(uri_of(shard.object.uri), b"".join((_MAGIC, json.dumps(header).encode(), b"\n", lengths)))


def load(object: StoredObject) -> ShardIndex | None:
    """Load the index of exactly this version of the object; None if there is none or it is invalid."""
    try:
        uri = uri_of(object.uri)
        content = ranges.fetch_whole(uri) if storage.is_remote(uri) else storage.read(uri)
    except InvalidData:
        return None
    header, _, lengths = content.removeprefix(_MAGIC).partition(b"\n")
    try:
        fields = json.loads(header)
        sizes = np.frombuffer(lengths, "<i8").astype(np.int64)
        end, cause = int(np.sum(sizes + framing.OVERHEAD)), fields["damage"]
        is_valid = (
            content.startswith(_MAGIC)
            and (fields["version"], fields["size"]) == (object.version, object.size)
            and fields["lengths_crc32c"] == google_crc32c.value(lengths)
            # A sidecar may have invalid lengths with a correct sum, such as a huge one and its negative.
            and 0 <= sizes.min(initial=0) <= sizes.max(initial=0) <= object.size
            and (end < object.size if cause else end == object.size)
        )
        if not is_valid:
            return None
        damage = BadRecord(object.uri, len(sizes), end, str(cause), object.size - end) if cause else None
        return shard_index.from_lengths(object, sizes, fields["checksum"], damage)
    except (ValueError, LookupError, TypeError):
        return None


def load_all(objects: Sequence[StoredObject]) -> dict[str, ShardIndex]:
    """Load the sidecars of many objects in parallel; returns the valid ones by URI."""
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="sidecars") as pool:
        return {shard.object.uri: shard for shard in pool.map(load, objects) if shard is not None}
