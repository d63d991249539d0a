"""Follows the frames of one object whose bytes come in order, from a map, a file or the network; over damage too."""

from __future__ import annotations

import functools
import mmap
import struct
from array import array
from collections.abc import Callable
from dataclasses import replace

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from mptraining_records.index import shard_index
from mptraining_records.index.shard_index import ShardIndex
from mptraining_records.storage import storage
from mptraining_records.storage.ranges import Traffic, windows
from mptraining_records.storage.storage import StoredObject
from mptraining_records.tfrecord import framing
from mptraining_records.tfrecord.framing import FOOTER, HEADER, OVERHEAD, BadRecord

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


Content = bytes | bytearray | memoryview | mmap.mmap

# A frame found after damage is believed when what follows confirms it, as far as this many bytes; also how many bytes
# of a file that does not begin with a record are searched for one.
LOOKAHEAD = 64 << 20
_KNOWN = 1 << 16

PAST_END = "its length leads past the end of the file"


class FrameWalk:
    """Fed all bytes of an object in order, in pieces of any size, it finds the frames and checks every length's CRC.

    A payload is passed over untouched, unless `check_payloads`. A frame that cannot be followed ends where the next
    plausible one begins: by the repaired header when one byte of it is wrong, else by a search for a header that fits
    into the object and is confirmed by its payload's checksum, the header after it or the end. What is between is one
    entry of `ShardIndex.damaged`. Kept are the lengths, and after damage at most LOOKAHEAD bytes.
    """

    def __init__(self, object: StoredObject, *, check_payloads: bool = False) -> None:
        self.object = object
        self._check = check_payloads
        self._bad_payloads: list[BadRecord] = []
        self._damaged: list[BadRecord] = []
        self._lengths = array("q")
        self._checksums = array("I")
        # Bytes fed so far; the last of them that are still needed, and how many must be there to go on.
        self._fed = 0
        self._kept = bytearray()
        self._needed = self._wanted = 0
        # The frame under way: where it begins, its payload's length once the header was seen, how much is checked.
        self._at = 0
        self._length: int | None = None
        self._crc = self._checked = 0
        # After damage: its cause, where to search on, and the frame to confirm: its beginning and end.
        self._cause = ""
        self._search = 0
        self._candidate: tuple[int, int] | None = None
        # The first 12 bytes; doubted while it is open whether this is a TFRecord file at all.
        self._head = b""
        self._doubted = self._refused = False

    @property
    def bad_payloads(self) -> tuple[BadRecord, ...]:
        """With `check_payloads`: the records whose payload does not fit its checksum. They do have rows."""
        return tuple(self._bad_payloads)

    def feed(self, content: Content) -> None:
        """The object's next bytes.

        Raises InvalidData for what is no TFRecord file, CompressedFile for a compressed one, and ValueError for more
        bytes than the object has.
        """
        begin = self._fed
        self._fed += len(content)
        if self._fed > self.object.size:
            raise ValueError(f"{self.object.uri}: fed {self._fed} bytes of {self.object.size}")
        window = content
        if self._kept:
            begin -= len(self._kept)
            self._kept += content
            window = self._kept
        if self._fed < self._wanted:
            if window is content and self._needed < self._fed:
                self._kept += content[max(0, self._needed - begin) :]
            return
        if not self._head and self._fed >= HEADER:
            self._doubt(bytes(window[:HEADER]))
        while self._resynchronize(window, begin) if self._cause else self._follow(window, begin):
            pass
        # Raised here, since a traceback through the walk would hold on to views of a map that is to be closed.
        if self._refused:
            framing.refuse_foreign(self.object.uri, self._head)
        if window is content:
            self._kept += content[self._needed - begin :] if self._needed < self._fed else b""
        else:
            del self._kept[: self._needed - begin]

    def finish(self) -> ShardIndex:
        """The index, once all bytes were fed; ValueError before."""
        if self._fed < self.object.size:
            raise ValueError(f"{self.object.uri}: fed {self._fed} bytes of {self.object.size}")
        lengths = np.array(self._lengths, np.int64)
        checksum = shard_index.content_checksum(lengths, np.array(self._checksums, np.uint32), self._damaged)
        return shard_index.from_lengths(self.object, lengths, checksum, self._damaged)

    def _doubt(self, head: bytes) -> None:
        self._head = head
        if not framing.is_header(head) and self._repaired(head, 0) is None:
            framing.refuse_known(self.object.uri, head)
            self._doubted = True

    def _repaired(self, header: bytes, at: int) -> tuple[int, int] | None:
        """Beginning and end of the frame at `at` when one byte of its header is wrong."""
        length = repaired_length(header)
        if length is None or at + OVERHEAD + length > self.object.size:
            return None
        return at, at + OVERHEAD + length

    def _follow(self, window: Content, start: int) -> bool:
        """From frame to frame; returns whether there is damage to go on with, else what was fed is used up."""
        size, end, check = self.object.size, self._fed, self._check
        at, length, known = self._at, self._length, _known_lengths
        unpack_header, unpack_footer = framing.header_format.unpack_from, framing.footer_format.unpack_from
        add_length, add_checksum = self._lengths.append, self._checksums.append
        view = np.frombuffer(window, np.uint8) if check else _NOTHING
        self._needed = self._wanted = size
        while at < size:
            if length is None:
                if at + HEADER > end:
                    if at + HEADER > size:
                        return self._lose(at, framing.TRUNCATED, b"")
                    self._needed, self._wanted = at, at + HEADER
                    break
                length, stored = unpack_header(window, at - start)
                if known.get(length) != stored and not _learn(length, stored):
                    return self._lose(at, framing.BAD_LENGTH, bytes(window[at - start : at - start + HEADER]))
                if at + OVERHEAD + length > size:
                    return self._lose(at, framing.TRUNCATED, b"")
                self._crc, self._checked = 0, at + HEADER
            footer = at + HEADER + length
            if check:
                stop = min(footer, end)
                self._crc = google_crc32c.extend(self._crc, view[self._checked - start : stop - start])
                self._checked = stop
            if footer + FOOTER > end:
                self._needed, self._wanted = footer, footer + FOOTER
                if check and end < footer:
                    self._needed = self._wanted = end
                break
            (stored,) = unpack_footer(window, footer - start)
            if check and framing.masked_crc_of(self._crc) != stored:
                self._bad_payloads.append(self._bad(at, framing.BAD_PAYLOAD, length + OVERHEAD))
            add_length(length)
            add_checksum(stored)
            at, length = footer + FOOTER, None
        self._at, self._length = at, length
        return False

    def _lose(self, at: int, cause: str, header: bytes) -> bool:
        self._at, self._length, self._cause, self._search = at, None, cause, at + 1
        self._candidate = self._repaired(header, at) if header else None
        return True

    def _resynchronize(self, window: Content, start: int) -> bool:
        """Searches on; returns whether there is a frame to follow, else what was fed is used up."""
        size, end = self.object.size, self._fed
        view = np.frombuffer(window, np.uint8)
        while True:
            if self._candidate is None:
                last = min(end, LOOKAHEAD) if self._doubted else end
                found = first_header(view[self._search - start : last - start], size - self._search)
                if found is None:
                    self._search = max(self._search, last - HEADER + 1)
                    if self._doubted and last == min(size, LOOKAHEAD):
                        self._refused = True
                        return False
                    if end == size:
                        return self._regain(size, size)
                    self._needed, self._wanted = self._search, min(self._search + HEADER, size)
                    return False
                begin = self._search + found
                (length, _) = framing.header_format.unpack_from(window, begin - start)
                self._candidate = (begin, begin + OVERHEAD + length)
            begin, following = self._candidate
            sight = min(following + HEADER, size)
            if sight - begin > LOOKAHEAD or (sight <= end and _is_confirmed(view, begin - start, following - start)):
                return self._regain(begin, following)
            if sight > end:
                self._needed, self._wanted = begin, sight
                return False
            self._candidate, self._search = None, max(self._search, begin + 1)

    def _regain(self, begin: int, following: int) -> bool:
        """Ends the damage before the frame at `begin`; after it when that is the damaged one, its header repaired."""
        lost, cause, size = self._at, self._cause, self.object.size
        end = following if begin == lost else begin
        if begin == lost:
            cause += f"; it has {following - begin - OVERHEAD} bytes"
        elif cause == framing.BAD_LENGTH or end < size:
            cause = PAST_END if cause == framing.TRUNCATED else cause
            to = f"the next record begins at byte {end}" if end < size else "no record was found after it"
            cause += f"; {to}"
        self._damaged.append(self._bad(lost, cause, end - lost))
        self._at, self._cause, self._candidate, self._doubted = end, "", None, False
        return True

    def _bad(self, at: int, cause: str, length: int) -> BadRecord:
        return BadRecord(self.object.uri, len(self._lengths) + len(self._damaged), at, cause, length)


_NOTHING: NDArray[np.uint8] = np.empty(0, np.uint8)
# Lengths with their checksums: records of one data set are often of one length, and a look-up is cheaper than a CRC.
_known_lengths: dict[int, int] = {}


def _learn(length: int, stored: int) -> bool:
    """Whether `stored` is the checksum of this length."""
    if framing.masked_crc(struct.pack("<Q", length)) != stored:
        return False
    if len(_known_lengths) < _KNOWN:
        _known_lengths[length] = stored
    return True


def _is_confirmed(view: NDArray[np.uint8], begin: int, following: int) -> bool:
    """Whether the end, a header after the frame, or the payload's checksum says that this is a frame."""
    if following == len(view) or framing.is_header(view[following : following + HEADER].tobytes()):
        return True
    footer = following - FOOTER
    return framing.masked_crc_of(google_crc32c.value(view[begin + HEADER : footer])) == int.from_bytes(
        view[footer:following].tobytes(), "little"
    )


def scan(object: StoredObject, *, expanded: StoredObject | None = None) -> ShardIndex:
    """The index of one object; a local file is mapped, a remote one streamed.

    `expanded` is the local file with the content of an object that is compressed. Raises InvalidData for what is no
    TFRecord file or was replaced, CompressedFile for a compressed one.
    """
    content = expanded or object
    walk = FrameWalk(replace(content, uri=object.uri))
    feed(walk, content)
    return replace(walk.finish(), object=object, expanded=expanded)


def feed(walk: FrameWalk, content: StoredObject, progress: Callable[[int], None] | None = None) -> None:
    """Feeds a whole object to a walk; of a remote one `progress` gets the bytes fed so far."""
    if not content.size:
        return
    if not storage.is_remote(content.uri):
        with storage.mapped(content) as whole:
            walk.feed(whole)
        return
    for _, start, window in windows([content], Traffic()):
        walk.feed(window)
        if progress:
            progress(start + len(window))
