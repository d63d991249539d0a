from __future__ import annotations

import json

from mptraining_records.index import bad_record_policy
from mptraining_records.storage import storage
from mptraining_records.tfrecord.framing import BAD_PAYLOAD, BadRecord


def test_the_manifest_names_every_skipped_record(folder: str) -> None:
    skipped = [BadRecord("gs://data/a.tfrecord", 3, 300, BAD_PAYLOAD, 40), BadRecord("b", 0, 0, "cut short", 7)]
    uri = bad_record_policy.save(folder, "1-abc-0", skipped)
    assert uri == storage.join(folder, "1-abc-0.json")
    said = json.loads(storage.read(uri))["records"]
    assert said == [
        {"uri": "gs://data/a.tfrecord", "record": 3, "offset": 300, "cause": BAD_PAYLOAD, "length": 40},
        {"uri": "b", "record": 0, "offset": 0, "cause": "cut short", "length": 7},
    ]


def test_a_later_one_takes_its_place(folder: str) -> None:
    bad_record_policy.save(folder, "1-abc-0", [])
    uri = bad_record_policy.save(folder, "1-abc-0", [BadRecord("a", 3, 300, BAD_PAYLOAD, 40)])
    assert len(json.loads(storage.read(uri))["records"]) == 1
