"""State of a running operator in the log, on the signal SIGUSR1: queue, workers, cache, Lease, stacks of all threads.

The report is written by a thread of its own, so that neither a stuck worker nor the interrupted thread can prevent it.
Each part is read in a separate thread with a time limit: the lock that it needs may be the one that is stuck.
"""

from __future__ import annotations

import logging
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from typing import Any

_log = logging.getLogger(__name__)

_PART_SECONDS = 2.0


class Diagnostics:
    """Writer of the report. `parts` return JSON values, by the name under which the log has them."""

    def __init__(
        self,
        parts: Mapping[str, Callable[[], Any]],
        *,
        monotonic: Callable[[], float],
        seconds: float = _PART_SECONDS,
    ) -> None:
        self._parts = parts
        self._monotonic = monotonic
        self._seconds = seconds
        # A SimpleQueue, because its `put` is reentrant: a signal handler may interrupt another one that holds a lock.
        self._requests: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._readers: dict[str, threading.Thread] = {}
        self._thread = threading.Thread(target=self._run, name="diagnostics", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def install(self, number: signal.Signals = signal.SIGUSR1) -> None:
        """Write a report on each such signal. For the main thread."""
        signal.signal(number, lambda *_: self.request())

    def request(self) -> None:
        """Request a report; for signal handlers: takes no lock and does not block."""
        self._requests.put(None)

    def report(self) -> None:
        """Write the report: one record with all parts, then one for each thread."""
        # At any configured level: an administrator has asked for it.
        level = max(logging.INFO, logging.getLogger().getEffectiveLevel())
        _log.log(level, "state of the operator, as requested by a signal", extra=self._read_parts())
        for name, stack in thread_stacks().items():
            _log.log(level, "thread %s", name, extra={"stack": stack})

    def _read_parts(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, read in self._parts.items():
            # A reader that is still stuck is not joined by a second one.
            if name not in self._readers or not self._readers[name].is_alive():
                thread = threading.Thread(
                    target=_read, args=(found, name, read), name=f"diagnostics {name}", daemon=True
                )
                self._readers[name] = thread
                thread.start()
        until = self._monotonic() + self._seconds
        for thread in self._readers.values():
            thread.join(max(0.0, until - self._monotonic()))
        absent = f"no answer within {self._seconds:g} s: a thread holds its lock, see the stacks"
        # A copy, because a late reader may still write.
        return {name: found.copy().get(name, absent) for name in self._parts}

    def _run(self) -> None:
        while True:
            self._requests.get()
            try:
                self.report()
            except Exception:  # noqa: BLE001 - the next signal must find the thread
                _log.exception("the report of the operator's state failed")


def _read(found: dict[str, Any], name: str, read: Callable[[], Any]) -> None:
    try:
        found[name] = read()
    except Exception as error:  # noqa: BLE001 - the other parts are still of use
        found[name] = f"{type(error).__name__}: {error}"


def thread_stacks() -> dict[str, str]:
    """Return the stack of each Python thread, innermost call last, by the thread's name and number."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return {
        f"{names.get(number, 'unknown')} ({number})": "".join(traceback.format_stack(frame))
        for number, frame in sys._current_frames().items()
    }
