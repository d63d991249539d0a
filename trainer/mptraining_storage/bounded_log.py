"""Bounded text log in a folder or a bucket: the first and the last lines are kept, and a line counts the missing bytes.

    part 0     the beginning, at most HEAD_BYTES
    part 1     one line about the bytes that are missing; it exists only if there are any
    part 2...  the end, in parts of at most PART_BYTES, of which the last LAST_PARTS are kept

The parts in order are the log. A local part is appended to; an object is replaced while its part grows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field

from mptraining_storage import local, storage
from mptraining_storage.outbox import CLOSE_SECONDS, Outbox

HEAD_BYTES = 1 << 20
PART_BYTES = 256 << 10
LAST_PARTS = 4
GAP_PART = 1
# Longest line, in characters; the rest of a longer one is another line.
LONGEST_LINE = 8192
# A line that does not end is written from this length on: it would be searched again at every interval.
_LONGEST_PARTIAL = 16 * LONGEST_LINE
# Text that waits for the thread, in characters; if storage is slower than the program, the newest lines are dropped.
_MOST_PENDING = 4 << 20


@dataclass(frozen=True, slots=True)
class Change:
    """A part to write: all of its `content`, the first `stored` bytes of which are stored; None: delete it."""

    part: int
    content: bytes | None
    stored: int = 0


class BoundedLog:
    """The parts of a log in memory, of which at most HEAD_BYTES + (LAST_PARTS + 1) * PART_BYTES bytes are kept."""

    def __init__(
        self, *, head_bytes: int = HEAD_BYTES, part_bytes: int = PART_BYTES, last_parts: int = LAST_PARTS
    ) -> None:
        self._head_bytes = head_bytes
        self._part_bytes = part_bytes
        self._last_parts = last_parts
        self._parts: dict[int, bytearray] = {0: bytearray()}
        self._stored: dict[int, int] = {}
        self._last = 0
        self._deleted: list[int] = []
        self.missing_bytes = 0

    def append(self, line: str) -> None:
        """Append a line, which ends in a newline, to the last part; open and delete parts as necessary."""
        data = line.encode("utf-8", errors="replace")
        most = self._head_bytes if self._last == 0 else self._part_bytes
        if len(self._parts[self._last]) + len(data) > most:
            self._last = max(self._last + 1, GAP_PART + 1)
            self._parts[self._last] = bytearray()
            oldest = self._last - self._last_parts
            if oldest > GAP_PART:
                self.count_missing(len(self._parts.pop(oldest)))
                self._stored.pop(oldest, None)
                self._deleted.append(oldest)
        self._parts[self._last] += data

    def count_missing(self, size: int) -> None:
        """Add `size` bytes to those that the gap's line counts."""
        self.missing_bytes += size
        self._parts[GAP_PART] = bytearray(f"… {self.missing_bytes:,} bytes of output are not kept here …\n".encode())
        # The line is replaced and not appended to.
        self._stored[GAP_PART] = 0

    def changes(self) -> list[Change]:
        """Return what storage lacks. The line about the gap is written before the parts that it counts are deleted."""
        written = [
            Change(part, bytes(content), self._stored.get(part, 0))
            for part, content in sorted(self._parts.items())
            if len(content) > self._stored.get(part, 0)
        ]
        return [*written, *(Change(part, None) for part in self._deleted)]

    def confirm(self, change: Change) -> None:
        """Record that storage has a change of `changes`."""
        if change.content is None:
            self._deleted.remove(change.part)
        elif change.part in self._parts:
            self._stored[change.part] = len(change.content)


@dataclass(eq=False, repr=False)
class LogWriter:
    """Keeps the lines of one program in `folder` through an outbox; no method raises or waits for storage.

    `name` returns a part's path below the folder, `redact` the text without secret values. `on_failure` gets a message
    if the log cannot be written; it is retried after every interval.
    """

    folder: str
    name: Callable[[int], str]
    _: KW_ONLY
    redact: Callable[[str], str] = str
    on_failure: Callable[[str], None] = lambda _: None
    seconds: float | None = None
    log: BoundedLog = field(default_factory=BoundedLog)
    outbox: Outbox = field(default_factory=Outbox)

    def __post_init__(self) -> None:
        self._remote = storage.is_remote(self.folder)
        # A deque needs no lock, which a fork could leave locked in a child process of the program.
        self._pending: deque[str] = deque()
        self._pending_size = 0
        self._dropped = 0
        self._partial = ""
        self._end: Callable[[float], None] | None = None

    def start(self) -> None:
        """Begin to write; until then the text waits in memory."""
        self._end = self.outbox.repeat(
            "program output", self._write, self.folder, on_failure=self.on_failure, seconds=self.seconds
        )

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Write the rest; give up after `seconds`."""
        if self._end is not None:
            self._end(seconds)

    def add(self, text: str) -> None:
        """Add any text, from any thread; complete lines are written."""
        if self._pending_size > _MOST_PENDING:
            self._dropped += len(text)
            return
        self._pending_size += len(text)
        self._pending.append(text)

    def _write(self, last: bool) -> None:
        self._take(last=last)
        for change in self.log.changes():
            self._store(change)
            self.log.confirm(change)

    def _take(self, *, last: bool) -> None:
        """Move the pending text into the log by whole lines, without secrets and overwritten progress bars."""
        pending = [self._pending.popleft() for _ in range(len(self._pending))]
        # This is not exact if the program writes at this moment, and need not be.
        self._pending_size = 0
        *lines, self._partial = (self._partial + "".join(pending)).split("\n")
        self._partial = _shown(self._partial, complete=False)
        if self._partial and (last or len(self._partial) > _LONGEST_PARTIAL):
            lines, self._partial = [*lines, self._partial], ""
        if lines:
            # All at once, because a value may span lines, and files of secrets are read for each call.
            text = self.redact("\n".join(_shown(line) for line in lines))
            for line in text.split("\n"):
                for start in range(0, max(1, len(line)), LONGEST_LINE):
                    self.log.append(line[start : start + LONGEST_LINE] + "\n")
        if self._dropped:
            self.log.count_missing(self._dropped)
            self._dropped = 0

    def _store(self, change: Change) -> None:
        uri = storage.join(self.folder, self.name(change.part))
        if change.content is None:
            storage.delete(uri)
        elif self._remote or change.part == GAP_PART:
            storage.write(uri, change.content)
        else:
            local.append(storage.local_path(uri), change.content, change.stored)


def _shown(line: str, *, complete: bool = True) -> str:
    """Return the line as a terminal shows it: the text after the last carriage return or backspace."""
    text = line.replace("\b", "\r")
    if complete:
        text = text.rstrip("\r")
        return text.rpartition("\r")[2]
    # A progress bar that is not complete yet: only its last state can become the line.
    before, separator, after = text.rpartition("\r")
    return after or before.rpartition("\r")[2] + separator
