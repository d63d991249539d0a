"""Incremental reading of events: first the ends of the files, then what is appended, then the rest.

A list of a thousand runs needs the first and the last events of each only. What is between is read when a curve is
drawn, or by the board's background thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

from mptraining.runs.columns import Columns, decode, join
from mptraining.runs.files import File, Files
from mptraining_api.run_folder import parse_events_name

# Enough for a Started event, and for the last progress and the end of a run.
HEAD, TAIL = 4 << 10, 8 << 10
# Enough for an event with a long message, if the above holds none.
LONG = 64 << 10
# Files up to this size are read whole.
SMALL = 32 << 10
# Columns of a growing file are joined when there are so many.
MOST_PARTS = 16
_THREADS = 16

# (start, length) -> bytes, fewer at the end.
ReadRange = Callable[[int, int], bytes]


class EventFile:
    """One file of events. `gap` is the range between its ends, which is decoded on demand."""

    def __init__(self, read: ReadRange) -> None:
        self.read = read
        self.size = 0
        # The end of the last whole line that was decoded.
        self.offset = 0
        self.gap: tuple[int, int] | None = None
        # By the offset of the first line.
        self._parts: dict[int, Columns] = {}

    def read_ends(self, size: int) -> None:
        """Decode the beginning and the end of a file that was not read yet."""
        if size <= SMALL:
            self.append(size)
            return
        head = self._decode(0, self.read(0, HEAD))
        if not self._parts:
            head = self._decode(0, self.read(0, LONG))
        start = self._decode_tail(size, TAIL, head)
        if start not in self._parts or self._parts[start].progress is None:
            self._parts.pop(start, None)
            start = self._decode_tail(size, LONG, head)
        self.size = size
        self.gap = (head, start) if start > head else None

    def skip(self, size: int) -> None:
        """Take the whole file as the gap."""
        self.size, self.offset, self.gap = size, size, (0, size)

    def append(self, size: int) -> Columns | None:
        """Decode what was appended since; return it. A file that became shorter is read again from its beginning."""
        if size < self.size:
            self.offset, self.gap = 0, None
            self._parts.clear()
        begin = self.offset
        if size > begin:
            # The last line may be torn: its rest comes later.
            self.offset = self._decode(begin, self.read(begin, size - begin))
        self.size = size
        new = self._parts.get(begin) if self.offset > begin else None
        end = self.gap[1] if self.gap else 0
        appended = [self._parts[at] for at in sorted(self._parts) if at >= end]
        if len(appended) > MOST_PARTS and (joined := join(appended)) is not None:
            self._parts = {at: part for at, part in self._parts.items() if at < end} | {end: joined}
        return new

    def fill(self) -> None:
        """Decode the gap."""
        if not self.filled and self.gap is not None:
            start, end = self.gap
            self._decode(start, self.read(start, end - start))
            if not self.filled:
                self.gap = None

    def forget(self) -> None:
        """Drop what `fill` decoded."""
        if self.gap is not None:
            self._parts.pop(self.gap[0], None)

    @property
    def filled(self) -> bool:
        return self.gap is None or self.gap[0] in self._parts

    def columns(self) -> list[Columns]:
        return [self._parts[at] for at in sorted(self._parts)]

    def _decode(self, start: int, data: bytes) -> int:
        """Decode the whole lines of `data`, which begins at `start`; return where the last of them ends."""
        end = data.rfind(b"\n") + 1
        found = decode(data[:end])
        if found is not None:
            self._parts[start] = found
        return start + end

    def _decode_tail(self, size: int, length: int, at_least: int) -> int:
        """Decode the last `length` bytes; return where their first whole line begins."""
        start = max(at_least, size - length)
        data = self.read(start, size - start)
        if start > at_least:
            # The first line is cut; it belongs to the gap.
            cut = data.find(b"\n") + 1
            start, data = start + cut, data[cut:]
        self.offset = self._decode(start, data)
        return start


class Launch(NamedTuple):
    """One process of one attempt: a job queue may start an attempt twice."""

    attempt: int
    incarnation: str
    worker: int


class RunEvents:
    """The events of worker 0 of a run, or those of all other workers, by launch."""

    def __init__(self, files: Files, *, chief: bool = True) -> None:
        self.files = files
        self._chief = chief
        self._launches: dict[Launch, dict[int, EventFile]] = {}

    def refresh(self, listed: Mapping[str, File]) -> list[Columns] | None:
        """Read what is new in the listed files; of launches that were not known, the ends only.

        Returns the new columns, None if a launch is new. Raises Problem; what was not read is read the next time.
        """
        new: list[Columns] = []
        has_new_launch = False
        for launch, sizes in self._sizes(listed).items():
            known = self._launches.setdefault(launch, {})
            ends = () if known else (min(sizes), max(sizes))
            has_new_launch |= not known
            for part, (name, size) in sorted(sizes.items()):
                file = known.get(part) or EventFile(partial(self.files.read, name))
                if ends and part in ends:
                    file.read_ends(size)
                elif ends:
                    file.skip(size)
                elif size != file.size and (found := file.append(size)) is not None:
                    new.append(found)
                known[part] = file
        return None if has_new_launch else new

    def fill(self) -> None:
        """Read everything that was listed. Raises Problem."""
        missing = [file for parts in self._launches.values() for file in parts.values() if not file.filled]
        if len(missing) < 2:
            for file in missing:
                file.fill()
            return
        # Each costs a round trip to a bucket.
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="events") as pool:
            list(pool.map(EventFile.fill, missing))

    def forget(self) -> None:
        """Drop all but the ends."""
        for parts in self._launches.values():
            for file in parts.values():
                file.forget()

    @property
    def filled(self) -> bool:
        return all(file.filled for parts in self._launches.values() for file in parts.values())

    def launches(self) -> list[tuple[Launch, Columns]]:
        """Return the launches that have events, in order of time, with what was read of them."""
        found = (
            (launch, join([columns for _, file in sorted(parts.items()) for columns in file.columns()]))
            for launch, parts in self._launches.items()
        )
        known = [(launch, columns) for launch, columns in found if columns is not None]
        return sorted(known, key=lambda entry: (entry[0].attempt, entry[1].first))

    def _sizes(self, listed: Mapping[str, File]) -> dict[Launch, dict[int, tuple[str, int]]]:
        found: dict[Launch, dict[int, tuple[str, int]]] = {}
        for name, file in listed.items():
            if (parsed := parse_events_name(name)) and (parsed.worker == 0) == self._chief:
                launch = Launch(parsed.attempt, parsed.incarnation, parsed.worker)
                found.setdefault(launch, {})[parsed.part] = (name, file.size)
        return found
