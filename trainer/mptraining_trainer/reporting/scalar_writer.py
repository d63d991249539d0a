"""TensorBoard scalars of a run, written from its Events by a background thread: training never waits for them.

tensorboard/train/events.out.tfevents…   tensorboard/validation/events.out.tfevents…
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from mptraining_api import run_folder
from mptraining_api.events import Event, Progress
from mptraining_api.launch import WorkerIdentity
from mptraining_api.outputs.scalars import ScalarSeries
from mptraining_api.problems import Problem
from mptraining_records.storage import storage
from mptraining_records.tfrecord.event_file import EventFiles

_LOCAL_SECONDS = 1.0
# As often as events: an object is written whole.
_REMOTE_SECONDS = 30.0
_CLOSE_SECONDS = 5.0
# Below tensorboard/, where the program's own callback writes to train/ and validation/.
_BESIDE_CALLBACK = "job"


class ScalarWriter:
    """Writes the scalars of one launch; create it on the chief only. `on_failure` gets a message, once."""

    def __init__(
        self,
        identity: WorkerIdentity,
        folder: str,
        *,
        on_failure: Callable[[str], None],
        seconds: float | None = None,
    ) -> None:
        self._name = f"{identity.attempt}-{identity.incarnation}"
        self._folder = storage.join(folder, run_folder.TENSORBOARD)
        self._on_failure = on_failure
        self._seconds = seconds or (_REMOTE_SECONDS if storage.is_remote(folder) else _LOCAL_SECONDS)
        self._events: deque[Event] = deque()
        self._series = ScalarSeries()
        self._files: EventFiles | None = None
        self._failed = False
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def write_beside_callback(self) -> None:
        """Write to another folder than the program's TensorBoard callback; call it before training.

        TensorBoard follows one file of a folder, the last one.
        """
        # A rollback builds the program again.
        if not self._folder.endswith(f"/{_BESIDE_CALLBACK}"):
            self._folder = storage.join(self._folder, _BESIDE_CALLBACK)

    def on_event(self, event: Event) -> None:
        """Take an event; return at once. Nothing is written before the first Progress: then the folder is claimed."""
        self._events.append(event)
        if self._thread is None and isinstance(event, Progress):
            self._thread = threading.Thread(target=self._run, name="scalars", daemon=True)
            self._thread.start()

    def close(self, seconds: float = _CLOSE_SECONDS) -> None:
        """Write the rest; give up after `seconds`."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join(seconds)

    def _run(self) -> None:
        while not self._closing.wait(self._seconds):
            self._write()
        self._write()

    def _write(self) -> None:
        try:
            for _ in range(len(self._events)):
                event = self._events.popleft()
                self._files = self._files or EventFiles(self._folder, self._name, event.time)
                self._files.add(self._series.add(event))
            if self._files is not None:
                self._files.flush()
        except (Problem, OSError) as error:
            self._report(str(error))
        except Exception as error:  # noqa: BLE001 - an error here must not end the thread
            self._report(f"{type(error).__name__}: {error}")

    def _report(self, message: str) -> None:
        if not self._failed:
            self._failed = True
            self._on_failure(message)
