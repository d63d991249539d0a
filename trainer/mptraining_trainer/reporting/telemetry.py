"""What this process says: Events to standard output and into the run folder, and the figures of the result.

Every clock of the trainer is read here or handed in from here.
"""

from __future__ import annotations

import bisect
import io
import resource
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TextIO

from mptraining_api.events import Event, Finished, Notice
from mptraining_api.launch import WorkerIdentity
from mptraining_api.problems import Problem
from mptraining_api.run_folder import events_file
from mptraining_records.storage import storage
from mptraining_trainer.reporting.secrets import SecretValues

# What a thread writes without a newline is passed on at this length, in characters.
_LONGEST = 8192


class WholeLines(io.TextIOBase):
    """Writes to `out` what each thread has finished of its line; what is flushed before goes at once."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._lock = threading.RLock()
        self._begun: dict[int, str] = {}
        # Whether the last character that went out ended a line.
        self._at_start = True

    def write(self, text: str) -> int:
        """As of any text stream: the number of characters."""
        with self._lock:
            me = threading.get_ident()
            whole, newline, begun = (self._begun.pop(me, "") + text).rpartition("\n")
            if newline:
                self._pass_on(whole + newline)
            if len(begun) > _LONGEST:
                self._pass_on(begun)
            elif begun:
                self._begun[me] = begun
        return len(text)

    def flush(self) -> None:
        """Passes on what this thread has begun, a progress bar perhaps, and what threads left that are gone."""
        with self._lock:
            others = {each.ident for each in threading.enumerate()} - {threading.get_ident()}
            for thread in self._begun.keys() - others:
                self._pass_on(self._begun.pop(thread))
            self._out.flush()

    def line(self, text: str) -> None:
        """A line of its own, at once; a line that was flushed before its end is ended first."""
        with self._lock:
            if not self._at_start:
                self._pass_on("\n")
            self._pass_on(text + "\n")
            self._out.flush()

    def isatty(self) -> bool:
        """Whether people look on."""
        return self._out.isatty()

    def fileno(self) -> int:
        """The file descriptor below."""
        return self._out.fileno()

    def writable(self) -> bool:
        """Always."""
        return True

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """The encoding of the stream below."""
        return self._out.encoding

    @property
    def buffer(self) -> io.BufferedIOBase:
        """The bytes below, for those that ask a text stream for them."""
        return self._out.buffer  # type: ignore[return-value]

    def _pass_on(self, text: str) -> None:
        self._out.write(text)
        self._at_start = text.endswith("\n")


def of(out: TextIO | WholeLines) -> WholeLines:
    """The stream itself if it is one already."""
    return out if isinstance(out, WholeLines) else WholeLines(out)


# A bucket cannot be appended to: events gather this long and become the next part.
_PART_SECONDS = 30.0
# The kubelet keeps this much of a termination log, and of JSON cut in two nobody could read the rest.
_TERMINATION_LOG_BYTES = 4096


class Telemetry:
    """Says events for one worker. `output` is the run folder, or None when nothing is kept.

    The last event is also written to the file `termination_log`, where there is one. No message repeats a value of
    `secrets`.
    """

    def __init__(
        self,
        identity: WorkerIdentity,
        output: str | None,
        *,
        termination_log: str | None = None,
        secrets: SecretValues | None = None,
        stream: TextIO | None = None,
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._seat = identity
        self._output = output
        self._termination_log = termination_log
        self._secrets = secrets or SecretValues({})
        self._out = of(stream or sys.stdout)
        self._wall = wall
        self._monotonic = monotonic
        self._began = monotonic()
        self._part = 0
        self._part_began = self._began
        self._lines: list[str] = []
        # While lines are uploaded, the storage's client may have something to say: it goes into the next part.
        self._uploading = False
        self._topics: set[str] = set()
        # Checkpoints are announced by the thread that wrote them.
        self._lock = threading.RLock()
        self.warnings: list[str] = []
        # Hears every event once it is said; must neither wait nor raise.
        self.listener: Callable[[Event], None] | None = None

    def now(self) -> float:
        """Seconds on a clock that only goes forward."""
        return self._monotonic()

    def seconds(self) -> float:
        """Seconds since this process began to speak."""
        return self._monotonic() - self._began

    def say(self, kind: type[Event], **fields: Any) -> None:
        """One event: a line on standard output, a line in the run folder."""
        if "message" in fields:
            fields["message"] = self.hide(fields["message"])
        event = kind(
            time=round(self._wall(), 3),
            attempt=self._seat.attempt,
            incarnation=self._seat.incarnation,
            worker=self._seat.index,
            **fields,
        )
        line = event.to_json()
        with self._lock:
            self._out.line(line)
            # Before the run folder: whatever becomes of that one, the cause is known.
            if self._termination_log and isinstance(event, Finished):
                _write_last_words(self._termination_log, event)
            self._keep(line)
        if self.listener is not None:
            self.listener(event)

    def notice(self, topic: str, message: str, *, level: str = "Info") -> None:
        """Says `message` once for each topic and message; `warnings` are kept for the result."""
        message = self.hide(message)
        if f"{topic}: {message}" in self._topics:
            return
        self._topics.add(f"{topic}: {message}")
        if level == "Warning":
            self.warnings.append(f"{topic}: {message}")
        self.say(Notice, level=level, topic=topic, message=message)

    def hide(self, text: str) -> str:
        """The text without values of Secrets."""
        return self._secrets.hide(text)

    def close(self) -> None:
        """Writes what is still held back."""
        with self._lock:
            if self._output is not None and self._lines and not self._upload():
                print(f"warning: {self._output}: the last events are not kept", file=sys.stderr)

    def forget_output(self) -> None:
        """Nothing more goes into the run folder: it turned out to be somebody else's."""
        self._output = None

    def _keep(self, line: str) -> None:
        if self._output is None:
            return
        if storage.is_remote(self._output):
            self._lines.append(line)
            if not self._uploading and self._monotonic() - self._part_began >= _PART_SECONDS:
                self._upload()
            return
        path = storage.local_path(self._file())
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with Path(path).open("a", encoding="utf-8") as file:
                file.write(line + "\n")
        except OSError as error:
            # What is wrong with the folder is said by whoever needs it; an account of the run is no reason to end it.
            self._output = None
            self.notice("EventsNotKept", f"{path.parent}: {error.strerror or error}", level="Warning")

    def _upload(self) -> bool:
        """Whether the lines are kept; if not, they go with the next part."""
        lines, self._uploading = len(self._lines), True
        try:
            storage.write(self._file(), ("\n".join(self._lines[:lines]) + "\n").encode())
        except Problem as problem:
            # An account of the run is no reason to end it.
            self._part_began = self._monotonic()
            self.notice("EventsNotKept", str(problem), level="Warning")
            return False
        finally:
            self._uploading = False
        del self._lines[:lines]
        self._part += 1
        self._part_began = self._monotonic()
        return True

    def _file(self) -> str:
        assert self._output is not None
        identity = self._seat
        return storage.join(
            self._output, events_file(identity.attempt, identity.incarnation, identity.index, self._part)
        )


def _write_last_words(path: str, event: Finished) -> None:
    try:
        Path(path).write_text(_short(event), encoding="utf-8")
    except OSError as error:
        # The exit code still says most of it.
        print(f"warning: {path}: {error.strerror or error}", file=sys.stderr)


def _short(event: Finished) -> str:
    """The event in at most `_TERMINATION_LOG_BYTES`: without metrics, then with as much of the message as fits."""
    line = event.to_json()
    if _fits(line):
        return line
    event = event.model_copy(update={"metrics": {}})
    line = event.to_json()
    if _fits(line):
        return line

    def cut(length: int) -> str:
        return event.model_copy(update={"message": f"{event.message[:length]}…"}).to_json()

    # How long a character becomes in JSON differs: the longest beginning that fits, by halving.
    beginnings = range(min(len(event.message), _TERMINATION_LOG_BYTES))
    return cut(max(0, bisect.bisect_left(beginnings, True, key=lambda length: not _fits(cut(length))) - 1))


def _fits(line: str) -> bool:
    return len(line.encode()) <= _TERMINATION_LOG_BYTES


def peak_memory_bytes() -> int:
    """The most memory this process has had resident, as the kernel counts it (ru_maxrss is in KiB on Linux)."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


class Notify(Protocol):
    """Reports `message` once for each topic and message."""

    def __call__(self, topic: str, message: str, *, level: str = "Info") -> None: ...
