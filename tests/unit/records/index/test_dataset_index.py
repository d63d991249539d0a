from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from mptraining_api.problems import InvalidData
from mptraining_records.index import dataset_index, scanner
from mptraining_records.index.bad_record_policy import BadRecords
from mptraining_records.storage import ranges, storage

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
    def test_numbers_records_through_the_shards_in_the_order_of_their_names(
        self, folder: str, write_shard: WriteShard
    ) -> None:
        for name, count in (("c", 1), ("a", 3), ("b", 0), ("d", 2)):
            write_shard(storage.join(folder, f"{name}.tfrecord"), [name.encode()] * count)
        dataset = dataset_index.build([storage.join(folder, "[bcd]*"), storage.join(folder, "*.tfrecord")])
        assert [shard.object.name[0] for shard in dataset.shards] == ["a", "b", "c", "d"]
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
