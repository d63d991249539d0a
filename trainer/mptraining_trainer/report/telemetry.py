"""Events of this process on standard output and in the run folder; line-wise output of threads; peak memory.

Every clock of the trainer is read here or passed in from here.
"""

from __future__ import annotations

import io
import os
import resource
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any, Protocol, TextIO

import psutil

from mptraining_api import events
from mptraining_api.events import Event, Finished, Notice
from mptraining_api.launch import WorkerIdentity
from mptraining_api.run_folder import events_file
from mptraining_storage import storage
from mptraining_storage.outbox import Outbox
from mptraining_trainer.report.secrets import SecretValues

# Longest line without a newline, in characters, that is buffered for a thread.
_LONGEST = 8192


class WholeLines(io.TextIOBase):
    """Stream that buffers each thread's output until its line ends or is flushed, then writes it to `out`."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._process = os.getpid()
        # Called with all output except separate lines (Events); it must neither block nor raise.
        self.copy: Callable[[str], None] = lambda _: None
        self._lock = threading.RLock()
        self._partial_lines: dict[int, str] = {}
        # Whether the last written character ended a line.
        self._at_start = True

    def write(self, text: str) -> int:
        """Write or buffer the text; return its number of characters."""
        if os.getpid() != self._process:
            # A forked child: the thread that held the lock does not exist in it.
            return self._out.write(text)
        with self._lock:
            thread_id = threading.get_ident()
            complete, newline, partial = (self._partial_lines.pop(thread_id, "") + text).rpartition("\n")
            if newline:
                self._write_both(complete + newline)
            if len(partial) > _LONGEST:
                self._write_both(partial)
            elif partial:
                self._partial_lines[thread_id] = partial
        return len(text)

    def flush(self) -> None:
        """Write this thread's partial line, such as a progress bar, and those of threads that have ended."""
        if os.getpid() != self._process:
            self._out.flush()
            return
        with self._lock:
            others = {thread.ident for thread in threading.enumerate()} - {threading.get_ident()}
            for thread in self._partial_lines.keys() - others:
                self._write_both(self._partial_lines.pop(thread))
            self._out.flush()

    def line(self, text: str) -> None:
        """Write a separate line immediately; end a partially flushed line first."""
        with self._lock:
            if not self._at_start:
                self._write_out("\n")
            self._write_out(text + "\n")
            self._out.flush()

    def isatty(self) -> bool:
        """Return whether the stream below is a terminal."""
        return self._out.isatty()

    def fileno(self) -> int:
        """Return the file descriptor of the stream below."""
        return self._out.fileno()

    def writable(self) -> bool:
        """Return True."""
        return True

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """The encoding of the stream below."""
        return self._out.encoding

    @property
    def buffer(self) -> io.BufferedIOBase:
        """The binary buffer of the stream below."""
        return self._out.buffer  # type: ignore[return-value]

    def _write_both(self, text: str) -> None:
        self.copy(text)
        self._write_out(text)

    def _write_out(self, text: str) -> None:
        self._out.write(text)
        self._at_start = text.endswith("\n")


def as_whole_lines(out: TextIO | WholeLines) -> WholeLines:
    """Return `out` as WholeLines; `out` itself if it is one already."""
    return out if isinstance(out, WholeLines) else WholeLines(out)


# Events that wait for a bucket. Of more, which takes a day without it, the first and the last ones are kept.
_MOST_LINES = 10_000
# Seconds that the end of a run waits for its last events.
_CLOSE_SECONDS = 10.0
# The kubelet truncates a termination log at this size, and truncated JSON cannot be parsed.
_TERMINATION_LOG_BYTES = 4096


@dataclass(eq=False, repr=False)
class Telemetry:
    """Reports the Events of one worker. `output` is the run folder, None if events are not stored.

    The Finished event is also written to the file `termination_log`, if it is set. Values of `secrets` are removed from
    all messages.
    """

    identity: WorkerIdentity
    output: str | None
    _: KW_ONLY
    termination_log: str | None = None
    secrets: SecretValues = field(default_factory=lambda: SecretValues({}))
    stream: TextIO | None = None
    wall: Callable[[], float] = time.time
    now: Callable[[], float] = time.monotonic
    outbox: Outbox = field(default_factory=Outbox)
    part_seconds: float | None = None

    def __post_init__(self) -> None:
        self._process = os.getpid()
        self._out = as_whole_lines(self.stream or sys.stdout)
        self._began = self.now()
        # Objects in a bucket cannot be appended to: events are buffered for a time and uploaded as the next part.
        self._end_upload: Callable[[float], None] | None = None
        self._part = 0
        self._lines: list[str] = []
        self._topics: set[str] = set()
        # Other threads report events too, such as the writer of checkpoints.
        self._lock = threading.RLock()
        self.warnings: list[str] = []
        # Called with every event after it is reported; they must neither block nor raise.
        self.listeners: list[Callable[[Event], None]] = []

    def seconds(self) -> float:
        """Return the seconds since this object was created."""
        return self.now() - self._began

    def process_seconds(self) -> float:
        """Return the seconds since this process was started, by the wall clock."""
        return round(max(0.0, self.wall() - psutil.Process().create_time()), 3)

    def emit(self, kind: type[Event], **fields: Any) -> None:
        """Report one event: a line on standard output and a line in the run folder; nothing in a forked child."""
        if os.getpid() != self._process:
            return
        if "message" in fields:
            fields["message"] = self.redact(fields["message"])
        event = kind(
            time=round(self.wall(), 3),
            attempt=self.identity.attempt,
            incarnation=self.identity.incarnation,
            worker=self.identity.index,
            **fields,
        )
        line = event.to_json()
        with self._lock:
            self._out.line(line)
            # The termination log comes before the run folder, whose write may fail.
            if self.termination_log and isinstance(event, Finished):
                _write_termination_log(self.termination_log, event)
            self._store(line)
        for listener in self.listeners:
            listener(event)

    def notice(self, topic: str, message: str, *, level: str = "Info") -> None:
        """Report `message` once for each topic and message; `warnings` are stored for the result."""
        message = self.redact(message)
        if f"{topic}: {message}" in self._topics:
            return
        self._topics.add(f"{topic}: {message}")
        if level == "Warning":
            self.warnings.append(f"{topic}: {message}")
        self.emit(Notice, level=level, topic=topic, message=message)

    def redact(self, text: str) -> str:
        """Return the text without values of Secrets."""
        return self.secrets.redact(text)

    def close(self) -> None:
        """Upload the buffered events; give up if the bucket does not answer."""
        if self._end_upload is not None:
            self._end_upload(_CLOSE_SECONDS)
        if self.output is not None and self._lines:
            print(f"warning: {self.output}: the last events are not kept", file=sys.stderr)

    def disable_output(self) -> None:
        """Write no further events to the run folder, which belongs to another job or cannot be reached."""
        self.output = None

    def _store(self, line: str) -> None:
        if self.output is None:
            return
        if storage.is_remote(self.output):
            self._lines.append(line)
            if self._end_upload is None:
                self._end_upload = self.outbox.repeat(
                    "events", self._upload, self.output, on_failure=self._warn, seconds=self.part_seconds
                )
            return
        path = storage.local_path(self._file())
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with Path(path).open("a", encoding="utf-8") as file:
                file.write(line + "\n")
        except OSError as error:
            # Events that cannot be stored must not end the run; the next write to the folder reports its error.
            self.output = None
            self.notice("EventsNotKept", f"{path.parent}: {error.strerror or error}", level="Warning")

    def _upload(self, _last: bool) -> None:
        with self._lock:
            lines, self._lines = self._lines, []
        if self.output is None or not lines:
            return
        try:
            storage.write(self._file(), ("\n".join(lines) + "\n").encode())
        except BaseException:
            with self._lock:
                lines += self._lines
                half = _MOST_LINES // 2
                self._lines = lines if len(lines) <= _MOST_LINES else lines[:half] + lines[-half:]
            raise
        self._part += 1

    def _warn(self, cause: str) -> None:
        self.notice("EventsNotKept", f"{cause}; they are kept when storage answers", level="Warning")

    def _file(self) -> str:
        assert self.output is not None
        identity = self.identity
        return storage.join(
            self.output, events_file(identity.attempt, identity.incarnation, identity.index, self._part)
        )


def _write_termination_log(path: str, event: Finished) -> None:
    try:
        Path(path).write_text(_short(event), encoding="utf-8")
    except OSError as error:
        # The exit code still reports the outcome, so this is only a warning.
        print(f"warning: {path}: {error.strerror or error}", file=sys.stderr)


def add_hand_over(path: str, *, fetched: bool) -> None:
    """Add to the Finished event in the termination log `path` whether the kept folder was fetched."""
    try:
        event = events.parse(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        return
    if isinstance(event, Finished):
        _write_termination_log(path, event.model_copy(update={"hand_over": "Fetched" if fetched else "NotFetched"}))


def _short(event: Finished) -> str:
    """Return the event in `_TERMINATION_LOG_BYTES`: without metrics, then with a truncated message, if it is longer."""
    line, message = event.to_json(), event.message
    if len(line.encode()) > _TERMINATION_LOG_BYTES:
        event = event.model_copy(update={"metrics": {}})
        line = event.to_json()
    while len(line.encode()) > _TERMINATION_LOG_BYTES:
        # Characters have different lengths in JSON.
        message = message[: len(message) * 19 // 20]
        line = event.model_copy(update={"message": f"{message}…"}).to_json()
    return line


def peak_memory_bytes() -> int:
    """Return the peak resident set size of this process in bytes (ru_maxrss is in KiB on Linux)."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


class Notify(Protocol):
    """Reports `message` once for each topic and message."""

    def __call__(self, topic: str, message: str, *, level: str = "Info") -> None: ...
