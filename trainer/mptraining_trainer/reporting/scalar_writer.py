"""TensorBoard scalars of a run, written from its Events by a background thread: training never waits for them.

tensorboard/train/events.out.tfevents…   tensorboard/validation/events.out.tfevents…
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from mptraining_api import run_folder
from mptraining_api.events import Event, Progress
from mptraining_api.launch import WorkerIdentity
from mptraining_api.outputs.scalars import ScalarSeries
from mptraining_records.storage import storage
from mptraining_records.tfrecord.event_file import EventFiles
from mptraining_records.writers.background import CLOSE_SECONDS, BackgroundWriter

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
        self._events: deque[Event] = deque()
        self._series = ScalarSeries()
        self._files: EventFiles | None = None
        self._writer = BackgroundWriter(self._write, folder, name="scalars", on_failure=on_failure, seconds=seconds)

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
        if isinstance(event, Progress):
            self._writer.start()

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Write the rest; give up after `seconds`."""
        self._writer.close(seconds)

    def _write(self, last: bool) -> None:
        del last
        for _ in range(len(self._events)):
            event = self._events.popleft()
            self._files = self._files or EventFiles(self._folder, self._name, event.time)
            self._files.add(self._series.add(event))
        if self._files is not None:
            self._files.flush()
