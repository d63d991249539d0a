from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from mptraining_api.problems import InvalidData
from mptraining_records.index import dataset_index
from mptraining_records.index.bad_record_policy import BadRecords
from mptraining_records.index.dataset_index import DatasetIndex
from mptraining_records.reading.reader import RecordReader
from mptraining_records.tfrecord import framing
from mptraining_records.tfrecord.framing import BadRecord
from mptraining_storage import storage

WriteShard = Callable[[str, Sequence[bytes]], str]
RECORDS = [f"record {number}".encode() * (number % 5) for number in range(60)]


@pytest.fixture
def dataset(folder: str, write_shard: WriteShard) -> DatasetIndex:
    for number in range(3):
        write_shard(storage.join(folder, f"{number}.tfrecord"), RECORDS[20 * number : 20 * number + 20])
    return dataset_index.build([storage.join(folder, "*.tfrecord")])


def _uri(dataset: DatasetIndex, shard: int) -> str:
    return dataset.shards[shard].stored.uri


def _damage(dataset: DatasetIndex, record: int, flip: Callable[[str, int], None]) -> DatasetIndex:
    """Flip a byte of the record's payload; return the index of the damaged files."""
    shards, rows = dataset.locate(np.array([record]))
    shard = dataset.shards[shards[0]]
    flip(shard.stored.uri, int(shard.offsets[rows[0]]))
    return dataset_index.build([each.stored.uri for each in dataset.shards])


def test_records_come_in_the_order_asked_for(dataset: DatasetIndex) -> None:
    wanted = np.random.default_rng(1).integers(0, 60, 200)
    with RecordReader(dataset) as records:
        assert records.read(wanted) == [RECORDS[number] for number in wanted]
        assert records.read(np.array([], np.int64)) == []


def test_several_threads_may_read(dataset: DatasetIndex) -> None:
    rows = np.random.default_rng(2).permutation(60).reshape(12, 5)
    with RecordReader(dataset, streams=2) as records, ThreadPoolExecutor(6) as pool:
        for wanted, found in zip(rows, pool.map(records.read, rows), strict=True):
            assert found == [RECORDS[number] for number in wanted]


def test_damage_fails_by_default_and_names_the_place(dataset: DatasetIndex, flip: Callable[[str, int], None]) -> None:
    dataset = _damage(dataset, 23, flip)
    offset = int(dataset.shards[1].offsets[3]) - 12
    with RecordReader(dataset) as records:
        with pytest.raises(InvalidData) as caught:
            records.read(np.arange(60))
        message = f"{_uri(dataset, 1)}: record 3 at byte {offset} is damaged: the payload's checksum is wrong"
        assert str(caught.value).startswith(message)
        assert len(records.read(np.arange(24, 60))) == 36


def test_damage_costs_one_record_when_skipped(dataset: DatasetIndex, flip: Callable[[str, int], None]) -> None:
    dataset = _damage(_damage(dataset, 1, flip), 59, flip)
    with RecordReader(dataset, bad_records=BadRecords("Skip", 2)) as records:
        for _ in range(2):
            delivered = records.read(np.arange(60))
            assert [number for number in range(60) if delivered[number] is None] == [1, 59]
        assert records.skipped[0] == BadRecord(_uri(dataset, 0), 1, 16, framing.BAD_PAYLOAD, 24)
        assert [(bad.uri, bad.record) for bad in records.skipped[1:]] == [(_uri(dataset, 2), 19)]


def test_damaged_payloads_and_the_damaged_end_of_a_shard_have_one_account(
    dataset: DatasetIndex, flip: Callable[[str, int], None]
) -> None:
    flip(_uri(dataset, 1), int(dataset.shards[1].offsets[13]) - 4)
    flip(_uri(dataset, 1), int(dataset.shards[1].offsets[7]))
    account = BadRecords("Skip", 2)
    damaged = dataset_index.build([shard.stored.uri for shard in dataset.shards], bad_records=account)
    with RecordReader(damaged, bad_records=account) as records:
        delivered = [record for record in records.read(np.arange(damaged.count)) if record is not None]
        assert delivered == RECORDS[:27] + RECORDS[28:33] + RECORDS[40:]
        assert [(bad.record, bad.cause) for bad in records.skipped] == [
            (13, framing.BAD_LENGTH),
            (7, framing.BAD_PAYLOAD),
        ]


def test_a_shard_replaced_after_it_was_indexed_is_refused(dataset: DatasetIndex, write_shard: WriteShard) -> None:
    write_shard(_uri(dataset, 1), RECORDS[:20])
    with RecordReader(dataset) as records:
        assert records.read(np.arange(20)) == RECORDS[:20]
        with pytest.raises(InvalidData, match="was replaced"):
            records.read(np.array([25]))
