"""A run reports training data that its manifest describes as sorted by label, which convert writes on request only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mptraining_api.resolved_job import ResolvedData
from mptraining_records.convert.convert import convert
from mptraining_records.tfrecord import manifest
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
