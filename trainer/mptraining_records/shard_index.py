"""Where every record of one object lies: its frames followed from the first to the last, lengths checked."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from dataclasses import dataclass

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from mptraining_records import framing, storage
from mptraining_records.framing import BadRecord
from mptraining_records.storage import StoredObject

Int64s = NDArray[np.int64]
WINDOW = 8 << 20


@dataclass(frozen=True, eq=False)
class ShardIndex:
    """The records of one object, in file order: payload offsets and lengths in bytes, shape [records] each.

    `checksum` is the CRC32C over all lengths and all stored payload checksums: it changes with any record,
    and stays when the object is copied elsewhere.
    """

    object: StoredObject
    offsets: Int64s
    lengths: Int64s
    checksum: int

    @property
    def count(self) -> int:
        return len(self.lengths)


def scan(object: StoredObject) -> ShardIndex:
    """Reads the frames of one object and checks every length's CRC (payloads are checked when they are read).

    A local file is mapped and only the frames are touched; a remote one is streamed in 8 MiB ranges, which
    leave out what a longer record fills. Raises InvalidData at the first damaged frame.
    """
    shard, bad = walk(object)
    if bad is not None:
        raise bad.problem()
    return shard


def walk(object: StoredObject) -> tuple[ShardIndex, BadRecord | None]:
    """As `scan`, but returns the records before the first damaged frame, and that damage."""
    if object.size == 0:
        return _shard(object, [], []), None
    if storage.is_remote(object.uri):
        return _walk(object, lambda at: storage.read_range(object.uri, at, WINDOW, version=object.version))
    with storage.mapped(object) as content:
        return _walk(object, lambda _: content, whole=True)


def _walk(
    object: StoredObject, fetch: Callable[[int], bytes | mmap.mmap], *, whole: bool = False
) -> tuple[ShardIndex, BadRecord | None]:
    """Follows the frames through windows of the object: `fetch(at)` gives the bytes from `at` onwards."""
    size = object.size
    content, start = fetch(0), 0
    end = size if whole else len(content)
    framing.refuse_foreign(object.uri, content[: framing.HEADER])
    lengths: list[int] = []
    checksums: list[int] = []
    at = 0
    unpack_header, unpack_footer = framing.header_format.unpack_from, framing.footer_format.unpack_from
    crc, mask = google_crc32c.value, framing.masked_crc_of
    while at < size:
        if at + framing.HEADER > size:
            return _shard(object, lengths, checksums), _bad(object, lengths, at, framing.TRUNCATED)
        if at + framing.HEADER > end:
            content, start = fetch(at), at
            end = start + len(content)
        length, stored = unpack_header(content, at - start)
        if stored != mask(crc(content[at - start : at - start + 8])):
            return _shard(object, lengths, checksums), _bad(object, lengths, at, framing.BAD_LENGTH)
        footer = at + framing.HEADER + length
        if footer + framing.FOOTER > size:
            return _shard(object, lengths, checksums), _bad(object, lengths, at, framing.TRUNCATED)
        if footer + framing.FOOTER > end:
            content, start = fetch(footer), footer
            end = start + len(content)
        lengths.append(length)
        checksums.append(unpack_footer(content, footer - start)[0])
        at = footer + framing.FOOTER
    return _shard(object, lengths, checksums), None


def _bad(object: StoredObject, lengths: list[int], at: int, cause: str) -> BadRecord:
    return BadRecord(object.uri, len(lengths), at, cause)


def _shard(object: StoredObject, lengths: list[int], checksums: list[int]) -> ShardIndex:
    sizes = np.array(lengths, np.int64)
    return from_lengths(object, sizes, content_checksum(sizes, np.array(checksums, np.uint32)))


def from_lengths(object: StoredObject, lengths: Int64s, checksum: int) -> ShardIndex:
    """The index of an object whose payload lengths are known: frames follow each other without gaps."""
    ends = np.cumsum(lengths + framing.OVERHEAD)
    return ShardIndex(object, ends - lengths - framing.FOOTER, lengths, checksum)


def content_checksum(lengths: Int64s, payload_checksums: NDArray[np.uint32]) -> int:
    """CRC32C over the lengths and the stored payload checksums, both in little-endian order."""
    crc: int = google_crc32c.value(lengths.astype("<i8").tobytes())
    return int(google_crc32c.extend(crc, payload_checksums.astype("<u4").tobytes()))
