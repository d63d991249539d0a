"""Training data that are sorted by label are reported; data in random order are read in long blocks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mptraining_api.resolved_job import ResolvedData
from mptraining_records.convert.convert import convert
from mptraining_records.tfrecord import example, manifest
from mptraining_records.tfrecord.sorted_labels import RUN, RUNS, are_mixed
from mptraining_trainer.data.dataset import report_if_sorted


def reported(folder: Path, *, shuffle: Any = "Windowed", buffer_size: int | None = None) -> list[tuple[str, str]]:
    """Return topic and level of each notice about the records in `folder`."""
    data = ResolvedData.model_construct(shuffle=shuffle, shuffle_buffer_size=buffer_size)
    notices: list[tuple[str, str]] = []
    found = manifest.find([f"{folder}/train-*"])
    report_if_sorted(found, data, lambda topic, _, level: notices.append((topic, level)))
    return notices


@pytest.fixture
def rows(tmp_path: Path) -> str:
    np.savez(tmp_path / "rows.npz", x=np.arange(200), label=np.arange(200) // 50)
    return str(tmp_path / "rows.npz")


def test_sorted_records_are_a_warning_where_the_shuffling_does_not_mix_them(rows: str, tmp_path: Path) -> None:
    convert(rows, str(tmp_path / "permuted"))
    assert reported(tmp_path / "permuted", shuffle="None") == []
    assert reported(tmp_path / "without a manifest", shuffle="None") == []
    convert(rows, str(tmp_path), keep_order=True)
    assert reported(tmp_path) == [("SortedRecords", "Info")]
    assert reported(tmp_path, shuffle="Full") == [("SortedRecords", "Info")]
    assert reported(tmp_path, shuffle="None") == [("SortedRecords", "Warning")]
    assert reported(tmp_path, buffer_size=10) == [("SortedRecords", "Warning")]


def _records(labels: Sequence[Any]) -> list[bytes | None]:
    """Return runs of neighbours, as many as a reader takes, of records with these labels."""
    begins = np.linspace(0, len(labels) - RUN, RUNS).astype(int)
    return [example.encode({"label": label}) for begin in begins for label in labels[begin : begin + RUN]]


DRAWN = np.random.default_rng(3)


@pytest.mark.parametrize(
    ("labels", "mixed"),
    [
        (DRAWN.permutation(np.repeat(np.arange(10), 1000)).tolist(), True),
        (DRAWN.permutation(np.repeat(np.arange(2), 5000)).tolist(), True),
        (np.repeat(np.arange(1000), 10).tolist(), False),
        # Shards of which each is sorted.
        (np.sort(DRAWN.integers(0, 5, (10, 1000)), axis=1).ravel().tolist(), False),
        # Nothing is known about them.
        ([1] * 10_000, False),
        ([0.5] * 10_000, False),
        ([[1, 2]] * 10_000, False),
        (["cat", "dog"] * 5_000, False),
    ],
    ids=range(8),
)
def test_records_without_a_manifest_are_mixed_if_labels_of_neighbours_are(labels: list[Any], mixed: bool) -> None:
    assert are_mixed("label", _records(labels)) is mixed


def test_a_damaged_or_unlabelled_record_leaves_them_unmixed() -> None:
    records = _records(DRAWN.integers(0, 10, 1000).tolist())
    assert are_mixed("label", records)
    assert not are_mixed("class", records)
    for damaged in (None, b"no example"):
        records[33] = damaged
        assert not are_mixed("label", records)
