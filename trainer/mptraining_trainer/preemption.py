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
        # A child process of a user's script must not inherit the block, or nothing could end it.
        os.register_at_fork(
            after_in_child=lambda: signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        )
        threading.Thread(target=self._wait, name="preemption", daemon=True).start()

    def asked(self) -> bool:
        """Whether this process has been told to leave."""
        return self._asked.is_set()

    def _wait(self) -> None:
        signal.sigwait({signal.SIGTERM})
        self._asked.set()
        timer = threading.Timer(self._grace, self._leave)
        timer.daemon = True
        timer.start()
