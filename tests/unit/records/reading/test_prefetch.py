"""Records in order, for any ranges, budget and time of each range; each block is chosen once."""

from __future__ import annotations

import itertools
import resource
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mptraining_api.problems import InvalidData
from mptraining_records.index import dataset_index
from mptraining_records.index.dataset_index import DatasetIndex
from mptraining_records.index.disk_cache import DiskCache
from mptraining_records.index.read_plan import RangeRead
from mptraining_records.index.shard_index import Int64s
from mptraining_records.reading.lookahead import NO_RANGE, Chosen, Lookahead
from mptraining_records.reading.order import Order, Together
from mptraining_records.reading.prefetch import RecordStream
from mptraining_records.reading.reader import Load, RecordReader
from mptraining_records.tfrecord import framing
from mptraining_storage import storage

RECORDS = [bytes([number % 251]) * (7 + number * 13 % 400) for number in range(300)]


def _write(folder: str, records: Sequence[bytes], shards: int = 3) -> DatasetIndex:
    for number in range(shards):
        part = records[len(records) * number // shards : len(records) * (number + 1) // shards]
        storage.write(f"{folder}/{number}.tfrecord", b"".join(map(framing.encode, part)))
    return dataset_index.build([f"{folder}/*.tfrecord"])


@pytest.fixture
def dataset(folder: str) -> DatasetIndex:
    return _write(folder, RECORDS)


def _all(stream: RecordStream, batch: int) -> Iterator[bytes | None]:
    while taken := stream.take(batch):
        yield from taken


@pytest.fixture(scope="module")
def on_disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RecordReader]:
    with RecordReader(_write(str(tmp_path_factory.mktemp("records")), RECORDS), streams=4) as reader:
        yield reader


@given(
    units=st.lists(st.lists(st.integers(-1, len(RECORDS) - 1), max_size=80), max_size=6),
    batch=st.integers(1, 100),
    read_ahead=st.integers(1, 50_000),
    first=st.integers(1, 20),
)
def test_the_records_come_in_the_order_of_their_numbers(
    on_disk: RecordReader, units: list[list[int]], batch: int, read_ahead: int, first: int
) -> None:
    arrays = [np.array(unit, np.int64) for unit in units]
    stream = RecordStream(on_disk, arrays, read_ahead=read_ahead, first=first)
    wanted = [RECORDS[number] if number >= 0 else None for unit in units for number in unit]
    assert list(_all(stream, batch)) == wanted


def test_no_more_than_the_read_ahead_is_under_way(tmp_path: Path) -> None:
    records = [b"x" * 1000] * 500
    dataset = _write(str(tmp_path), records)
    with RecordReader(dataset) as reader:
        stream = RecordStream(reader, [np.arange(500)], read_ahead=50_000, first=1)
        for _ in range(500):
            stream.take(1)
            assert stream.bytes_in_flight <= 50_000


def test_a_record_longer_than_the_read_ahead_comes_alone(tmp_path: Path) -> None:
    records = [b"a" * 10, b"b" * 5_000_000, b"c" * 10]
    dataset = _write(str(tmp_path), records, shards=1)
    with RecordReader(dataset) as reader:
        assert list(_all(RecordStream(reader, [np.arange(3)], read_ahead=1000), 2)) == records


def test_units_are_drawn_no_sooner_than_they_are_needed(tmp_path: Path) -> None:
    dataset = _write(str(tmp_path), [b"x" * 1000] * 100)
    drawn: list[int] = []

    def units() -> Iterator[Int64s]:
        for number in range(100):
            drawn.append(number)
            yield np.arange(100)

    with RecordReader(dataset) as reader:
        stream = RecordStream(reader, units(), read_ahead=100_000)
        stream.take(10)
        assert len(drawn) < 5


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[RangeRead]:
    """The ranges that are read."""
    reads: list[RangeRead] = []
    start = RecordReader.start_read

    def counted(self: RecordReader, read: RangeRead) -> Load:
        reads.append(read)
        return start(self, read)

    monkeypatch.setattr(RecordReader, "start_read", counted)
    return reads


def test_all_ranges_of_a_shuffled_chunk_are_started_early(tmp_path: Path, started: list[RangeRead]) -> None:
    dataset = _write(str(tmp_path), [b"x" * 17_000] * 1000, shards=1)
    scattered = np.random.default_rng(1).permutation(500) * 2
    with RecordReader(dataset) as reader:
        stream = RecordStream(reader, [scattered], read_ahead=16 << 20, first=1)
        stream.take(1)
        assert len(started) == 500
        stream.close()


def test_of_a_short_data_set_few_epochs_are_read_ahead(tmp_path: Path) -> None:
    dataset = _write(str(tmp_path), [b"x" * 10] * 30)
    epochs = 0

    def units() -> Iterator[Int64s]:
        nonlocal epochs
        while True:
            epochs += 1
            yield np.arange(30)

    with RecordReader(dataset) as reader:
        stream = RecordStream(reader, units())
        assert len(stream.take(300)) == 300
        stream.close()
    assert epochs < 300


def test_a_damaged_record_is_an_error_at_its_place_and_not_before(
    dataset: DatasetIndex, flip: Callable[[str, int], None]
) -> None:
    flip(dataset.shards[1].object.uri, -6)
    dataset = dataset_index.build([shard.object.uri for shard in dataset.shards])
    with RecordReader(dataset) as reader:
        stream = RecordStream(reader, [np.arange(300)], first=300)
        assert stream.take(199) == RECORDS[:199]
        with pytest.raises(InvalidData, match="record 99 at byte"):
            stream.take(1)


def _cached(
    bucket: str, folder: Path, *, shards: int = 3, on_full: Callable[[str], object] = pytest.fail
) -> tuple[DatasetIndex, DiskCache]:
    dataset, cache = _write(bucket, RECORDS, shards), DiskCache(folder, on_full=on_full)
    cache.set_dataset(dataset)
    return dataset, cache


class Test_with_a_disk_cache:
    def test_the_second_pass_asks_the_bucket_for_nothing(self, bucket: str, tmp_path: Path) -> None:
        dataset, cache = _cached(bucket, tmp_path)
        with RecordReader(dataset, cache=cache) as reader:
            assert list(_all(RecordStream(reader, [np.arange(300)]), 50)) == RECORDS
            asked = reader.figures.requests
            shuffled = np.random.default_rng(3).permutation(300)
            assert list(_all(RecordStream(reader, [shuffled]), 50)) == [RECORDS[number] for number in shuffled]
            assert reader.figures.requests == asked > 0
        cache.close()
        assert list(tmp_path.iterdir()) == []

    def test_bytes_that_the_disk_damaged_are_fetched_again(self, bucket: str, tmp_path: Path) -> None:
        dataset, cache = _cached(bucket, tmp_path, shards=1)
        with RecordReader(dataset, cache=cache) as reader:
            reader.read(np.arange(300))
            [file] = [path for path in tmp_path.rglob("*") if path.is_file()]
            content = bytearray(file.read_bytes())
            content[2000:2010] = bytes(10)
            file.write_bytes(content)
            assert reader.read(np.arange(300)) == RECORDS
            assert reader.skipped == ()

    def test_a_full_disk_ends_the_cache_and_not_the_reading(self, bucket: str, tmp_path: Path) -> None:
        said: list[str] = []
        dataset, cache = _cached(bucket, tmp_path, shards=1, on_full=said.append)
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        with RecordReader(dataset, cache=cache) as reader:
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
            try:
                assert reader.read(np.arange(300)) == RECORDS
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            assert len(said) == 1
            assert reader.read(np.arange(300)) == RECORDS


def test_each_block_of_a_shuffled_epoch_is_read_once(tmp_path: Path, started: list[RangeRead]) -> None:
    records = [b"%06d" % number + b"x" * 994 for number in range(3000)]
    dataset = _write(str(tmp_path), records)
    order = Order(len(records), seed=3, buffer_size=600, streams=2, block_size=10)
    together = order.together
    assert together is not None
    with RecordReader(dataset) as reader:
        units = [
            order.records(0, np.arange(at, min(3000, at + together.row_size)))
            for at in range(0, 3000, together.row_size)
        ]
        stream = RecordStream(reader, units, together=together, read_ahead=100_000)
        assert list(_all(stream, 32)) == [records[number] for unit in units for number in unit.tolist()]
    assert sum(read.length for read in started) < 1.05 * sum(map(len, records)) + 16 * len(records)


def _chosen(ahead: Lookahead) -> list[Chosen]:
    return list(iter(ahead.choose, None))


@given(count=st.integers(100, 2000), block_size=st.integers(2, 20), workers=st.sampled_from([1, 2, 3]))
def test_a_block_is_chosen_once_in_an_epoch(count: int, block_size: int, workers: int) -> None:
    order = Order(count, seed=3, buffer_size=600, streams=2, block_size=block_size)
    together = order.together
    assert together is not None
    empty = np.empty(0, np.int64)
    starts = range(0, count, together.row_size)
    rows = [np.arange(first, min(count, first + together.row_size), workers) for first in starts]
    epochs = [[order.records(epoch, row) for row in rows] for epoch in range(2)]
    chosen = _chosen(Lookahead(iter([*epochs[0], empty, *epochs[1]]), together, count))
    places = np.concatenate([one.places for one in chosen])
    assert sorted(places.tolist()) == list(range(sum(map(len, itertools.chain(*epochs)))))
    # A block that two streams share is in two choices at most, in each epoch.
    blocks = [block for one in chosen for block in np.unique(one.numbers // block_size).tolist()]
    shared = 2 * (order.stream_count - 1)
    assert len(blocks) <= 2 * -(-count // block_size) + shared


def test_a_unit_without_records_has_no_ranges() -> None:
    ahead = Lookahead(iter([np.array([-1, -1]), np.array([4, -1])]), Together(2, block_size=2, rows=2), 10)
    first, second = _chosen(ahead)
    assert (first.numbers.tolist(), first.unit.tolist()) == ([], [-1, -1])
    assert (second.numbers.tolist(), second.places.tolist()) == ([4], [2])
    ahead.set_ranges(second.places, np.array([0]))
    assert ahead.ranges(0, 4) == [NO_RANGE, NO_RANGE, 0, NO_RANGE]
    assert ahead.numbers(2, 4) == [4, -1]


def test_records_before_a_place_are_dropped() -> None:
    ahead = Lookahead(iter([np.arange(4), np.arange(4, 8)]), None, 8)
    _chosen(ahead)
    ahead.set_ranges(np.arange(8), np.arange(8))
    ahead.drop(5)
    assert ahead.ranges(5, 8) == [5, 6, 7]
    assert ahead.numbers(6, 8) == [6, 7]
