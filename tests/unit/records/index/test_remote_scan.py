"""One pass over remote objects: each worker its share, bytes that were read are kept, indexes that others wrote are
used.
"""

from __future__ import annotations

import gzip
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mptraining_api.problems import InvalidData, StorageUnavailable
from mptraining_records.index import dataset_index, remote_scan, sidecar
from mptraining_records.index.dataset_index import DatasetIndex
from mptraining_records.index.disk_cache import DiskCache
from mptraining_records.index.shard_index import ShardIndex
from mptraining_records.reading.reader import RecordReader
from mptraining_records.storage import storage
from mptraining_records.storage.ranges import Traffic
from mptraining_records.tfrecord import framing

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
    assert traffic.figures.bytes == sum(shard.object.size for shard in dataset.shards)
    records, requests = _records(dataset, cache)
    assert sorted(filter(None, records)) == sorted(filter(None, RECORDS))
    assert requests == 0


def test_a_long_object_comes_in_parallel_windows(bucket: str) -> None:
    records = [bytes([number]) * 1_000_003 for number in range(20)]
    progress: list[tuple[int, int]] = []
    patterns = _write(bucket, shards=1, records=records)
    dataset = dataset_index.build(patterns, progress=lambda done, total: progress.append((done, total)))
    assert _records(dataset)[0] == records
    assert progress[-1][0] == progress[-1][1] == dataset.shards[0].object.size
    assert len(progress) > 5


class Test_workers:
    def test_read_every_object_once_between_them(self, bucket: str) -> None:
        patterns = _write(bucket)
        # Each expands for itself what is compressed.
        packed = gzip.compress(b"".join(map(framing.encode, RECORDS)))
        storage.write(f"{bucket}/9.tfrecord", packed)
        traffics = [Traffic() for _ in range(3)]
        with ThreadPoolExecutor(3) as pool:
            built = list(
                pool.map(
                    lambda worker: dataset_index.build(patterns, worker=worker, workers=3, traffic=traffics[worker]),
                    range(3),
                )
            )
        assert len({dataset.fingerprint for dataset in built}) == 1
        assert built[0].count == 2 * len(RECORDS)
        read = sum(traffic.figures.bytes for traffic in traffics)
        assert read == sum(shard.object.size for shard in built[0].shards) + 2 * len(packed)

    def test_do_not_wait_for_ever_for_one_that_is_gone(self, bucket: str) -> None:
        _write(bucket)
        objects = storage.glob(f"{bucket}/*.tfrecord")
        found = remote_scan.scan_shared(
            objects, {each.uri for each in objects}, worker=1, workers=2, timeout_seconds=0.0
        )
        assert sum(shard.count for shard in found.values()) == len(RECORDS)

    @pytest.mark.parametrize("problem", [InvalidData, StorageUnavailable])
    def test_each_scans_everything_where_none_may_write(
        self, bucket: str, monkeypatch: pytest.MonkeyPatch, problem: type[InvalidData | StorageUnavailable]
    ) -> None:
        patterns = _write(bucket)

        def refused(shard: object) -> None:
            raise problem(bucket, "it says why")

        monkeypatch.setattr(sidecar, "save", refused)
        said: list[str] = []
        dataset = dataset_index.build(patterns, worker=0, workers=2, notice=said.append)
        assert dataset.count == len(RECORDS)
        assert len(said) == 1
        assert "mptj records index" in said[0]


def test_sidecars_are_written_in_parallel(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    patterns = _write(bucket, shards=8)
    together = threading.Barrier(8)
    save = sidecar.save

    def waiting(shard: ShardIndex) -> None:
        together.wait(timeout=60)
        save(shard)

    monkeypatch.setattr(sidecar, "save", waiting)
    assert dataset_index.build(patterns).count == len(RECORDS)
    assert dataset_index.publish(patterns).count("kept") == 8


def test_content_that_differs_from_the_listed_checksum_is_not_indexed(bucket: str) -> None:
    _write(bucket, shards=1)
    [object] = storage.glob(f"{bucket}/*.tfrecord")
    with pytest.raises(StorageUnavailable, match="CRC32C"):
        list(remote_scan.scan([replace(object, crc32c=1)]))
