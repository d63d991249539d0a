"""Sidecars of shards: their content, their use, and the command that writes them."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from mptraining_records.index import dataset_index, scanner, shard_index, sidecar
from mptraining_records.index.shard_index import ShardIndex
from mptraining_records.tfrecord import framing
from mptraining_storage import storage
from mptraining_storage.ranges import Traffic
from tests.testbed.record_files import index_in_sidecar

WriteShard = Callable[[str, Sequence[bytes]], str]


@pytest.fixture
def shard(bucket: str, write_shard: WriteShard) -> ShardIndex:
    uri = write_shard(f"{bucket}/data/a.tfrecord", [b"one", b"", b"three"])
    return scanner.scan(storage.stat(uri))


def test_a_damaged_end_is_kept(shard: ShardIndex, flip: Callable[[str, int], None]) -> None:
    flip(shard.stored.uri, 19)
    damaged = scanner.scan(storage.stat(shard.stored.uri))
    sidecar.save(damaged)
    kept = index_in_sidecar(damaged.stored)
    assert kept is not None
    assert kept.damage == damaged.damage is not None
    assert np.array_equal(kept.offsets, damaged.offsets)


def test_it_is_no_shard_and_not_used_for_another_version_of_the_object(
    bucket: str, shard: ShardIndex, write_shard: WriteShard
) -> None:
    sidecar.save(shard)
    assert [stored.name for stored in storage.glob(f"{bucket}/data/*")] == ["a.tfrecord"]
    write_shard(shard.stored.uri, [b"two", b"", b"three"])
    assert index_in_sidecar(storage.stat(shard.stored.uri)) is None
    assert dataset_index.build([shard.stored.uri]).shards[0].checksum != shard.checksum


def test_a_damaged_one_is_not_used(shard: ShardIndex) -> None:
    sidecar.save(shard)
    uri = sidecar.uri_of(shard.stored.uri)
    content = storage.read(uri)
    # The first and the last length are exchanged: their sum is the same.
    swapped = content[:-24] + content[-8:] + content[-16:-8] + content[-24:-16]
    for damaged in (b"", b"something else", content[:-1], content[:-8], content[:20], swapped):
        storage.write(uri, damaged)
        assert index_in_sidecar(shard.stored) is None


@pytest.mark.parametrize("lengths", [[2**62, 3 - 2**62, 5], [2**62, 2**62, 2**62, 2**62 - 24], [-16, 24, 16]])
def test_one_with_false_lengths_of_the_right_sum_is_not_used(shard: ShardIndex, lengths: list[int]) -> None:
    """A sidecar with sizes that are not those of the object, which would allocate too much memory."""
    forged = shard_index.from_lengths(shard.stored, np.array(lengths, np.int64), shard.checksum)
    sidecar.save(forged)
    with np.errstate(over="ignore"):
        assert index_in_sidecar(shard.stored) is None
    assert dataset_index.build([shard.stored.uri]).count == 3


@pytest.fixture
def shards(bucket: str, write_shard: WriteShard) -> list[str]:
    return [write_shard(f"{bucket}/data/{name}.tfrecord", [b"one", b"two", b"three"]) for name in "abc"]


def test_every_shard_gets_an_index_that_jobs_find(shards: list[str], bucket: str, write_shard: WriteShard) -> None:
    report = dataset_index.publish([f"{bucket}/data/*"])
    assert (report.count("written"), report.records, report.bytes) == (3, 9, 3 * 59)
    traffic = Traffic()
    assert dataset_index.build([f"{bucket}/data/*"], traffic=traffic).count == 9
    assert traffic.figures.received == 0, "no shard is read"
    # What fits is kept, unless forced.
    write_shard(shards[1], [b"four"])
    report = dataset_index.publish([f"{bucket}/data/*"])
    assert [each.state for each in report.shards] == ["kept", "written", "kept"]
    assert dataset_index.publish([f"{bucket}/data/*"], force=True).count("written") == 3


def test_shards_of_a_folder_share_a_file_that_outlives_the_change_of_some(
    shards: list[str], bucket: str, write_shard: WriteShard
) -> None:
    dataset_index.publish([f"{bucket}/data/*"])
    [first] = storage.list_objects(f"{bucket}/data/.index")
    write_shard(shards[0], [b"four"])
    report = dataset_index.publish([f"{bucket}/data/*"])
    assert [each.state for each in report.shards] == ["written", "kept", "kept"]
    assert first in storage.list_objects(f"{bucket}/data/.index")
    for uri in shards:
        write_shard(uri, [b"five"])
    assert dataset_index.publish([f"{bucket}/data/*"]).count("written") == 3
    [only] = storage.list_objects(f"{bucket}/data/.index")
    assert only != first, "files of replaced shards alone are deleted"


def test_shards_of_two_folders_share_none(bucket: str, write_shard: WriteShard) -> None:
    for folder in "ab":
        write_shard(f"{bucket}/{folder}/0.tfrecord", [b"one"])
    states = [dataset_index.publish([f"{bucket}/*/0.tfrecord"]).shards[1].state for _ in range(2)]
    assert states == ["written", "kept"]


def test_local_files_get_none_and_compressed_ones_a_mark(tmp_path: Path, bucket: str, write_shard: WriteShard) -> None:
    local = write_shard(str(tmp_path / "a.tfrecord"), [b"one"])
    packed = f"{bucket}/data/a.tfrecord.gz"
    storage.write(packed, gzip.compress(framing.encode(b"one")))
    report = dataset_index.publish([local, packed])
    assert (report.count("local"), report.count("compressed"), report.records) == (1, 1, 2)
    sidecars = sidecar.Sidecars(storage.glob(packed))
    assert sidecars.load()
    assert sidecars.known == {packed: None}
    assert not (tmp_path / ".index").exists()
