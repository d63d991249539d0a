"""SIGTERM handling: the training loop polls for a stop request between two executions. Does not import TensorFlow."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress

from mptraining_trainer.forked_child import drop_in_children

# Pods on spot machines have 15 s after SIGTERM; 2 s of them are reserved for the operating system.
GRACE_SECONDS = 13.0


class Preemption:
    """A stop request from SIGTERM, with a deadline.

    TensorFlow with several workers installs its own SIGTERM handler, and a Python handler waits for the main thread,
    which may be blocked in a collective operation. So SIGTERM is blocked in all threads and received by one thread,
    which calls `leave` if the loop has not ended within `grace` seconds.
    """

    def __init__(self, leave: Callable[[], None], grace: float = GRACE_SECONDS) -> None:
        self._leave = leave
        self._grace = grace
        self._stop_requested = threading.Event()
        self._watching = False

    def watch(self) -> None:
        """Block SIGTERM. Call it in the main thread before TensorFlow starts threads: they inherit the signal mask."""
        self._watching = True
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        threading.Thread(target=self._wait, name="preemption", daemon=True).start()

    def unblock_for_children(self) -> None:
        """Unblock SIGTERM if it is watched. Call it in the main thread, when TensorFlow has its strategy, before a
        user's code.

        A child process inherits the blocked signal, also through `exec`, and could then only be killed. So the main
        thread receives the signal again; Python's part of a handler runs in C, whatever that thread executes, and
        notifies this class through a pipe. A handler that the program installs is called as well.
        """
        if not self._watching:
            return
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        threading.Thread(target=self._read, args=(reading,), name="preemption-pipe", daemon=True).start()

        # The program may replace the handler or the pipe, as asyncio does: the other one still notifies.
        def handler(*_: object) -> None:
            with suppress(BlockingIOError):
                os.write(writing, bytes([signal.SIGTERM]))

        def drop() -> None:
            if (current := signal.set_wakeup_fd(-1)) != writing:
                signal.set_wakeup_fd(current)
            os.close(reading)
            os.close(writing)
            if signal.getsignal(signal.SIGTERM) is handler:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)

        # This replaces the handler that a strategy over several workers has installed in C.
        signal.signal(signal.SIGTERM, handler)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        drop_in_children(drop)

    def stop_requested(self) -> bool:
        """Return whether this process has received SIGTERM."""
        return self._stop_requested.is_set()

    def wait(self, seconds: float) -> bool:
        """Wait `seconds` or until SIGTERM; return whether this process has received it."""
        return self._stop_requested.wait(seconds)

    def _wait(self) -> None:
        signal.sigwait({signal.SIGTERM})
        self._on_sigterm()

    def _read(self, pipe: int) -> None:
        while signal.SIGTERM not in os.read(pipe, 1):
            pass
        self._on_sigterm()

    def _on_sigterm(self) -> None:
        self._stop_requested.set()
        timer = threading.Timer(self._grace, self._leave)
        timer.daemon = True
        timer.start()
