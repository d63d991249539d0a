"""Policy for damaged records (found by `scanner`) and the list of those found, shared by all readers of a data set."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import asdict
from typing import Literal

from mptraining_api.problems import InvalidData
from mptraining_records.tfrecord.framing import BadRecord
from mptraining_storage import storage


class BadRecords:
    """Damaged records found so far. "Fail" raises at the first one; "Skip" allows `max_skipped` different ones.

    Thread-safe.
    """

    def __init__(self, action: Literal["Fail", "Skip"] = "Fail", max_skipped: int = 0) -> None:
        self.action = action
        self.max_skipped = max_skipped
        self._skipped: dict[tuple[str, int], BadRecord] = {}
        self._lock = threading.Lock()

    @property
    def skipped(self) -> tuple[BadRecord, ...]:
        """Damaged records in the order of their discovery, each once, including the one that exceeds `max_skipped`."""
        with self._lock:
            return tuple(self._skipped.values())

    def add(self, bad: BadRecord) -> None:
        """Add a damaged record, unless it is listed already.

        Raises InvalidData if the policy is "Fail" or `max_skipped` is exceeded.
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
    """Write or replace `folder/name.json` in one step and return its URI.

    An entry has the record's URI, number, byte offset, length in bytes and cause, but no content. Raises Problems.
    """
    uri = storage.join(folder, f"{name}.json")
    content = {"version": 1, "records": [asdict(record) for record in skipped]}
    storage.write(uri, (json.dumps(content, indent=1) + "\n").encode())
    return uri
