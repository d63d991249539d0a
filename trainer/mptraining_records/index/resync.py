"""Where the frames of an object go on after a damaged one: a header put right, or the next one found.

CRC32C is linear: the checksum of 8 bytes is that of 8 zeros, XORed with one entry of a table for each byte. So many
places are checked at once, and one wrong byte of a header shows which one it is.
"""

from __future__ import annotations

import functools

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from mptraining_records.tfrecord import framing

# Pieces that are searched at a time: the arrays of one fit into a processor's cache.
_PIECE = 1 << 18


def repaired_length(header: bytes) -> int | None:
    """The payload length that a header (12 bytes) had before one of its bytes changed; None when it was not so.

    Random bytes pass for such a header once in a million times, so that the answer wants confirming.
    """
    length, stored = framing.header_format.unpack(header)
    crc: int = google_crc32c.value(header[:8])
    wrong = framing.masked_crc_of(crc) ^ stored
    if any(wrong & ~(0xFF << shift) == 0 for shift in (0, 8, 16, 24)):
        return int(length)
    places = np.argwhere(_tables() == crc ^ framing.unmasked_crc(stored))
    if len(places) != 1:
        return None
    byte, bits = places[0]
    return int(length) ^ (int(bits) << 8 * int(byte))


def first_header(content: NDArray[np.uint8], room: int) -> int | None:
    """The first place in `content` where a header with the right checksum begins whose record fits.

    `room` is the number of bytes from the beginning of `content` to the end of the object.
    """
    places = len(content) - framing.HEADER + 1
    for begin in range(0, places, _PIECE):
        piece = content[begin : min(begin + _PIECE, places) + framing.HEADER - 1]
        found = _headers(piece, room - begin)
        if len(found):
            return begin + int(found[0])
    return None


def _headers(content: NDArray[np.uint8], room: int) -> NDArray[np.int64]:
    count = len(content) - framing.HEADER + 1
    # A number at every byte, which no other view of an array gives.
    lengths: NDArray[np.uint64] = np.ndarray(count, "<u8", content, strides=(1,))
    stored: NDArray[np.uint32] = np.ndarray(count, "<u4", content, offset=8, strides=(1,))
    places = np.flatnonzero(lengths <= np.uint64(max(0, room - framing.OVERHEAD)))
    fitting = lengths[places].astype(np.int64) + places + framing.OVERHEAD <= room
    places = places[fitting]
    crcs = np.full(len(places), google_crc32c.value(bytes(8)), np.uint32)
    for byte, table in enumerate(_tables()):
        crcs ^= table[content[places + byte]]
    masked: NDArray[np.uint32] = ((crcs >> np.uint32(15)) | (crcs << np.uint32(17))) + np.uint32(framing.MASK_DELTA)
    found: NDArray[np.int64] = places[masked == stored[places]]
    return found


@functools.cache
def _tables() -> NDArray[np.uint32]:
    """Shape [8, 256]: by what the CRC32C of 8 bytes changes when byte i changes by the bits v."""
    zero = google_crc32c.value(bytes(8))
    return np.array(
        [
            [google_crc32c.value(bytes(byte) + bytes([bits]) + bytes(7 - byte)) ^ zero for bits in range(256)]
            for byte in range(8)
        ],
        np.uint32,
    )
