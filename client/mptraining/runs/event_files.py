"""Incremental reading of events: first the ends of the files, then what is appended, then the rest.

A list of a thousand runs needs the first and the last events of each only. What is between is read when a curve is
drawn, or by the board's background thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import groupby

from mptraining.runs.columns import Columns, decode, join
from mptraining.runs.files import File, Files
from mptraining_api.run_folder import PartName, parse_events_name

# Enough for a Started event, and for the last progress and the end of a run.
HEAD, TAIL = 4 << 10, 4 << 10
# Enough for an event with a long message, if the above holds none.
LONG = 64 << 10
# Files up to this size are read whole.
SMALL = 32 << 10
_THREADS = 16


class EventFile:
    """One file of events. `gap` is the range between its ends, which `fill` decodes."""

    def __init__(self, read: Callable[[int, int], bytes]) -> None:
        """`read` takes start and length, and returns fewer bytes at the end."""
        self._read = read
        self.size = 0
        # The end of the last whole line that was decoded.
        self._offset = 0
        self._gap: tuple[int, int] | None = None
        self._head: Columns | None = None
        self._between: Columns | None = None
        self._tail: Columns | None = None

    def read_ends(self, size: int) -> None:
        """Decode the beginning and the end of a file that was not read yet."""
        if size <= SMALL:
            self.append(size)
            return
        begin = 0
        for length in (HEAD, LONG):
            if self._head is None:
                self._head, begin = _lines(0, self._read(0, length))
        for length in (TAIL, LONG):
            if self._tail is None or self._tail.progress is None:
                start = max(begin, size - length)
                data = self._read(start, size - start)
                # The first line is cut; it belongs to the gap.
                cut = data.find(b"\n") + 1 if start > begin else 0
                start += cut
                self._tail, self._offset = _lines(start, data[cut:])
        self.size = size
        self._gap = (begin, start) if start > begin else None

    def skip(self, size: int) -> None:
        """Take the whole file as the gap."""
        self.size, self._offset, self._gap = size, size, (0, size)

    def append(self, size: int) -> None:
        """Decode what was appended since."""
        # The last line may be torn: its rest comes later.
        new, self._offset = _lines(self._offset, self._read(self._offset, size - self._offset))
        self._tail = join([part for part in (self._tail, new) if part is not None])
        self.size = size

    def fill(self) -> None:
        """Decode the gap."""
        if self._gap is not None and self._between is None:
            start, end = self._gap
            self._between, _ = _lines(start, self._read(start, end - start))
            self._gap = None if self._between is None else self._gap

    def forget(self) -> None:
        """Drop what `fill` decoded."""
        self._between = None

    @property
    def filled(self) -> bool:
        return self._gap is None or self._between is not None

    def columns(self) -> list[Columns]:
        return [part for part in (self._head, self._between, self._tail) if part is not None]


def _lines(start: int, data: bytes) -> tuple[Columns | None, int]:
    """Decode the whole lines of `data`, which begins at `start`; return them and where the last of them ends."""
    end = data.rfind(b"\n") + 1
    return decode(data[:end]), start + end


class RunEvents:
    """The events of worker 0 of a run, or those of all other workers, by launch.

    A launch is one process of one attempt: a job queue may start an attempt twice.
    """

    def __init__(self, files: Files, *, chief: bool = True) -> None:
        self.files = files
        self._chief = chief
        self._parts: dict[PartName, EventFile] = {}

    def refresh(self, listed: Mapping[str, File]) -> bool:
        """Read what is new in the listed files; of launches that were not known, the ends only.

        Returns whether anything was. Raises Problem; what was not read is read the next time.
        """
        named = ((parse_events_name(name), name, file.size) for name, file in listed.items())
        sizes = {part: (name, size) for part, name, size in named if part and (part.worker == 0) == self._chief}
        changed = {
            part for part, (_, size) in sizes.items() if part not in self._parts or self._parts[part].size != size
        }
        known = {_launch(part) for part in self._parts}
        for launch, parts in groupby(sorted(changed), _launch):
            *inner, last = parts
            for part in (*inner, last):
                name, size = sizes[part]
                file = self._parts.get(part)
                if file is None or size < file.size:
                    # A file that became shorter is read again from its beginning.
                    file = EventFile(partial(self.files.read, name))
                if launch in known:
                    file.append(size)
                elif part in (*inner[:1], last):
                    file.read_ends(size)
                else:
                    file.skip(size)
                self._parts[part] = file
        return bool(changed)

    def fill(self) -> None:
        """Read everything that was listed. Raises Problem."""
        missing = [file for file in self._parts.values() if not file.filled]
        if len(missing) > 1:
            # Each costs a round trip to a bucket.
            with ThreadPoolExecutor(_THREADS, thread_name_prefix="events") as pool:
                list(pool.map(EventFile.fill, missing))
        for file in missing:
            file.fill()

    def forget(self) -> None:
        """Drop all but the ends."""
        for file in self._parts.values():
            file.forget()

    @property
    def filled(self) -> bool:
        return all(file.filled for file in self._parts.values())

    def launches(self) -> list[tuple[PartName, Columns]]:
        """Return the launches that have events, in order of time: their names, and what was read of them."""
        launches = []
        for _, parts in groupby(sorted(self._parts), _launch):
            first, *rest = parts
            columns = join([columns for part in (first, *rest) for columns in self._parts[part].columns()])
            if columns is not None:
                launches.append((first, columns))
        return sorted(launches, key=lambda entry: (entry[0].attempt, entry[1].first))


def _launch(part: PartName) -> tuple[int, str, int]:
    return part[:3]
