"""TensorBoard scalars of a run, written from its Events through the outbox: training never waits for them.

tensorboard/train/events.out.tfevents…   tensorboard/validation/events.out.tfevents…
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from mptraining_api import run_folder
from mptraining_api.events import Event, Progress
from mptraining_api.launch import WorkerIdentity
from mptraining_api.outputs.scalars import ScalarSeries
from mptraining_records.tfrecord.event_file import EventFiles
from mptraining_storage import storage
from mptraining_storage.outbox import CLOSE_SECONDS, Outbox

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
        outbox: Outbox,
        seconds: float | None = None,
    ) -> None:
        self._name = f"{identity.attempt}-{identity.incarnation}"
        self._folder = storage.join(folder, run_folder.TENSORBOARD)
        self._events: deque[Event] = deque()
        self._series = ScalarSeries()
        self._files: EventFiles | None = None
        self._outbox = outbox
        self._on_failure = on_failure
        self._seconds = seconds
        self._end: Callable[[float], None] | None = None

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
        if isinstance(event, Progress) and self._end is None:
            self._end = self._outbox.repeat(
                "scalars", self._write, self._folder, on_failure=self._on_failure, seconds=self._seconds
            )

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Write the rest; give up after `seconds`."""
        if self._end is not None:
            self._end(seconds)

    def _write(self, last: bool) -> None:
        del last
        for _ in range(len(self._events)):
            event = self._events.popleft()
            self._files = self._files or EventFiles(self._folder, self._name, event.time)
            self._files.add(self._series.add(event))
        if self._files is not None:
            self._files.flush()
