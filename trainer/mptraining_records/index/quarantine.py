"""The manifest of skipped records, one for each worker's run: what to repair, and what the model never saw."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from mptraining_records.storage import storage
from mptraining_records.tfrecord.framing import BadRecord


def save(folder: str, name: str, skipped: Sequence[BadRecord]) -> str:
    """Writes or replaces `folder/name.json`, whole or not at all, and returns its URI.

    For each record: URI, number, byte offset, length in bytes and cause. Its content is not kept. Raises Problems.
    """
    uri = storage.join(folder, f"{name}.json")
    content = {"version": 1, "records": [asdict(each) for each in skipped]}
    storage.write(uri, (json.dumps(content, indent=1) + "\n").encode())
    return uri
