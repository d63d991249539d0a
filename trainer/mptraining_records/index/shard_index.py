"""Index of one object: offset and length of every record, its damaged end, and a checksum of the content."""

from __future__ import annotations

from dataclasses import dataclass

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from mptraining_records.tfrecord import framing
from mptraining_records.tfrecord.framing import BadRecord
from mptraining_storage.preconditions import StoredObject

Int64s = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class ShardIndex:
    """The records of one object, in file order: payload offsets and lengths in bytes, shape [records] each.

    `damage` is the rest of the object behind a damaged frame, which has no row. `checksum` is the CRC32C over all
    lengths, all stored payload checksums and the position of `damage`: it changes with any record, but not with the
    object's location. `expanded` is the local file that a compressed object was expanded into.
    """

    stored: StoredObject
    offsets: Int64s
    lengths: Int64s
    checksum: int
    damage: BadRecord | None = None
    expanded: StoredObject | None = None

    @property
    def count(self) -> int:
        return len(self.lengths)

    @property
    def readable(self) -> StoredObject:
        """The object whose bytes `offsets` refer to; messages and the fingerprint name `stored`."""
        return self.expanded or self.stored

    def bad_record(self, row: int, cause: str = framing.BAD_PAYLOAD) -> BadRecord:
        """Return the record of this row as a BadRecord."""
        begin = int(self.offsets[row]) - framing.HEADER
        return BadRecord(self.stored.uri, row, begin, cause, int(self.lengths[row]) + framing.OVERHEAD)


def from_lengths(stored: StoredObject, lengths: Int64s, checksum: int, damage: BadRecord | None = None) -> ShardIndex:
    """Return the index of an object with these payload lengths, whose frames are contiguous."""
    offsets = np.cumsum(lengths + framing.OVERHEAD) - lengths - framing.FOOTER
    return ShardIndex(stored, offsets, lengths, checksum, damage)


def content_checksum(lengths: Int64s, payload_checksums: NDArray[np.uint32], damage: BadRecord | None = None) -> int:
    """Return the CRC32C over the lengths, the stored payload checksums and the damaged range, all little-endian."""
    crc: int = google_crc32c.value(lengths.astype("<i8").tobytes())
    crc = google_crc32c.extend(crc, payload_checksums.astype("<u4").tobytes())
    damaged = np.array([damage.offset, damage.length] if damage else [], "<i8")
    return int(google_crc32c.extend(crc, damaged.tobytes()))
