from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from mptraining_api.problems import InvalidData
from mptraining_records.index import bad_record_policy
from mptraining_records.index.bad_record_policy import BadRecords
from mptraining_records.tfrecord.framing import BAD_PAYLOAD, BadRecord
from mptraining_storage import storage


def _bad(number: int, uri: str = "a.tfrecord") -> BadRecord:
    return BadRecord(uri, number, 100 * number, BAD_PAYLOAD, 100)


def test_skipped_ones_are_listed_once_in_the_order_of_their_discovery() -> None:
    account = BadRecords("Skip", 3)
    for bad in (_bad(7), _bad(2), _bad(7), _bad(2, "b.tfrecord"), _bad(2)):
        account.add(bad)
    assert account.skipped == (_bad(7), _bad(2), _bad(2, "b.tfrecord"))


def test_one_too_many_is_an_error_and_listed() -> None:
    account = BadRecords("Skip", 1)
    account.add(_bad(0))
    with pytest.raises(InvalidData, match=r"2 damaged records, the last is record 1 at byte 100.*maxSkipped = 1"):
        account.add(_bad(1))
    assert account.skipped == (_bad(0), _bad(1))


def test_the_manifest_names_every_skipped_record(folder: str) -> None:
    bad_record_policy.save(folder, "1-abc-0", [])
    uri = bad_record_policy.save(folder, "1-abc-0", [_bad(3)])
    assert uri == storage.join(folder, "1-abc-0.json")
    assert json.loads(storage.read(uri))["records"] == [
        {"uri": "a.tfrecord", "record": 3, "offset": 300, "cause": BAD_PAYLOAD, "length": 100}
    ]


def test_several_threads_may_meet_the_same() -> None:
    account = BadRecords("Skip", 50)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: account.add(_bad(number % 50)), range(2000)))
    assert sorted(bad.record for bad in account.skipped) == list(range(50))
