"""The background thread through which a run's files reach folders and buckets, so that training never waits for them.

Writes run one after the other. At most one of each name waits, since what it would write supersedes an older one, so
that an outage of any length needs a bounded memory. A write that finds storage unavailable is tried again until it
succeeds or is superseded.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from mptraining_api.problems import Problem, StorageFull, StorageUnavailable
from mptraining_storage import storage
from mptraining_storage.retry import without_retries

_LOCAL_SECONDS = 1.0
# An object is written whole.
_REMOTE_SECONDS = 30.0
# Seconds that the end of a run waits for files that are written at intervals.
CLOSE_SECONDS = 5.0
# The pause before another try, in addition to the retries of the storage itself.
_PAUSE_SECONDS = 1.0


@dataclass
class _Write:
    name: str
    run: Callable[[], object]
    due: float
    # None: it runs once.
    interval: float | None = None


class Outbox:
    """Runs writes in one thread, which ends while nothing waits. Thread-safe.

    In a forked child process all methods do nothing: the files belong to the parent, and a lock may be held for ever.
    """

    def __init__(self) -> None:
        self._process = os.getpid()
        self._changed = threading.Condition()
        self._waiting: dict[str, _Write] = {}
        self._running: _Write | None = None
        self._thread: threading.Thread | None = None
        # Names of writes that are not tried again, because a thread waits for their result.
        self._awaited: set[str] = set()
        self._errors: dict[str, Exception] = {}

    def put(self, name: str, write: Callable[[], object]) -> None:
        """Run `write` once, in place of one of this name that has not begun.

        Raise the error of an earlier write of this name, unless storage was unavailable.
        """
        if self._is_forked():
            return
        with self._changed:
            if name in self._errors:
                raise self._errors.pop(name)
            self._add(_Write(name, write, time.monotonic()))

    def withdraw(self, name: str) -> bool:
        """Forget the write of this name that has not begun; return whether there was one. The next one has its turn."""
        if self._is_forked():
            return False
        with self._changed:
            waiting = self._waiting.get(name)
            if waiting is not None:
                waiting.run = lambda: None
            return waiting is not None

    def wait(self, name: str) -> None:
        """Wait until no write of this name waits or runs; raise its error, also StorageUnavailable."""
        self._settle([name], None)
        with self._changed:
            if name in self._errors:
                raise self._errors.pop(name)

    def drain(self, seconds: float) -> None:
        """Wait `seconds` at most until every write that runs once has ended; no request is tried again meanwhile."""
        if self._is_forked():
            return
        with self._changed:
            unfinished = [*self._waiting.values(), *([self._running] if self._running else [])]
        with without_retries():
            self._settle([write.name for write in unfinished if write.interval is None], seconds)

    def repeat(
        self,
        name: str,
        write: Callable[[bool], None],
        folder: str,
        *,
        on_failure: Callable[[str], None],
        seconds: float | None = None,
    ) -> Callable[[float], None]:
        """Call `write(False)` after each interval; return a function that calls `write(True)` and ends it.

        That function gives up after so many seconds. An error does not end the repetition; `on_failure` gets the
        message of the first one. `folder` decides the interval, unless `seconds` gives it.
        """
        interval = seconds or (_REMOTE_SECONDS if storage.is_remote(folder) else _LOCAL_SECONDS)
        failed = False

        def attempt(*, last: bool) -> None:
            nonlocal failed
            try:
                write(last)
            except Exception as error:  # noqa: BLE001 - an error here must not end the repetition
                if not failed:
                    failed = True
                    expected = isinstance(error, OSError | Problem)
                    on_failure(str(error) if expected else f"{type(error).__name__}: {error}")

        def end(seconds: float = CLOSE_SECONDS) -> None:
            if not self._is_forked():
                with self._changed:
                    self._add(_Write(name, lambda: attempt(last=True), time.monotonic()))
                self._settle([name], seconds)

        if not self._is_forked():
            with self._changed:
                self._add(_Write(name, lambda: attempt(last=False), time.monotonic() + interval, interval))
        return end

    def _is_forked(self) -> bool:
        return os.getpid() != self._process

    def _add(self, write: _Write) -> None:
        if (superseded := self._waiting.get(write.name)) is not None:
            write.due = min(write.due, superseded.due)
        self._waiting[write.name] = write
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="outbox", daemon=True)
            self._thread.start()
        self._changed.notify_all()

    def _settle(self, names: list[str], seconds: float | None) -> None:
        """Wait until no write of these names waits or runs, `seconds` at most; meanwhile none is tried again."""
        if self._is_forked():
            return
        with self._changed:
            self._awaited.update(names)
            for name in self._waiting.keys() & set(names):
                self._waiting[name].due = min(self._waiting[name].due, time.monotonic())
            self._changed.notify_all()
            self._changed.wait_for(lambda: not any(self._is_unfinished(name) for name in names), seconds)
            self._awaited.difference_update(names)

    def _is_unfinished(self, name: str) -> bool:
        return name in self._waiting or (self._running is not None and self._running.name == name)

    def _run(self) -> None:
        while (write := self._next()) is not None:
            error: Exception | None = None
            try:
                write.run()
            except Exception as raised:  # noqa: BLE001 - it is raised in the thread that waits for the write
                error = raised
            with self._changed:
                self._running = None
                self._finish(write, error)
                # Else its content, such as a checkpoint, would stay in memory until the next write.
                del write, error
                self._changed.notify_all()

    def _next(self) -> _Write | None:
        """Wait until the next write is due and return it; None if nothing waits."""
        with self._changed:
            while self._waiting:
                first = min(self._waiting.values(), key=lambda write: write.due)
                pause = first.due - time.monotonic()
                if pause <= 0:
                    self._running = self._waiting.pop(first.name)
                    return first
                self._changed.wait(pause)
            self._thread = None
            return None

    def _finish(self, write: _Write, error: Exception | None) -> None:
        superseded = write.name in self._waiting
        unavailable = isinstance(error, StorageUnavailable) and not isinstance(error, StorageFull)
        if write.interval is not None or (unavailable and write.name not in self._awaited):
            if not superseded:
                write.due = time.monotonic() + (write.interval or _PAUSE_SECONDS)
                self._waiting[write.name] = write
        elif error is not None and not (unavailable and superseded):
            self._errors[write.name] = error
