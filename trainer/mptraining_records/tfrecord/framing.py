"""TFRecord framing: the frame of one record, its checksums, and errors of damaged and foreign files.

    uint64 length | uint32 masked CRC32C of those 8 bytes | payload | uint32 masked CRC32C of the payload

All numbers are little-endian. Source: tensorflow/core/lib/io/record_writer.h and tensorflow/core/lib/hash/crc32c.h.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from mptraining_api.problems import InvalidData

HEADER = 12
FOOTER = 4
OVERHEAD = HEADER + FOOTER
header_format = struct.Struct("<QI")
footer_format = struct.Struct("<I")

BAD_LENGTH = "the length's checksum is wrong, so that no record behind it can be found"
BAD_PAYLOAD = "the payload's checksum is wrong"
TRUNCATED = "the file ends inside the record"

MASK_DELTA = 0xA282EAD8
_FOREIGN = {
    b"PAR1": "a Parquet file",
    b"PK\x03\x04": "a ZIP or NumPy .npz file",
    b"\x93NUMPY": "a NumPy file",
    b"\xff\xd8\xff": "a JPEG image",
    b"\x89PNG": "a PNG image",
}


@dataclass(frozen=True)
class BadRecord:
    """One damaged record: its number within the object, the offset of its first byte, and the cause.

    `length` is its number of bytes in the object, frame included. If the frame cannot be followed, these are all bytes
    up to the end of the object, which count as one record. Offsets and lengths in a compressed file count decompressed
    bytes.
    """

    uri: str
    record: int
    offset: int
    cause: str
    length: int

    def problem(self) -> InvalidData:
        """Return the damage as an error for the user."""
        return InvalidData(
            self.uri,
            f"record {self.record} at byte {self.offset} is damaged: {self.cause}",
            next_step="Write the file again, see `mptj records verify`, or set data.badRecords.action: Skip",
        )


class CompressedFile(InvalidData):
    """The file is GZIP or ZLIB compressed; only `mptraining_records.index.compressed` reads it."""


def masked_crc(data: bytes) -> int:
    """Return the CRC32C of `data` as TFRecord stores it: rotated right by 15 bits, plus a constant."""
    return masked_crc_of(google_crc32c.value(data))


def masked_crc_of(crc: int) -> int:
    """Return the stored form of a CRC32C."""
    return (((crc >> 15) | (crc << 17)) + MASK_DELTA) & 0xFFFFFFFF


def unmask_footers(content: NDArray[np.uint8], footers: NDArray[np.int64]) -> NDArray[np.uint32]:
    """Return the CRC32Cs of the footers at the offsets `footers` (shape [n]): the inverse of `masked_crc_of`."""
    stored = content[footers[:, None] + np.arange(FOOTER)].view("<u4").ravel() - np.uint32(MASK_DELTA)
    crcs: NDArray[np.uint32] = stored >> np.uint32(17) | stored << np.uint32(15)
    return crcs


def encode(record: bytes) -> bytes:
    """Return the record with its frame, `len(record) + 16` bytes."""
    length = struct.pack("<Q", len(record))
    return b"".join((length, footer_format.pack(masked_crc(length)), record, footer_format.pack(masked_crc(record))))


def is_header(header: bytes) -> bool:
    """Return whether these 12 bytes are a length with a valid checksum."""
    return len(header) == HEADER and header_format.unpack(header)[1] == masked_crc(header[:8])


def refuse_foreign(uri: str, head: bytes) -> None:
    """Raise InvalidData if a file that begins with `head` (its first 12 bytes) is not a TFRecord file."""
    if is_header(head[:HEADER]) or not head:
        return
    refuse_known(uri, head)
    raise _foreign(uri, f"begins {head[:8]!r}")


def refuse_known(uri: str, head: bytes) -> None:
    """Raise InvalidData if a file that begins with `head` has another known format.

    Raises CompressedFile if it may be a compressed TFRecord file.
    """
    if head[:2] == b"\x1f\x8b" or _is_zlib(head):
        raise CompressedFile(
            uri,
            "the file is compressed (GZIP or ZLIB)",
            expected="uncompressed TFRecords, which can be read from the middle",
            next_step="Decompress it (`gunzip`, or write it without TFRecordOptions), then start again",
        )
    kind = next((name for magic, name in _FOREIGN.items() if head.startswith(magic)), None)
    if kind is not None:
        raise _foreign(uri, kind)


def _foreign(uri: str, kind: str) -> InvalidData:
    return InvalidData(
        uri, f"not a TFRecord file: {kind}", next_step="Make TFRecords of it with `mptj records convert`"
    )


def _is_zlib(head: bytes) -> bool:
    # RFC 1950 requires method 8, a window of at most 32 KiB, and a multiple of 31 as the 16-bit header.
    return len(head) > 1 and head[0] & 0x0F == 8 and head[0] >> 4 <= 7 and (head[0] << 8 | head[1]) % 31 == 0
