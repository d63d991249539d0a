"""Scanner of the frames of one object, whose bytes arrive in order."""

from __future__ import annotations

import mmap
import struct
from array import array
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from mptraining_records.index import shard_index
from mptraining_records.index.shard_index import ShardIndex
from mptraining_records.tfrecord import framing
from mptraining_records.tfrecord.framing import FOOTER, HEADER, OVERHEAD, BadRecord
from mptraining_storage import storage
from mptraining_storage.preconditions import StoredObject
from mptraining_storage.ranges import Traffic, windows

# A local file is mapped in pieces of this size.
_MAPPED = 4 << 20


Content = bytes | bytearray | memoryview | mmap.mmap

_MAX_CACHED_CHECKSUMS = 1 << 16


class FrameWalk:
    """Finds the frames of an object, fed in order in pieces of any size, and verifies the CRC of every length.

    Payloads are verified with `content_fault` alone. Where a length is damaged, or leads past the object's end, no
    later frame can be found: the rest of the object is `ShardIndex.damage`. Memory: the lengths and checksums.
    """

    def __init__(self, stored: StoredObject, *, content_fault: Callable[[bytes], str | None] | None = None) -> None:
        """With `content_fault`, a whole payload is kept in memory to get the cause of a fault from it."""
        self.stored = stored
        self._content_fault = content_fault
        self._bad_payloads: list[BadRecord] = []
        self._damage: BadRecord | None = None
        # Records of a data set often have equal lengths, and a look-up is cheaper than a CRC.
        self._checksums_of_lengths: dict[int, int] = {}
        self._lengths = array("q")
        self._checksums = array("I")
        # Bytes fed so far; the last of them, kept from offset `_keep_from`; the number of bytes required to continue.
        self._fed = 0
        self._buffer = bytearray()
        self._keep_from = self._required = 0
        # The current frame: its offset, and its payload's length once known.
        self._at = 0
        self._length: int | None = None

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
        if self._fed > self.stored.size:
            raise ValueError(f"{self.stored.uri}: fed {self._fed} bytes of {self.stored.size}")
        window = content
        if self._buffer:
            begin -= len(self._buffer)
            self._buffer += content
            window = self._buffer
        if self._fed < self._required:
            if window is content and self._keep_from < self._fed:
                self._buffer += content[max(0, self._keep_from - begin) :]
            return
        self._follow(window, begin)
        if window is content:
            self._buffer += content[self._keep_from - begin :] if self._keep_from < self._fed else b""
        else:
            del self._buffer[: self._keep_from - begin]

    def finish(self) -> ShardIndex:
        """Return the index; raises ValueError if not all bytes were fed."""
        if self._fed < self.stored.size:
            raise ValueError(f"{self.stored.uri}: fed {self._fed} bytes of {self.stored.size}")
        lengths = np.array(self._lengths, np.int64)
        checksum = shard_index.content_checksum(lengths, np.array(self._checksums, np.uint32), self._damage)
        return shard_index.from_lengths(self.stored, lengths, checksum, self._damage)

    def _follow(self, window: Content, start: int) -> None:
        """Follow the frames until more bytes are needed, or to the end, or to the first damaged length."""
        size, end = self.stored.size, self._fed
        at, length, known = self._at, self._length, self._checksums_of_lengths
        unpack_header, unpack_footer = framing.header_format.unpack_from, framing.footer_format.unpack_from
        add_length, add_checksum = self._lengths.append, self._checksums.append
        self._keep_from = self._required = size
        while at < size:
            if length is None:
                if at + HEADER > end:
                    if at + HEADER > size:
                        self._end_at(at, framing.TRUNCATED)
                        return
                    self._keep_from, self._required = at, at + HEADER
                    break
                length, stored = unpack_header(window, at - start)
                if known.get(length) != stored and not self._is_valid_length(length, stored):
                    if at == 0:
                        framing.refuse_foreign(self.stored.uri, bytes(window[:HEADER]))
                    self._end_at(at, framing.BAD_LENGTH)
                    return
                if at + OVERHEAD + length > size:
                    self._end_at(at, framing.TRUNCATED)
                    return
            footer = at + HEADER + length
            if footer + FOOTER > end:
                self._keep_from = footer if self._content_fault is None else at
                self._required = footer + FOOTER
                break
            (stored,) = unpack_footer(window, footer - start)
            if self._content_fault is not None:
                payload = bytes(window[at + HEADER - start : footer - start])
                fault = self._content_fault(payload) if framing.masked_crc(payload) == stored else framing.BAD_PAYLOAD
                if fault is not None:
                    self._bad_payloads.append(self._bad(at, fault, length + OVERHEAD))
            add_length(length)
            add_checksum(stored)
            at, length = footer + FOOTER, None
        self._at, self._length = at, length

    def _is_valid_length(self, length: int, stored: int) -> bool:
        """Return whether `stored` is the checksum of this length, and store it for the next record of this length."""
        if framing.masked_crc(struct.pack("<Q", length)) != stored:
            return False
        if len(self._checksums_of_lengths) < _MAX_CACHED_CHECKSUMS:
            self._checksums_of_lengths[length] = stored
        return True

    def _end_at(self, at: int, cause: str) -> None:
        """End the walk at damage: no further bytes are kept or required."""
        self._at, self._length = self.stored.size, None
        self._damage = self._bad(at, cause, self.stored.size - at)

    def _bad(self, at: int, cause: str, length: int) -> BadRecord:
        return BadRecord(self.stored.uri, len(self._lengths), at, cause, length)


def scan(stored: StoredObject, *, expanded: StoredObject | None = None) -> ShardIndex:
    """Return the index of one object; a local file is mapped, a remote one streamed.

    `expanded` is the local file with the content of a compressed object. Raises InvalidData if the object is not a
    TFRecord file or was replaced, CompressedFile if it is compressed.
    """
    content = expanded or stored
    walk = FrameWalk(replace(content, uri=stored.uri))
    feed(walk, content)
    return replace(walk.finish(), stored=stored, expanded=expanded)


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
