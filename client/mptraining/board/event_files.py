"""Incremental reading of the events of one launch: first the ends of its files, then what is appended, then the rest.

A list of a thousand runs needs the first and the last events of each only. What is between is read when a curve is
drawn, or by the board's background thread.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from mptraining.board.event_batches import Batch, decode, join

# Enough for a Started event, and for the last progress and the end of a run.
HEAD, TAIL = 4 << 10, 8 << 10
# Enough for an event with a long message, if the above holds none.
LONG = 64 << 10
# Files up to this size are read whole.
SMALL = 32 << 10
# Batches of a growing file are joined when there are so many.
MOST_BATCHES = 16
_THREADS = 16

# (start, length) -> bytes, fewer at the end.
ReadRange = Callable[[int, int], bytes]


@dataclass(slots=True)
class EventFile:
    """One file of events. `gap` is the range between its ends that was not decoded yet."""

    read: ReadRange
    size: int = 0
    # The end of the last whole line that was decoded.
    offset: int = 0
    gap: tuple[int, int] | None = None
    head: Batch | None = None
    between: Batch | None = None
    tail: list[Batch] = field(default_factory=list)

    def skip(self, size: int) -> None:
        """Take the whole file as the gap."""
        self.size, self.offset, self.gap = size, size, (0, size)

    def read_ends(self, size: int) -> None:
        """Decode the beginning and the end of a file that was not read yet."""
        if size <= SMALL:
            self.append(size)
            return
        head_end = self._decode_head(HEAD) or self._decode_head(LONG)
        start = self._decode_tail(size, TAIL, head_end)
        if not any(each.progress for each in self.tail):
            self.tail.clear()
            start = self._decode_tail(size, LONG, head_end)
        self.size = size
        self.gap = (head_end, start) if start > head_end else None

    def append(self, size: int) -> Batch | None:
        """Decode what was appended since; return it. A file that became shorter is read again from its beginning."""
        if size < self.size:
            self.size, self.offset, self.gap = 0, 0, None
            self.head, self.between = None, None
            self.tail.clear()
        new = self.read(self.offset, size - self.offset) if size > self.offset else b""
        # The last line may be torn: its rest comes later.
        end = new.rfind(b"\n") + 1
        found = decode(new[:end])
        self.size, self.offset = size, self.offset + end
        if found is not None:
            self.tail.append(found)
            if len(self.tail) > MOST_BATCHES:
                joined = join(self.tail)
                self.tail[:] = [joined] if joined else []
        return found

    def fill(self) -> None:
        """Decode the gap."""
        if self.gap is not None and self.between is None:
            start, end = self.gap
            self.between = decode(self.read(start, end - start))
            self.gap = (start, end) if self.between is not None else None

    def forget(self) -> None:
        """Drop what `fill` decoded."""
        self.between = None

    @property
    def filled(self) -> bool:
        return self.gap is None or self.between is not None

    def batches(self) -> list[Batch]:
        return [each for each in (self.head, self.between, *self.tail) if each is not None]

    def _decode_head(self, length: int) -> int:
        data = self.read(0, length)
        end = data.rfind(b"\n") + 1
        self.head = decode(data[:end])
        return end if self.head is not None else 0

    def _decode_tail(self, size: int, length: int, at_least: int) -> int:
        start = max(at_least, size - length)
        data = self.read(start, size - start)
        if start > at_least:
            # The first line is cut; it belongs to the gap.
            cut = data.find(b"\n") + 1
            start, data = start + cut, data[cut:]
        end = data.rfind(b"\n") + 1
        if (found := decode(data[:end])) is not None:
            self.tail.append(found)
        self.offset = start + end
        return start


@dataclass(slots=True)
class Launch:
    """The files of one launch of an attempt by one worker, by part."""

    attempt: int
    incarnation: str
    files: dict[int, EventFile] = field(default_factory=dict)

    def refresh(self, found: dict[int, tuple[int, ReadRange]]) -> list[Batch] | None:
        """Read what is new in the files (by part: size and reader).

        Returns the new batches; None at the first time, which reads the ends only.
        """
        if not self.files:
            parts = sorted(found)
            for part in parts:
                size, read = found[part]
                file = self.files[part] = EventFile(read)
                if part in (parts[0], parts[-1]):
                    file.read_ends(size)
                else:
                    file.skip(size)
            return None
        new = []
        for part in sorted(found):
            size, read = found[part]
            known = self.files.get(part)
            if known is None:
                known = self.files[part] = EventFile(read)
            if size != known.size and (batch := known.append(size)) is not None:
                new.append(batch)
        return new

    def fill(self) -> None:
        missing = [each for each in self.files.values() if not each.filled]
        if len(missing) < 2:
            for each in missing:
                each.fill()
            return
        # The parts of a bucket: each costs a round trip.
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="events") as pool:
            list(pool.map(EventFile.fill, missing))

    def forget(self) -> None:
        for each in self.files.values():
            each.forget()

    @property
    def filled(self) -> bool:
        return all(each.filled for each in self.files.values())

    def batch(self) -> Batch | None:
        """Return all decoded events as one batch; None without any."""
        return join(batch for part in sorted(self.files) for batch in self.files[part].batches())
