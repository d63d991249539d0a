"""A background thread that writes to a folder or a bucket at intervals, so that training never waits for storage."""

from __future__ import annotations

import threading
from collections.abc import Callable

from mptraining_api.problems import Problem
from mptraining_records.storage import storage

_LOCAL_SECONDS = 1.0
# As often as events: an object is written whole.
_REMOTE_SECONDS = 30.0
CLOSE_SECONDS = 5.0


class BackgroundWriter:
    """Calls `write` in a thread after each interval, and once more when it is closed; no method raises.

    `write` gets whether it is the last call; after an error it is called again at the next interval. `folder` decides
    the interval, unless `seconds` gives it. `on_failure` gets the message of the first error.
    """

    def __init__(
        self,
        write: Callable[[bool], None],
        folder: str,
        *,
        name: str,
        on_failure: Callable[[str], None],
        seconds: float | None = None,
    ) -> None:
        self._write = write
        self._name = name
        self._on_failure = on_failure
        self._seconds = seconds or (_REMOTE_SECONDS if storage.is_remote(folder) else _LOCAL_SECONDS)
        self._failed = False
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to write; a second call does nothing."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Write the rest; give up after `seconds`."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join(seconds)

    def _run(self) -> None:
        while not self._closing.wait(self._seconds):
            self._try(last=False)
        self._try(last=True)

    def _try(self, *, last: bool) -> None:
        try:
            self._write(last)
        except (OSError, Problem) as error:
            self._report(str(error))
        except Exception as error:  # noqa: BLE001 - an error here must not end the thread
            self._report(f"{type(error).__name__}: {error}")

    def _report(self, message: str) -> None:
        if not self._failed:
            self._failed = True
            self._on_failure(message)
