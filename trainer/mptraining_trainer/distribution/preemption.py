"""SIGTERM as a question that the loop asks between two executions; no TensorFlow here, it comes before."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable

# Spot machines leave a pod 15 s; two of them belong to the operating system.
GRACE_SECONDS = 13.0


class Preemption:
    """Several-worker TensorFlow installs a SIGTERM handler of its own, and a handler of Python's waits for the main
    thread, which may be inside a collective operation for ever. So SIGTERM is blocked everywhere and taken by a
    thread that calls `leave` when the loop has not left within `grace` seconds.
    """

    def __init__(self, leave: Callable[[], None], grace: float = GRACE_SECONDS) -> None:
        self._leave = leave
        self._grace = grace
        self._asked = threading.Event()

    def watch(self) -> None:
        """To be called by the main thread before TensorFlow makes threads: they inherit the blocked signal."""
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        threading.Thread(target=self._wait, name="preemption", daemon=True).start()

    def spare_children(self) -> None:
        """To be called by the main thread, once TensorFlow has its threads, before a user's script runs.

        A child process inherits the blocked signal, through `exec` too, and could then only be killed. So the main
        thread takes the signal again; Python's part of a handler runs in C, wherever that thread is, and tells ours
        through a pipe. A handler that the script installs is called as well.
        """
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        threading.Thread(target=self._read, args=(reading,), name="preemption-pipe", daemon=True).start()
        # Ours replaces the one that a strategy over several workers has installed in C.
        signal.signal(signal.SIGTERM, lambda *_: None)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})

    def asked(self) -> bool:
        """Whether this process has been told to leave."""
        return self._asked.is_set()

    def wait(self, seconds: float) -> bool:
        """Waits so long, or until this process is told to leave; whether it has been."""
        return self._asked.wait(seconds)

    def _wait(self) -> None:
        signal.sigwait({signal.SIGTERM})
        self._heard()

    def _read(self, pipe: int) -> None:
        while signal.SIGTERM not in os.read(pipe, 1):
            pass
        self._heard()

    def _heard(self) -> None:
        self._asked.set()
        timer = threading.Timer(self._grace, self._leave)
        timer.daemon = True
        timer.start()
