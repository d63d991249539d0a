from __future__ import annotations

import gzip
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from mptraining_records.index import dataset_index, sidecar
from mptraining_records.storage import storage
from mptraining_records.storage.ranges import Traffic
from mptraining_records.tfrecord import framing

WriteShard = Callable[[str, Sequence[bytes]], str]


@pytest.fixture
def shards(bucket: str, write_shard: WriteShard) -> list[str]:
    return [write_shard(f"{bucket}/data/{name}.tfrecord", [b"one", b"two", b"three"]) for name in "abc"]


def test_every_shard_gets_an_index_that_jobs_find(shards: list[str], bucket: str, write_shard: WriteShard) -> None:
    report = dataset_index.publish([f"{bucket}/data/*"])
    assert (report.count("written"), report.records, report.bytes) == (3, 9, 3 * 59)
    traffic = Traffic()
    assert dataset_index.build([f"{bucket}/data/*"], traffic=traffic).count == 9
    assert traffic.figures.bytes == 0, "no shard is read"
    # What fits is kept, unless forced.
    write_shard(shards[1], [b"four"])
    report = dataset_index.publish([f"{bucket}/data/*"])
    assert [each.state for each in report.shards] == ["kept", "written", "kept"]
    assert dataset_index.publish([f"{bucket}/data/*"], force=True).count("written") == 3


def test_local_and_compressed_files_get_none(tmp_path: Path, bucket: str, write_shard: WriteShard) -> None:
    local = write_shard(str(tmp_path / "a.tfrecord"), [b"one"])
    packed = f"{bucket}/data/a.tfrecord.gz"
    storage.write(packed, gzip.compress(framing.encode(b"one")))
    report = dataset_index.publish([local, packed])
    assert (report.count("local"), report.count("compressed"), report.records) == (1, 1, 2)
    assert not storage.exists(sidecar.uri_of(packed))
    assert not (tmp_path / ".index").exists()
