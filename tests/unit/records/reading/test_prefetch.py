"""Records in order, for any windows, budget and time of each range; each block is read once."""

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
from mptraining_records.reading.order import Order
from mptraining_records.reading.prefetch import RecordStream, Window
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


def _windows(*numbers: Sequence[int]) -> Iterator[Window]:
    """Yield windows that follow each other."""
    begin = 0
    for window in numbers:
        if len(window):
            yield Window(begin, np.arange(begin, begin + len(window)), np.array(window, np.int64))
        begin += len(window)


@given(
    numbers=st.lists(st.integers(0, len(RECORDS) - 1), max_size=400),
    streams=st.integers(1, 5),
    window=st.integers(1, 80),
    batch=st.integers(1, 100),
    read_ahead=st.integers(1, 50_000),
)
def test_the_records_come_in_the_order_of_their_places(
    on_disk: RecordReader, numbers: list[int], streams: int, window: int, batch: int, read_ahead: int
) -> None:
    # The places of interleaved streams, each cut into windows of other lengths.
    places = [
        part
        for stream in range(streams)
        for part in np.split(np.arange(stream, len(numbers), streams), range(stream + 1, len(numbers), window))
    ]
    windows = [Window(int(part[0]), part, np.array(numbers)[part]) for part in places if len(part)]
    stream = RecordStream(on_disk, sorted(windows, key=lambda each: each.begin), read_ahead=read_ahead)
    assert list(_all(stream, batch)) == [RECORDS[number] for number in numbers]


def test_no_more_than_the_read_ahead_is_under_way(tmp_path: Path) -> None:
    dataset = _write(str(tmp_path), [b"x" * 17_000] * 200)
    with RecordReader(dataset) as reader:
        # Every second record: the gaps are too long for one range.
        stream = RecordStream(reader, _windows(range(0, 200, 2)), read_ahead=100_000)
        for _ in range(90):
            stream.take(1)
            assert 60_000 < stream.bytes_in_flight <= 100_000


def test_a_record_longer_than_the_read_ahead_comes_alone(tmp_path: Path) -> None:
    records = [b"a" * 10, b"b" * 5_000_000, b"c" * 10]
    dataset = _write(str(tmp_path), records, shards=1)
    with RecordReader(dataset) as reader:
        assert list(_all(RecordStream(reader, _windows(range(3)), read_ahead=1000), 2)) == records


def test_windows_are_drawn_no_sooner_than_they_are_needed(tmp_path: Path) -> None:
    dataset = _write(str(tmp_path), [b"x" * 1000] * 100)
    drawn: list[int] = []

    def windows() -> Iterator[Window]:
        # Without end.
        for number in itertools.count():
            drawn.append(number)
            yield Window(100 * number, np.arange(100) + 100 * number, np.arange(100))

    with RecordReader(dataset) as reader:
        stream = RecordStream(reader, windows(), read_ahead=100_000)
        assert stream.take(0) == []
        assert drawn == []
        stream.take(10)
        assert len(drawn) < 5
        stream.close()
        # Short records, of which the bytes alone would allow thousands of windows.
        drawn.clear()
        stream = RecordStream(reader, windows(), read_ahead=4 << 20)
        assert len(stream.take(300)) == 300
        assert len(drawn) < 300


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


def test_scattered_ranges_are_started_before_they_are_needed(tmp_path: Path, started: list[RangeRead]) -> None:
    dataset = _write(str(tmp_path), [b"x" * 17_000] * 1000, shards=1)
    scattered = np.random.default_rng(1).permutation(500) * 2
    with RecordReader(dataset) as reader:
        stream = RecordStream(reader, _windows(scattered.tolist()), read_ahead=16 << 20)
        stream.take(1)
        assert len(started) == 500
        stream.close()


def test_a_damaged_record_is_an_error_at_its_place_and_not_before(
    dataset: DatasetIndex, flip: Callable[[str, int], None]
) -> None:
    flip(dataset.shards[1].stored.uri, -6)
    dataset = dataset_index.build([shard.stored.uri for shard in dataset.shards])
    with RecordReader(dataset) as reader:
        stream = RecordStream(reader, _windows(range(300)))
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
            assert list(_all(RecordStream(reader, _windows(range(300))), 50)) == RECORDS
            asked = reader.figures.requests
            shuffled = np.random.default_rng(3).permutation(300)
            assert list(_all(RecordStream(reader, _windows(shuffled)), 50)) == [RECORDS[number] for number in shuffled]
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


@pytest.mark.parametrize("workers", [1, 2])
def test_each_block_of_a_shuffled_epoch_is_read_once(tmp_path: Path, started: list[RangeRead], workers: int) -> None:
    records = [b"%06d" % number + b"x" * 994 for number in range(3000)]
    dataset = _write(str(tmp_path), records)
    order = Order(len(records), seed=3, buffer_size=600, streams=2, block=10)
    with RecordReader(dataset) as reader:
        for worker in range(workers):
            windows = (
                Window(int(places[0]) // workers, places // workers, order.records(0, places))
                for places in order.windows(0, 3000)
                if places[0] % workers == worker
            )
            stream = RecordStream(reader, windows, read_ahead=100_000)
            numbers = order.records(0, np.arange(worker, 3000, workers))
            assert list(_all(stream, 32)) == [records[number] for number in numbers.tolist()]
    # Each end of a stream may cut a block, and short gaps between two blocks are read too.
    assert len(started) <= 300 + 2 * order.stream_count
    assert sum(read.length for read in started) < 1.2 * sum(map(len, records))
