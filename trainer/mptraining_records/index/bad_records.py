"""What happens to damaged records, and which were met: one account for everything that reads a data set."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import asdict
from typing import Literal

from mptraining_api.problems import InvalidData
from mptraining_records.storage import storage
from mptraining_records.tfrecord.framing import BadRecord


class BadRecords:
    """The account of damaged records. "Fail" raises at the first; "Skip" allows `max_skipped` different ones.

    Safe to use from several threads.
    """

    def __init__(self, action: Literal["Fail", "Skip"] = "Fail", max_skipped: int = 0) -> None:
        self.action = action
        self.max_skipped = max_skipped
        self._skipped: dict[tuple[str, int], BadRecord] = {}
        self._lock = threading.Lock()

    @property
    def skipped(self) -> tuple[BadRecord, ...]:
        """In the order of their discovery, each once, the one past `max_skipped` included."""
        with self._lock:
            return tuple(self._skipped.values())

    def met(self, bad: BadRecord) -> None:
        """Takes note of a damaged record, met for the first time or again.

        Raises InvalidData when none may be skipped, or no more.
        """
        if self.action == "Fail":
            raise bad.problem()
        with self._lock:
            self._skipped.setdefault((bad.uri, bad.offset), bad)
            count = len(self._skipped)
        if count > self.max_skipped:
            raise InvalidData(
                bad.uri,
                f"{count} damaged records, the last is record {bad.record} at byte {bad.offset}",
                expected=f"at most data.badRecords.maxSkipped = {self.max_skipped}",
                next_step="List them all with `mptj records verify`, repair the files or raise maxSkipped",
            )


def save(folder: str, name: str, skipped: Sequence[BadRecord]) -> str:
    """Writes or replaces `folder/name.json`, whole or not at all, and returns its URI.

    For each record: URI, number, byte offset, length in bytes and cause. Its content is not kept. Raises Problems.
    """
    uri = storage.join(folder, f"{name}.json")
    content = {"version": 1, "records": [asdict(each) for each in skipped]}
    storage.write(uri, (json.dumps(content, indent=1) + "\n").encode())
    return uri
