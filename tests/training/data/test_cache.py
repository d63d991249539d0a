"""The place of examples between epochs: the decision, its message, and the cost of the second epoch."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

import pytest

from mptraining_records.index import dataset_index
from mptraining_records.tfrecord import framing
from mptraining_records.tfrecord.example import encode
from mptraining_storage import storage
from mptraining_trainer.data import cache as data_cache
from mptraining_trainer.data.dataset import open_data
from mptraining_trainer.data.pipeline import Split
from tests.training.data.splits import dataset, resolved

COUNT, BATCH = 48, 8
Said = list[tuple[str, str]]
Mode = Literal["Auto", "Memory", "Disk", "None"]


class Rig:
    """Opens the records of a folder as a job does, and keeps the messages."""

    def __init__(self, ends: ExitStack) -> None:
        self.said: Said = []
        self._ends = ends

    def notice(self, topic: str, text: str, **_: Any) -> None:
        self.said.append((topic, text))

    def open(self, folder: str, mode: Mode, *, reserved: int = 0, processes: int = 1) -> tuple[Split, str]:
        data = resolved(f"{folder}/*.tfrecord")
        cache, _ = data_cache.disk_cache(
            dataset_index.find(data.train), mode, self.notice, reserved=reserved, processes=processes
        )
        if cache is not None:
            self._ends.callback(cache.close)
        split = open_data(data.train, data, training_columns=None, notice=self.notice, now=lambda: 0.0, cache=cache)
        cached, name, _ = data_cache.with_cache(split, mode, cache, processes=processes)
        self._ends.callback(cached.reader.close)
        return cached, name


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with ExitStack() as ends:
        yield Rig(ends)
    assert list(tmp_path.glob("mptraining-records-*")) == [], "nothing stays on the disk"


def write(folder: str) -> str:
    for shard, numbers in enumerate((range(20), range(20, COUNT))):
        records = [encode({"x": [float(number)] * 50, "label": number}) for number in numbers]
        storage.write(f"{folder}/{shard}.tfrecord", b"".join(map(framing.encode, records)))
    return folder


def epochs(split: Split, count: int) -> list[list[int]]:
    """Return the labels of whole epochs."""
    batches = itertools.islice(dataset(split, COUNT, BATCH, rows="Masked").as_numpy_iterator(), count * COUNT // BATCH)
    labels = [int(label) for _, of_batch, *_ in batches for label in of_batch]
    return [labels[at : at + COUNT] for at in range(0, len(labels), COUNT)]


@pytest.mark.parametrize(
    ("mode", "kept"), [("Auto", "Memory"), ("Memory", "Memory"), ("Disk", "Disk"), ("None", "None")]
)
def test_each_mode_brings_the_same_epochs(bucket: str, tmp_path: Path, rig: Rig, mode: Mode, kept: str) -> None:
    there, name = rig.open(write(f"{bucket}/data"), mode)
    assert name == kept
    plain, _ = rig.open(write(str(tmp_path / "local")), "None")
    assert epochs(there, 3) == epochs(plain, 3)


@pytest.mark.parametrize("mode", ["Memory", "Disk"])
@pytest.mark.parametrize("indexed", [False, True], ids=["no index yet", "indexed"])
def test_from_a_cache_the_second_epoch_asks_the_bucket_for_nothing(
    bucket: str, rig: Rig, mode: Mode, indexed: bool
) -> None:
    folder = write(f"{bucket}/data")
    if indexed:
        rig.open(folder, "None")
    split, _ = rig.open(folder, mode)
    epochs(split, 1)
    asked = split.meter.figures
    assert asked.received > 0
    assert all(sorted(epoch) == list(range(COUNT)) for epoch in epochs(split, 3))
    assert split.meter.figures == asked
    # Bytes that were read to find the records are not fetched again.
    size = sum(shard.stored.size for shard in split.dataset.shards)
    assert indexed or asked.received == size


class Test_records_that_do_not_fit_on_the_disk:
    def test_are_read_from_the_bucket_with_a_notice(
        self, bucket: str, rig: Rig, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(data_cache, "available_disk", lambda folder: 1000)
        _, name = rig.open(write(f"{bucket}/data"), "Disk")
        assert name == "None"
        assert [topic for topic, text in rig.said if "every epoch reads the bucket" in text] == ["DiskCache"]

    def test_have_no_notice_unless_a_cache_was_requested(
        self, bucket: str, rig: Rig, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(data_cache, "available_disk", lambda folder: 1000)
        monkeypatch.setattr(data_cache, "available_memory", lambda: 0)
        _, name = rig.open(write(f"{bucket}/data"), "Auto")
        assert (name, [topic for topic, _ in rig.said if topic.startswith("Disk")]) == ("None", [])

    def test_do_not_use_memory_that_is_reserved_for_others(self, bucket: str, rig: Rig) -> None:
        assert rig.open(write(f"{bucket}/data"), "Disk", reserved=1 << 60)[1] == "None"


def test_without_memory_for_them_the_records_go_to_the_disk(
    bucket: str, rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_cache, "available_memory", lambda: 0)
    assert rig.open(write(f"{bucket}/data"), "Auto")[1] == "Disk"


@pytest.mark.parametrize(("processes", "caches"), [(1, ("Memory", "Disk")), (4, ("None", "None"))])
def test_processes_of_one_machine_share_its_memory_and_disk(
    bucket: str, rig: Rig, monkeypatch: pytest.MonkeyPatch, processes: int, caches: tuple[str, str]
) -> None:
    """Each of them caches all records: together they would take what one may take, so many times."""
    folder = write(f"{bucket}/data")
    size = sum(each.size for each in storage.list_objects(folder))
    # As much as one process needs, of which it takes a quarter (memory) and 0.7 (disk).
    monkeypatch.setattr(data_cache, "available_memory", lambda: 8 * size)
    monkeypatch.setattr(data_cache, "available_disk", lambda folder: 0)
    in_memory = rig.open(folder, "Auto", processes=processes)[1]
    monkeypatch.setattr(data_cache, "available_memory", lambda: 0)
    monkeypatch.setattr(data_cache, "available_disk", lambda folder: 2 * size)
    assert (in_memory, rig.open(folder, "Auto", processes=processes)[1]) == caches


def test_records_on_a_disk_are_not_copied_to_a_disk(tmp_path: Path, rig: Rig) -> None:
    assert rig.open(write(str(tmp_path / "local")), "Disk")[1] == "None"
    assert "are on a disk already" in dict(rig.said)["DiskCache"]
