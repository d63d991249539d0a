"""Events of a run's chief, read as they are appended to the run folder."""

from __future__ import annotations

from mptraining_api import events, run_folder
from mptraining_api.events import Event
from mptraining_storage import storage
from mptraining_storage.preconditions import StoredObject


class ChiefEvents:
    """Reads what was appended since the last `poll`, by the sizes of the files."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._read: dict[str, int] = {}

    def poll(self) -> list[Event]:
        """Return the new events in order of attempt and time."""
        found: list[Event] = []
        for file in self._files():
            begin = self._read.get(file.uri, 0)
            if file.size <= begin:
                continue
            content = storage.read_range(file.uri, begin, file.size - begin)
            complete = content[: content.rfind(b"\n") + 1]
            self._read[file.uri] = begin + len(complete)
            lines = complete.decode("utf-8", errors="replace").splitlines()
            found += [event for event in map(events.parse, lines) if event is not None]
        # A job queue may start an attempt twice; their files have no order, their events have.
        return sorted(found, key=lambda event: (event.attempt, event.time))

    def _files(self) -> list[StoredObject]:
        listed = storage.list_objects(storage.join(self._folder, run_folder.EVENTS))
        return [file for file in listed if (name := run_folder.parse_events_name(file.uri)) and name.worker == 0]
