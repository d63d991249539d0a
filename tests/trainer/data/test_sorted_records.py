"""A run warns of training data that its manifest describes as sorted by label, which convert writes on request only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mptraining_records.convert.convert import convert
from mptraining_records.tfrecord import manifest
from mptraining_trainer.data.dataset import warn_if_sorted


@pytest.mark.parametrize("keep_order", [False, True])
def test_only_sorted_records_are_reported(tmp_path: Path, keep_order: bool) -> None:
    np.savez(tmp_path / "rows.npz", x=np.arange(200), label=np.arange(200) // 50)
    convert(str(tmp_path / "rows.npz"), str(tmp_path), keep_order=keep_order)
    said: list[tuple[Any, ...]] = []
    warn_if_sorted(manifest.find([f"{tmp_path}/train-*"]), lambda *text, level: said.append((*text, level)))
    assert [(topic, level) for topic, _, level in said] == ([("SortedRecords", "Warning")] if keep_order else [])


def test_records_without_a_manifest_are_not() -> None:
    warn_if_sorted(None, lambda *_, **__: pytest.fail("no notice is expected"))
