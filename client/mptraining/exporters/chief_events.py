"""Events of a run's chief, read as they are appended to the run folder."""

from __future__ import annotations

import re
from dataclasses import dataclass

from mptraining_api import events, run_folder
from mptraining_api.events import Event
from mptraining_records.storage import storage

_CHIEFS_FILE = re.compile(r"(\d+)-(.+)-0-(\d+)\.jsonl")


@dataclass(frozen=True, slots=True, order=True)
class _File:
    attempt: int
    incarnation: str
    part: int
    uri: str
    size: int


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

    def _files(self) -> list[_File]:
        matches = (
            (each, _CHIEFS_FILE.fullmatch(each.uri.rpartition("/")[2]))
            for each in storage.list_objects(storage.join(self._folder, run_folder.EVENTS))
        )
        return sorted(
            _File(int(match[1]), match[2], int(match[3]), each.uri, each.size) for each, match in matches if match
        )
