"""Scanner of the frames of one object, whose bytes arrive in order; it resynchronizes after damage."""

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

# The arrays for one piece of a search fit into a processor's cache.
_PIECE = 1 << 18
# A local file is mapped in pieces of this size.
_MAPPED = 4 << 20


def first_header(content: NDArray[np.uint8], bytes_left: int) -> int | None:
    """Return the offset in `content` of the first header with a valid checksum whose record fits into the object.

    `bytes_left` is the number of bytes from the beginning of `content` to the end of the object.
    """
    places = len(content) - framing.HEADER + 1
    for begin in range(0, places, _PIECE):
        piece = content[begin : min(begin + _PIECE, places) + framing.HEADER - 1]
        found = _headers(piece, bytes_left - begin)
        if len(found):
            return begin + int(found[0])
    return None


def _headers(content: NDArray[np.uint8], bytes_left: int) -> NDArray[np.int64]:
    count = len(content) - framing.HEADER + 1
    # Overlapping views: element i is the number that begins at byte i.
    lengths: NDArray[np.uint64] = np.ndarray(count, "<u8", content, strides=(1,))
    stored: NDArray[np.uint32] = np.ndarray(count, "<u4", content, offset=8, strides=(1,))
    places = np.flatnonzero(lengths <= np.uint64(max(0, bytes_left - framing.OVERHEAD)))
    fitting = lengths[places].astype(np.int64) + places + framing.OVERHEAD <= bytes_left
    places = places[fitting]
    crcs = np.full(len(places), google_crc32c.value(bytes(8)), np.uint32)
    for byte, table in enumerate(_tables()):
        crcs ^= table[content[places + byte]]
    masked: NDArray[np.uint32] = ((crcs >> np.uint32(15)) | (crcs << np.uint32(17))) + np.uint32(framing.MASK_DELTA)
    found: NDArray[np.int64] = places[masked == stored[places]]
    return found


@functools.cache
def _tables() -> NDArray[np.uint32]:
    """Return an array of shape [8, 256]: the XOR of the CRC32C of 8 bytes if byte i changes by XOR v."""
    zero = google_crc32c.value(bytes(8))
    return np.array(
        [
            [google_crc32c.value(bytes(byte) + bytes([bits]) + bytes(7 - byte)) ^ zero for bits in range(256)]
            for byte in range(8)
        ],
        np.uint32,
    )


Content = bytes | bytearray | memoryview | mmap.mmap

# A frame found after damage must be confirmed, unless it is longer than this many bytes. If a file does not begin with
# a record, the first one is searched within this many bytes.
LOOKAHEAD = 64 << 20
_MAX_CACHED_CHECKSUMS = 1 << 16

PAST_END = "its length leads past the end of the file"


class FrameWalk:
    """Finds the frames of an object, fed in order in pieces of any size, and verifies the CRC of every length.

    Payloads are not verified unless `check_payloads`. A damaged frame ends where the next plausible one begins: at the
    next header that fits into the object and is confirmed by its payload's checksum, the header after it or the end of
    the object. The bytes between are one entry of `ShardIndex.damaged`. Memory: the lengths and checksums, and after
    damage at most LOOKAHEAD bytes.
    """

    def __init__(
        self,
        object: StoredObject,
        *,
        check_payloads: bool = False,
        content_fault: Callable[[bytes], str | None] | None = None,
    ) -> None:
        """With `content_fault`, a whole payload is kept in memory to get the cause of a fault from it."""
        self.object = object
        self._check = check_payloads or content_fault is not None
        self._content_fault = content_fault
        self._bad_payloads: list[BadRecord] = []
        self._damaged: list[BadRecord] = []
        # Records of a data set often have equal lengths, and a look-up is cheaper than a CRC.
        self._checksums_of_lengths: dict[int, int] = {}
        self._lengths = array("q")
        self._checksums = array("I")
        # Bytes fed so far; the last of them, kept from offset `_keep_from`; the number of bytes required to continue.
        self._fed = 0
        self._buffer = bytearray()
        self._keep_from = self._required = 0
        # The current frame: its offset, its payload's length once known, and the payload's CRC up to offset `_checked`.
        self._at = 0
        self._length: int | None = None
        self._crc = self._checked = 0
        # After damage: its cause, the offset of the search, and (begin, end) of the frame to confirm.
        self._cause = ""
        self._search_from = 0
        self._candidate: tuple[int, int] | None = None
        # The first 12 bytes; if they are not a header, `_unverified` until a frame shows that this is a TFRecord file.
        self._head = b""
        self._unverified = self._is_foreign = False

    @property
    def bad_payloads(self) -> tuple[BadRecord, ...]:
        """The records whose payload does not match its checksum or has another fault. They have rows in the index."""
        return tuple(self._bad_payloads)

    def feed(self, content: Content) -> None:
        """Process the object's next bytes.

        Raises InvalidData if it is not a TFRecord file, CompressedFile if it is compressed, and ValueError for more
        bytes than the object has.
        """
        begin = self._fed
        self._fed += len(content)
        if self._fed > self.object.size:
            raise ValueError(f"{self.object.uri}: fed {self._fed} bytes of {self.object.size}")
        window = content
        if self._buffer:
            begin -= len(self._buffer)
            self._buffer += content
            window = self._buffer
        if self._fed < self._required:
            if window is content and self._keep_from < self._fed:
                self._buffer += content[max(0, self._keep_from - begin) :]
            return
        if not self._head and self._fed >= HEADER:
            self._check_head(bytes(window[:HEADER]))
        while self._resynchronize(window, begin) if self._cause else self._follow(window, begin):
            pass
        # Raised here, since a traceback from `_resynchronize` would keep views of a mmap, which then cannot be closed.
        if self._is_foreign:
            framing.refuse_foreign(self.object.uri, self._head)
        if window is content:
            self._buffer += content[self._keep_from - begin :] if self._keep_from < self._fed else b""
        else:
            del self._buffer[: self._keep_from - begin]

    def finish(self) -> ShardIndex:
        """Return the index; raises ValueError if not all bytes were fed."""
        if self._fed < self.object.size:
            raise ValueError(f"{self.object.uri}: fed {self._fed} bytes of {self.object.size}")
        lengths = np.array(self._lengths, np.int64)
        checksum = shard_index.content_checksum(lengths, np.array(self._checksums, np.uint32), self._damaged)
        return shard_index.from_lengths(self.object, lengths, checksum, self._damaged)

    def _check_head(self, head: bytes) -> None:
        self._head = head
        if not framing.is_header(head):
            framing.refuse_known(self.object.uri, head)
            self._unverified = True

    def _follow(self, window: Content, start: int) -> bool:
        """Follow valid frames; returns True at damage, False if more bytes are needed."""
        size, end, check = self.object.size, self._fed, self._check
        at, length, known = self._at, self._length, self._checksums_of_lengths
        unpack_header, unpack_footer = framing.header_format.unpack_from, framing.footer_format.unpack_from
        add_length, add_checksum = self._lengths.append, self._checksums.append
        view = np.frombuffer(window, np.uint8) if check else _EMPTY
        self._keep_from = self._required = size
        while at < size:
            if length is None:
                if at + HEADER > end:
                    if at + HEADER > size:
                        return self._begin_damage(at, framing.TRUNCATED)
                    self._keep_from, self._required = at, at + HEADER
                    break
                length, stored = unpack_header(window, at - start)
                if known.get(length) != stored and not self._is_valid_length(length, stored):
                    return self._begin_damage(at, framing.BAD_LENGTH)
                if at + OVERHEAD + length > size:
                    return self._begin_damage(at, framing.TRUNCATED)
                self._crc, self._checked = 0, at + HEADER
            footer = at + HEADER + length
            if check:
                stop = min(footer, end)
                self._crc = google_crc32c.extend(self._crc, view[self._checked - start : stop - start])
                self._checked = stop
            if footer + FOOTER > end:
                self._keep_from, self._required = footer, footer + FOOTER
                if self._content_fault is not None:
                    self._keep_from = at
                elif check and end < footer:
                    self._keep_from = self._required = end
                break
            (stored,) = unpack_footer(window, footer - start)
            fault = self._payload_fault(window, at - start, footer - start) if check else None
            if fault is not None:
                self._bad_payloads.append(self._bad(at, fault, length + OVERHEAD))
            add_length(length)
            add_checksum(stored)
            at, length = footer + FOOTER, None
        self._at, self._length = at, length
        return False

    def _payload_fault(self, window: Content, begin: int, footer: int) -> str | None:
        """Return the cause if the payload of the frame at `begin` of the window is damaged; its CRC is computed."""
        (stored,) = framing.footer_format.unpack_from(window, footer)
        if framing.masked_crc_of(self._crc) != stored:
            return framing.BAD_PAYLOAD
        return self._content_fault(bytes(window[begin + HEADER : footer])) if self._content_fault else None

    def _is_valid_length(self, length: int, stored: int) -> bool:
        """Return whether `stored` is the checksum of this length, and store it for the next record of this length."""
        if framing.masked_crc(struct.pack("<Q", length)) != stored:
            return False
        if len(self._checksums_of_lengths) < _MAX_CACHED_CHECKSUMS:
            self._checksums_of_lengths[length] = stored
        return True

    def _begin_damage(self, at: int, cause: str) -> bool:
        self._at, self._length, self._cause, self._search_from, self._candidate = at, None, cause, at + 1, None
        return True

    def _resynchronize(self, window: Content, start: int) -> bool:
        """Search for a frame after damage; returns True if there is one to follow, False if more bytes are needed."""
        size, end = self.object.size, self._fed
        view = np.frombuffer(window, np.uint8)
        while True:
            if self._candidate is None:
                last = min(end, LOOKAHEAD) if self._unverified else end
                found = first_header(view[self._search_from - start : last - start], size - self._search_from)
                if found is None:
                    self._search_from = max(self._search_from, last - HEADER + 1)
                    if self._unverified and last == min(size, LOOKAHEAD):
                        self._is_foreign = True
                        return False
                    if end == size:
                        return self._end_damage(size)
                    self._keep_from, self._required = self._search_from, min(self._search_from + HEADER, size)
                    return False
                begin = self._search_from + found
                (length, _) = framing.header_format.unpack_from(window, begin - start)
                self._candidate = (begin, begin + OVERHEAD + length)
            begin, following = self._candidate
            required = min(following + HEADER, size)
            if required - begin > LOOKAHEAD or (
                required <= end and _is_confirmed(view, begin - start, following - start)
            ):
                return self._end_damage(begin)
            if required > end:
                self._keep_from, self._required = begin, required
                return False
            self._candidate, self._search_from = None, max(self._search_from, begin + 1)

    def _end_damage(self, end: int) -> bool:
        """End the damage before the frame at `end`."""
        lost, cause, size = self._at, self._cause, self.object.size
        if cause == framing.BAD_LENGTH or end < size:
            cause = PAST_END if cause == framing.TRUNCATED else cause
            to = f"the next record begins at byte {end}" if end < size else "no record was found after it"
            cause += f"; {to}"
        self._damaged.append(self._bad(lost, cause, end - lost))
        self._at, self._cause, self._candidate, self._unverified = end, "", None, False
        return True

    def _bad(self, at: int, cause: str, length: int) -> BadRecord:
        return BadRecord(self.object.uri, len(self._lengths) + len(self._damaged), at, cause, length)


_EMPTY: NDArray[np.uint8] = np.empty(0, np.uint8)


def _is_confirmed(view: NDArray[np.uint8], begin: int, following: int) -> bool:
    """Return whether the end of the object, a valid header after the frame, or the payload's checksum confirms it."""
    if following == len(view) or framing.is_header(view[following : following + HEADER].tobytes()):
        return True
    footer = following - FOOTER
    return framing.masked_crc_of(google_crc32c.value(view[begin + HEADER : footer])) == int.from_bytes(
        view[footer:following].tobytes(), "little"
    )


def scan(object: StoredObject, *, expanded: StoredObject | None = None) -> ShardIndex:
    """Return the index of one object; a local file is mapped, a remote one streamed.

    `expanded` is the local file with the content of a compressed object. Raises InvalidData if the object is not a
    TFRecord file or was replaced, CompressedFile if it is compressed.
    """
    content = expanded or object
    walk = FrameWalk(replace(content, uri=object.uri))
    feed(walk, content)
    return replace(walk.finish(), object=object, expanded=expanded)


def feed(walk: FrameWalk, content: StoredObject, progress: Callable[[int], None] | None = None) -> None:
    """Feed a whole object to a walk; for a remote one `progress` gets the bytes fed so far."""
    if not content.size:
        return
    if not storage.is_remote(content.uri):
        with storage.memory_map(content) as whole, memoryview(whole) as view:
            for begin in range(0, content.size, _MAPPED):
                with view[begin : begin + _MAPPED] as piece:
                    walk.feed(piece)
                # Pages that were read would count as memory of this process.
                whole.madvise(mmap.MADV_DONTNEED, begin, min(_MAPPED, content.size - begin))
        return
    for _, start, window in windows([content], Traffic()):
        walk.feed(window)
        if progress:
            progress(start + len(window))
