"""Index of one object: offset and length of every record, damaged parts, and a checksum of the content."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from mptraining_records.storage.storage import StoredObject
from mptraining_records.tfrecord import framing
from mptraining_records.tfrecord.framing import BadRecord

Int64s = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class ShardIndex:
    """The records of one object, in file order: payload offsets and lengths in bytes, shape [records] each.

    `damaged` are byte ranges without valid frames, which have no row. `checksum` is the CRC32C over all lengths, all
    stored payload checksums and the positions of `damaged`: it changes with any record, but not with the object's
    location. `expanded` is the local file that a compressed object was expanded into.
    """

    object: StoredObject
    offsets: Int64s
    lengths: Int64s
    checksum: int
    damaged: tuple[BadRecord, ...] = ()
    expanded: StoredObject | None = None

    @property
    def count(self) -> int:
        return len(self.lengths)

    @property
    def readable(self) -> StoredObject:
        """The object whose bytes `offsets` refer to; messages and the fingerprint name `object`."""
        return self.expanded or self.object

    def bad_record(self, row: int, cause: str = framing.BAD_PAYLOAD) -> BadRecord:
        """Return the record of this row as a BadRecord; its number also counts the `damaged` ones before it."""
        begin = int(self.offsets[row]) - framing.HEADER
        before = sum(each.offset < begin for each in self.damaged)
        length = int(self.lengths[row]) + framing.OVERHEAD
        return BadRecord(self.object.uri, row + before, begin, cause, length)


def from_lengths(object: StoredObject, lengths: Int64s, checksum: int, damaged: Sequence[BadRecord] = ()) -> ShardIndex:
    """Return the index of an object with these payload lengths; its frames are contiguous except for `damaged`."""
    ends = np.cumsum(lengths + framing.OVERHEAD)
    begins = ends - lengths - framing.FOOTER
    passed = 0
    for each in damaged:
        begins[np.searchsorted(ends, each.offset - passed, side="right") :] += each.length
        passed += each.length
    return ShardIndex(object, begins, lengths, checksum, tuple(damaged))


def content_checksum(lengths: Int64s, payload_checksums: NDArray[np.uint32], damaged: Sequence[BadRecord] = ()) -> int:
    """Return the CRC32C over the lengths, the stored payload checksums and the damaged ranges, all little-endian."""
    crc: int = google_crc32c.value(lengths.astype("<i8").tobytes())
    crc = google_crc32c.extend(crc, payload_checksums.astype("<u4").tobytes())
    places = np.array([(each.offset, each.length) for each in damaged], "<i8")
    return int(google_crc32c.extend(crc, places.tobytes()))
