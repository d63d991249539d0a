"""The index of a data set; of remote objects in one pass, each worker its share."""

from __future__ import annotations

import gzip
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mptraining_api.problems import InvalidData, StorageUnavailable
from mptraining_records.index import dataset_index, remote_scan, scanner, sidecar
from mptraining_records.index.bad_record_policy import BadRecords
from mptraining_records.index.dataset_index import DatasetIndex
from mptraining_records.index.disk_cache import DiskCache
from mptraining_records.reading.reader import RecordReader
from mptraining_records.tfrecord import framing
from mptraining_storage import ranges, storage
from mptraining_storage.ranges import Traffic

WriteShard = Callable[[str, Sequence[bytes]], str]


def _fingerprint(folder: object) -> str:
    return dataset_index.build([f"{folder}/*.tfrecord"]).fingerprint


@pytest.fixture
def two_shards(tmp_path: Path, write_shard: WriteShard) -> Path:
    data = tmp_path / "data"
    write_shard(str(data / "a.tfrecord"), [b"one", b"two"])
    write_shard(str(data / "b.tfrecord"), [b"three"])
    return data


class Test_scan:
    def test_follows_records_longer_than_a_window(
        self, folder: str, write_shard: WriteShard, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(ranges, "RANGE", 64)
        sizes = [0, 1, 47, 48, 49, 63, 64, 65, 300, 2, 51]
        uri = write_shard(storage.join(folder, "x.tfrecord"), [bytes(size) for size in sizes])
        assert scanner.scan(storage.stat(uri)).lengths.tolist() == sizes

    def test_an_object_replaced_since_it_was_listed_is_refused(self, folder: str, write_shard: WriteShard) -> None:
        uri = write_shard(storage.join(folder, "x.tfrecord"), [b"one"])
        listed = storage.stat(uri)
        write_shard(uri, [b"another"])
        with pytest.raises(InvalidData, match="was replaced"):
            scanner.scan(listed)


class Test_build:
    def test_numbers_records_through_the_shards_in_order_of_name(self, folder: str, write_shard: WriteShard) -> None:
        for name, count in (("c", 1), ("a", 3), ("b", 0), ("d", 2)):
            write_shard(storage.join(folder, f"{name}.tfrecord"), [name.encode()] * count)
        dataset = dataset_index.build([storage.join(folder, "[bcd]*"), storage.join(folder, "*.tfrecord")])
        assert [shard.stored.name[0] for shard in dataset.shards] == ["a", "b", "c", "d"]
        assert dataset.count == 6
        shards, rows = dataset.locate(np.arange(6))
        assert shards.tolist() == [0, 0, 0, 2, 3, 3]
        assert rows.tolist() == [0, 1, 2, 0, 0, 1]

    def test_manifests_are_no_shards_and_numbers_outside_are_refused(self, two_shards: Path) -> None:
        (two_shards / "a-manifest.json").write_text("{}")
        dataset = dataset_index.build([f"{two_shards}/a*"])
        assert dataset.count == 2
        for number in (-1, 2):
            with pytest.raises(IndexError):
                dataset.locate(np.array([number]))

    def test_a_data_set_without_a_record_is_refused(self, folder: str) -> None:
        storage.write(storage.join(folder, "a.tfrecord"), b"")
        with pytest.raises(InvalidData, match="no record"):
            dataset_index.build([storage.join(folder, "*")])

    def test_damage_that_may_be_skipped_is_counted(
        self, folder: str, write_shard: WriteShard, flip: Callable[[str, int], None]
    ) -> None:
        uris = [write_shard(storage.join(folder, f"{name}.tfrecord"), [b"one", b"two", b"three"]) for name in "ab"]
        for uri in uris:
            flip(uri, 19)
        account = BadRecords("Skip", 2)
        assert dataset_index.build(uris, bad_records=account).count == 2
        assert [(bad.uri, bad.record, bad.offset) for bad in account.skipped] == [(uri, 1, 19) for uri in uris]
        for policy, message in ((None, "record 1 at byte 19 is damaged: the length's"), (1, "2 damaged records")):
            with pytest.raises(InvalidData, match=message):
                dataset_index.build(uris, bad_records=None if policy is None else BadRecords("Skip", policy))


class Test_fingerprint:
    def test_stays_when_the_data_set_is_copied_elsewhere(self, two_shards: Path, tmp_path: Path, bucket: str) -> None:
        shutil.copytree(two_shards, tmp_path / "other" / "place")
        for file in two_shards.iterdir():
            storage.upload(file, f"{bucket}/{file.name}")
        fingerprint = _fingerprint(two_shards)
        assert _fingerprint(tmp_path / "other" / "place") == fingerprint == _fingerprint(bucket)

    def test_changes_with_any_record_or_shard(self, two_shards: Path, write_shard: WriteShard) -> None:
        seen = {_fingerprint(two_shards)}
        for records in ([b"one", b"TWO"], [b"two", b"one"]):
            write_shard(str(two_shards / "a.tfrecord"), records)
            seen.add(_fingerprint(two_shards))
        (two_shards / "b.tfrecord").rename(two_shards / "c.tfrecord")
        seen.add(_fingerprint(two_shards))
        write_shard(str(two_shards / "d.tfrecord"), [])
        seen.add(_fingerprint(two_shards))
        (two_shards / "c.tfrecord").unlink()
        seen.add(_fingerprint(two_shards))
        assert len(seen) == 6


RECORDS = [bytes([number]) * (number * 37 % 900) for number in range(200)]


def _write(bucket: str, shards: int = 5, records: Sequence[bytes] = RECORDS) -> list[str]:
    for number in range(shards):
        part = records[number::shards]
        storage.write(f"{bucket}/{number}.tfrecord", b"".join(map(framing.encode, part)))
    return [f"{bucket}/*.tfrecord"]


def _records(dataset: DatasetIndex, cache: DiskCache | None = None) -> tuple[list[bytes | None], int]:
    """Return all records in index order, and the number of requests."""
    with RecordReader(dataset, cache=cache) as reader:
        return reader.read(np.arange(dataset.count)), reader.figures.requests


def test_what_was_read_for_the_index_is_not_fetched_again(bucket: str, tmp_path: Path) -> None:
    patterns = _write(bucket)
    traffic = Traffic()
    cache = DiskCache(tmp_path, on_full=pytest.fail)
    dataset = dataset_index.build(patterns, cache=cache, traffic=traffic)
    assert traffic.figures.received == sum(shard.stored.size for shard in dataset.shards)
    records, requests = _records(dataset, cache)
    assert sorted(filter(None, records)) == sorted(filter(None, RECORDS))
    assert requests == 0


def test_a_long_object_comes_in_parallel_windows(bucket: str) -> None:
    records = [bytes([number]) * 1_000_003 for number in range(20)]
    progress: list[tuple[int, int]] = []
    patterns = _write(bucket, shards=1, records=records)
    dataset = dataset_index.build(patterns, progress=lambda done, total: progress.append((done, total)))
    assert _records(dataset)[0] == records
    assert progress[-1][0] == progress[-1][1] == dataset.shards[0].stored.size
    assert len(progress) > 5


class Test_workers:
    def test_read_every_object_once_between_them(self, bucket: str) -> None:
        patterns = _write(bucket)
        # Each expands for itself what is compressed; one has read its first bytes to see that: here all of them.
        packed = gzip.compress(b"".join(map(framing.encode, RECORDS)))
        storage.write(f"{bucket}/9.tfrecord", packed)
        traffics = [Traffic() for _ in range(3)]

        def build(worker: int) -> DatasetIndex:
            return dataset_index.build(patterns, worker=worker, workers=3, traffic=traffics[worker])

        with ThreadPoolExecutor(3) as pool:
            built = list(pool.map(build, range(3)))
        assert len({dataset.fingerprint for dataset in built}) == 1
        assert built[0].count == 2 * len(RECORDS)
        read = sum(traffic.figures.received for traffic in traffics)
        assert read == sum(shard.stored.size for shard in built[0].shards) + 3 * len(packed)

    def test_do_not_wait_for_ever_for_one_that_is_gone(self, bucket: str) -> None:
        _write(bucket)
        objects = storage.glob(f"{bucket}/*.tfrecord")
        found = remote_scan.scan_shared(objects, worker=1, workers=2, timeout_seconds=0.0)
        assert sum(shard.count for shard in found.values()) == len(RECORDS)

    @pytest.mark.parametrize("problem", [InvalidData, StorageUnavailable])
    def test_each_scans_everything_where_none_may_write(
        self, bucket: str, monkeypatch: pytest.MonkeyPatch, problem: type[InvalidData | StorageUnavailable]
    ) -> None:
        patterns = _write(bucket)

        def refused(*shards: object) -> None:
            raise problem(bucket, "it says why")

        monkeypatch.setattr(sidecar, "save", refused)
        said: list[str] = []
        dataset = dataset_index.build(patterns, worker=0, workers=2, notice=said.append)
        assert dataset.count == len(RECORDS)
        assert len(said) == 1
        assert "mptj records index" in said[0]


def test_content_that_differs_from_the_listed_checksum_is_not_indexed(bucket: str) -> None:
    _write(bucket, shards=1)
    [object] = storage.glob(f"{bucket}/*.tfrecord")
    with pytest.raises(StorageUnavailable, match="CRC32C"):
        list(remote_scan.scan([replace(object, crc32c=1)]))
