"""Worker processes of one local run: started together, read line by line, ended together.

This module holds the processes, pipes and signals; `mptraining.local.outcome` decides when a signal is due. Each
worker leads its own process group, so that Ctrl-C on the terminal reaches only this program, which sends SIGTERM to
the workers and waits for their last checkpoint.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import IO, Literal, Self

from mptraining.local import watchdog
from mptraining.local.outcome import End, GangEnd, Timeouts, due_signal

Stream = Literal["stdout", "stderr"]
OnLine = Callable[[int, Stream, str], None]

TICK_SECONDS = 0.1
# How long the pipes of an ended worker are still read: a grandchild may hold them open.
DRAIN_SECONDS = 1.0
LONGEST_LINE = 1 << 20


@dataclass(frozen=True, slots=True)
class Worker:
    """One worker process to start; `environment` is its complete environment."""

    index: int
    command: tuple[str, ...]
    environment: Mapping[str, str]


@dataclass
class _Pipe:
    """One output stream of one worker; `rest` is its unfinished last line."""

    file: IO[bytes]
    stream: Stream
    rest: bytes = b""

    def lines(self) -> list[str] | None:
        """Return the lines that became complete; None at the end of the stream."""
        try:
            data = os.read(self.file.fileno(), 1 << 16)
        except BlockingIOError:
            return []
        if not data:
            return None
        *whole, self.rest = (self.rest + data).split(b"\n")
        if len(self.rest) > LONGEST_LINE:
            whole, self.rest = [*whole, self.rest], b""
        return [_text(line) for line in whole]


def _text(line: bytes) -> str:
    """Return the line as a terminal would show it at the end: after carriage returns, the last part."""
    text = line.decode("utf-8", errors="replace").replace("\b", "\r").rstrip("\r")
    return text.rpartition("\r")[2]


@dataclass
class _Member:
    worker: Worker
    process: subprocess.Popen[bytes]
    pipes: list[_Pipe]
    signalled: bool = False
    ended_at: float | None = None

    def send(self, number: int) -> None:
        self.signalled = True
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)


class Signals:
    """Context manager that records SIGINT, SIGTERM and SIGHUP; a signal that was ignored (nohup) stays ignored."""

    def __init__(self, received: list[int]) -> None:
        self.received = received
        self._stack = ExitStack()

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self.received.append(number)

    def __enter__(self) -> Self:
        # Python allows signal handlers only in the main thread, and runs them there.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                before = signal.getsignal(number)
                if before is not signal.SIG_IGN:
                    signal.signal(number, self._note)
                    self._stack.callback(signal.signal, number, before)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


@dataclass
class _Gang:
    on_line: OnLine
    timeouts: Timeouts
    clock: Callable[[], float]
    watchdog: IO[bytes]
    selector: selectors.BaseSelector
    members: list[_Member] = field(default_factory=list)
    ends: list[End] = field(default_factory=list)
    failed_at: float | None = None
    signalled_at: float | None = None

    def start(self, worker: Worker) -> None:
        process = subprocess.Popen(  # noqa: S603 - the trainer's command, no shell
            worker.command,
            env=dict(worker.environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        assert process.stdout
        assert process.stderr
        member = _Member(worker, process, [_Pipe(process.stdout, "stdout"), _Pipe(process.stderr, "stderr")])
        self.members.append(member)
        self._write_to_watchdog(f"+{process.pid}\n")
        for pipe in member.pipes:
            os.set_blocking(pipe.file.fileno(), False)
            self.selector.register(pipe.file, selectors.EVENT_READ, (member, pipe))

    def running(self) -> bool:
        return any(member.ended_at is None or member.pipes for member in self.members)

    def poll(self) -> None:
        """Wait at most TICK_SECONDS for output, pass it to `on_line`, and record the workers that ended."""
        for key, _ in self.selector.select(TICK_SECONDS):
            member, pipe = key.data
            self._read(member, pipe)
        now = self.clock()
        for member in self.members:
            if member.ended_at is None and member.process.poll() is not None:
                self._ended(member, now)
            if member.ended_at is not None and now - member.ended_at >= DRAIN_SECONDS:
                for pipe in list(member.pipes):
                    self._close(member, pipe)

    def send(self, number: int) -> None:
        self.signalled_at = self.clock() if self.signalled_at is None else self.signalled_at
        for member in self.members:
            if member.ended_at is None:
                member.send(number)

    def send_due_signal(self, interrupts: int) -> None:
        number = due_signal(
            self.clock(),
            interrupts=interrupts,
            failed_at=self.failed_at,
            signalled_at=self.signalled_at,
            timeouts=self.timeouts,
        )
        if number is signal.SIGKILL or (number is not None and self.signalled_at is None):
            self.send(number)

    def _read(self, member: _Member, pipe: _Pipe) -> None:
        lines = pipe.lines()
        if lines is None:
            self._close(member, pipe)
        for line in lines or []:
            self.on_line(member.worker.index, pipe.stream, line)

    def _close(self, member: _Member, pipe: _Pipe) -> None:
        self.selector.unregister(pipe.file)
        pipe.file.close()
        member.pipes.remove(pipe)
        if pipe.rest:
            self.on_line(member.worker.index, pipe.stream, _text(pipe.rest))

    def _ended(self, member: _Member, now: float) -> None:
        code = member.process.returncode
        self.ends.append(End(member.worker.index, code, member.signalled))
        member.ended_at = now
        if code != 0 and self.failed_at is None:
            self.failed_at = now
        # Child processes that a worker leaves behind would hold its files and ports.
        member.send(signal.SIGKILL)
        self._write_to_watchdog(f"-{member.process.pid}\n")

    def _write_to_watchdog(self, line: str) -> None:
        with suppress(BrokenPipeError):
            self.watchdog.write(line.encode())
            self.watchdog.flush()


def run_gang(
    workers: Sequence[Worker],
    *,
    on_line: OnLine,
    on_stop: Callable[[int], float | None],
    timeouts: Timeouts,
    clock: Callable[[], float] = time.monotonic,
    signals: list[int] | None = None,
) -> GangEnd:
    """Start the workers and return when all have ended; no worker outlives this call, even after an exception.

    `on_line` gets (worker, stream, line without its end) for all output. `on_stop` is called with the number of each
    signal that this program receives (SIGINT, SIGTERM, SIGHUP): after the first, the workers get SIGTERM, and SIGKILL
    `timeouts.stop` seconds later, or after the seconds that `on_stop` returns; after the second, they get SIGKILL at
    once. Outside the main thread, which alone receives signals, the main thread appends them to `signals`.
    """
    received = [] if signals is None else signals
    watching = subprocess.Popen(  # noqa: S603 - our own file
        [sys.executable, "-I", "-S", str(Path(watchdog.__file__)), str(timeouts.stop)],
        stdin=subprocess.PIPE,
        start_new_session=True,
    )
    assert watching.stdin
    with Signals(received), selectors.DefaultSelector() as selector, watching, watching.stdin:
        gang = _Gang(on_line, timeouts, clock, watching.stdin, selector)
        handled = 0
        try:
            for worker in workers:
                gang.start(worker)
            while gang.running():
                gang.poll()
                for number in received[handled:]:
                    handled += 1
                    seconds = on_stop(number)
                    if seconds is not None:
                        gang.timeouts = replace(gang.timeouts, stop=seconds)
                gang.send_due_signal(handled)
        finally:
            # Workers still run here only after an exception in this program; they get the time to save.
            gang.on_line = lambda *_: None
            if gang.running():
                gang.send(signal.SIGTERM)
            while gang.running():
                gang.poll()
                gang.send_due_signal(len(received))
        return GangEnd(tuple(gang.ends), received[0] if handled else None)
