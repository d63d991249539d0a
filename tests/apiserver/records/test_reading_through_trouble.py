"""Reads over a faulty network: the right records in the right order, and only the lost bytes are requested again."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest

from mptraining_api.problems import InvalidData, StorageUnavailable
from mptraining_records.index import dataset_index
from mptraining_records.index.bad_record_policy import BadRecords
from mptraining_records.index.dataset_index import DatasetIndex
from mptraining_records.reading.prefetch import RecordStream, Window
from mptraining_records.reading.reader import RecordReader
from mptraining_records.tfrecord import framing
from mptraining_storage import gcs_clients, ranges, storage
from mptraining_storage.ranges import RANGE, STREAMS, Traffic, fetch
from tests.testbed.gcs.faults import Cut, Drop, Fault, Flip, Refuse, Rule, Shape, Stall, WholeObject, WrongRange
from tests.testbed.gcs.object_server import ObjectServer
from tests.testbed.gcs.proxy import StorageProxy

UNSHAPED = Shape(latency=0, stream_rate=0)
SHARDS, EACH = 4, 300
# The bytes that a connection may lose when it ends: less than one chunk of the client's.
LOST = 256 << 10
_numbers = itertools.count()


@pytest.fixture(scope="module")
def module_proxy(object_server: ObjectServer) -> Iterator[StorageProxy]:
    with StorageProxy(object_server.address, UNSHAPED) as started:
        yield started


@pytest.fixture
def proxy(module_proxy: StorageProxy) -> Iterator[StorageProxy]:
    """A fast proxy without faults, its counters at zero; the bucket is only reachable through it."""
    module_proxy.set(UNSHAPED)
    module_proxy.reset()
    yield module_proxy
    module_proxy.set(UNSHAPED)


@pytest.fixture
def bucket(proxy: StorageProxy, object_server: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URI of a new, empty bucket behind the proxy."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", proxy.http)
    monkeypatch.setenv("MPTRAINING_STORAGE_RETRY_SECONDS", "60")
    return object_server.create_bucket(f"trouble-{next(_numbers)}")


@pytest.fixture(scope="module")
def records() -> list[bytes]:
    """Some 20 MB, of all lengths from 0 to 40 kB."""
    draw = np.random.default_rng(7)
    return [draw.bytes(int(size)) for size in draw.integers(0, 40_000, SHARDS * EACH)]


@pytest.fixture(scope="module")
def shards(object_server: ObjectServer, records: list[bytes]) -> str:
    """The URI of a bucket with the records in four objects, which no test changes."""
    uri = object_server.create_bucket(f"shards-{next(_numbers)}")
    for number in range(SHARDS):
        part = records[number * EACH : (number + 1) * EACH]
        object_server.upload(uri.removeprefix("gs://"), f"{number}.tfrecord", b"".join(map(framing.encode, part)))
    return uri


@pytest.fixture
def dataset(bucket: str, shards: str, proxy: StorageProxy) -> DatasetIndex:
    """The shards, indexed; the proxy's counters at zero."""
    built = dataset_index.build([f"{shards}/*.tfrecord"])
    proxy.reset()
    return built


def _size(dataset: DatasetIndex) -> int:
    return sum(shard.stored.size for shard in dataset.shards)


def _window(numbers: Sequence[int]) -> Window:
    return Window(0, np.arange(len(numbers)), np.array(numbers, np.int64))


def _streamed(reader: RecordReader, numbers: Sequence[int]) -> list[bytes | None]:
    stream = RecordStream(reader, [_window(numbers)], read_ahead=8 << 20)
    found: list[bytes | None] = []
    while taken := stream.take(37):
        found += taken
    return found


NOISE = [
    Rule(fault=Refuse(status=503), share=0.05),
    Rule(fault=Cut(), share=0.02),
    Rule(fault=Cut(after=0), share=0.02),
    Rule(fault=Drop(), share=0.02),
]


class Test_with_some_requests_failing:
    @pytest.mark.parametrize(("seed", "shuffled"), [(0, False), (1, True)])
    def test_a_stream_brings_each_record_in_its_place(
        self, dataset: DatasetIndex, records: list[bytes], proxy: StorageProxy, seed: int, shuffled: bool
    ) -> None:
        proxy.change(rules=NOISE, seed=seed)
        draw = np.random.default_rng(seed)
        numbers = [int(each) for _ in range(3) for each in (draw.permutation if shuffled else np.arange)(len(records))]
        with RecordReader(dataset) as reader:
            assert _streamed(reader, numbers) == [records[number] for number in numbers]
            assert reader.figures.retries > 0
        asked = proxy.counters()
        assert sum(asked.faults.values()) > 0
        assert reader.figures.requests == asked.media_requests, "there are no uncounted retries"
        assert 0 <= asked.media_bytes - reader.figures.received <= asked.faults.get("Cut", 0) * LOST

    def test_an_index_is_the_same(self, dataset: DatasetIndex, shards: str, proxy: StorageProxy) -> None:
        proxy.change(rules=tuple(replace(rule, what="any", share=0.1) for rule in NOISE))
        storage.delete_prefix(f"{shards}/.index")
        traffic = Traffic()
        built = dataset_index.build([f"{shards}/*.tfrecord"], traffic=traffic)
        assert built.fingerprint == dataset.fingerprint
        assert [shard.offsets.tolist() for shard in built.shards] == [s.offsets.tolist() for s in dataset.shards]
        assert traffic.figures.received == _size(dataset)


@pytest.mark.parametrize(
    "fault",
    [Refuse(429, 1), Refuse(503, 1), Drop(), Cut(1), WrongRange(), WholeObject(), Flip(at=5000)],
    ids=repr,
)
def test_what_goes_wrong_twice_is_tried_a_third_time(
    dataset: DatasetIndex, records: list[bytes], proxy: StorageProxy, fault: Fault
) -> None:
    rules = [Rule(fault, times=2, skip=1)]
    if isinstance(fault, Flip):
        # In two shards: a record that is damaged at the second read as well is reported as damaged.
        rules = [Rule(fault=fault, times=1, objects=rf".*/{number}\.tfrecord") for number in range(2)]
    proxy.change(rules=rules)
    with RecordReader(dataset) as reader:
        assert _streamed(reader, range(len(records))) == records
    assert proxy.counters().faults == {type(fault).__name__: 2}
    whole = 2 * max(shard.stored.size for shard in dataset.shards)
    assert reader.figures.received <= _size(dataset) + 2 * RANGE
    assert proxy.counters().media_bytes <= _size(dataset) + (whole if isinstance(fault, WholeObject) else 2 * RANGE)


@pytest.mark.parametrize("after", [0, 300_000])
def test_a_silent_connection_is_given_up_and_its_rest_asked_for_again(
    dataset: DatasetIndex,
    records: list[bytes],
    proxy: StorageProxy,
    bucket: str,
    monkeypatch: pytest.MonkeyPatch,
    after: int,
) -> None:
    # Longer than a busy machine delays an answer that is no stall.
    monkeypatch.setattr(gcs_clients, "READING", (4.0, 2.0))
    gcs_clients.endpoint_of.cache_clear()
    proxy.change(rules=[Rule(fault=Stall(seconds=30, after=after), times=2)])
    began = time.monotonic()
    with RecordReader(dataset) as reader:
        assert _streamed(reader, range(len(records))) == records
    assert time.monotonic() - began < 28
    assert proxy.counters().faults == {"Stall": 2}
    assert proxy.counters().media_bytes < _size(dataset) + 2 * RANGE
    gcs_clients.endpoint_of.cache_clear()


@pytest.mark.parametrize(
    ("change", "cut", "message"),
    [
        ("replaced", False, "was replaced"),
        # A range that was cut continues in the same version, or fails.
        ("replaced", True, "was replaced"),
        ("truncated", False, "was replaced"),
        ("deleted", False, "no such object"),
    ],
)
def test_an_object_that_changes_in_mid_epoch_is_an_error_and_never_a_mix(
    bucket: str, records: list[bytes], proxy: StorageProxy, change: str, cut: bool, message: str
) -> None:
    uri = f"{bucket}/long.tfrecord"
    storage.write(uri, b"".join(map(framing.encode, records)))
    dataset = dataset_index.build([uri])
    if cut:
        proxy.change(rules=[Rule(fault=Cut(after=300_000), times=3)])
    with RecordReader(dataset, bad_records=BadRecords("Skip", len(records))) as reader:
        stream = RecordStream(reader, [_window(range(len(records)))], read_ahead=2 * RANGE)
        found = stream.take(50)
        if change == "replaced":
            storage.write(uri, b"".join(framing.encode(record[::-1]) for record in records))
        elif change == "truncated":
            storage.write(uri, storage.read(uri)[: dataset.shards[0].stored.size // 2])
        else:
            storage.delete(uri)
        with pytest.raises(InvalidData, match=message):
            found.extend(record for taken in iter(lambda: stream.take(50), []) for record in taken)
        assert found == records[: len(found)]
        assert len(found) < len(records)
        assert reader.skipped == ()


def test_a_range_of_many_parts_is_given_up_when_the_time_is_over(
    dataset: DatasetIndex, proxy: StorageProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More parts than are requested at once: the first failure cancels those that have not begun."""
    monkeypatch.setenv("MPTRAINING_STORAGE_RETRY_SECONDS", "1")
    proxy.change(refusing=True)
    began, fill = set[str](), ranges._fill
    monkeypatch.setattr(
        ranges, "_fill", lambda uri, start, *others: (began.add(f"{uri} {start}"), fill(uri, start, *others))
    )
    uri = dataset.shards[0].stored.uri
    with pytest.raises(StorageUnavailable):
        fetch(uri, 0, 4 * STREAMS * RANGE, version=None, traffic=Traffic())
    # A reader that gives up before the first failure was noticed frees its slot.
    assert STREAMS <= len(began) <= 2 * STREAMS


@pytest.mark.parametrize("fault", [WholeObject(), WrongRange(), Refuse(status=503), Cut(after=0)], ids=repr)
def test_a_server_that_always_answers_wrongly_is_unavailable(
    dataset: DatasetIndex, proxy: StorageProxy, monkeypatch: pytest.MonkeyPatch, fault: Fault
) -> None:
    monkeypatch.setenv("MPTRAINING_STORAGE_RETRY_SECONDS", "1")
    proxy.change(rules=[Rule(fault=fault)])
    with RecordReader(dataset) as reader, pytest.raises(StorageUnavailable):
        reader.read(np.arange(dataset.count))


def test_damage_is_looked_at_twice_and_then_believed(bucket: str, records: list[bytes], proxy: StorageProxy) -> None:
    content = bytearray(b"".join(map(framing.encode, records[:EACH])))
    content[5000] ^= 1
    storage.write(f"{bucket}/0.tfrecord", bytes(content))
    dataset = dataset_index.build([f"{bucket}/*.tfrecord"])
    with RecordReader(dataset, bad_records=BadRecords("Skip", 1)) as reader:
        asked = []
        for _ in range(3):
            proxy.reset()
            assert reader.read(np.arange(EACH)).count(None) == 1
            asked.append(proxy.counters().media_requests)
    assert asked == [asked[1] + 1, asked[1], asked[1]]


def test_no_thread_outlives_the_reader(dataset: DatasetIndex, proxy: StorageProxy) -> None:

    def threads() -> set[int | None]:
        return {thread.ident for thread in threading.enumerate() if "process_request_thread" not in thread.name}

    before = threads()
    proxy.change(rules=[Rule(fault=Stall(seconds=0.3, after=1000))])
    reader = RecordReader(dataset)
    stream = RecordStream(reader, [_window(range(dataset.count))])
    stream.take(1)
    stream.close()
    reader.close()
    assert threads() <= before
