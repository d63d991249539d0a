"""The number of workers changes at every attempt: 2, 3, 4, 1. What has to be exact, and how far the rest may differ.

Real processes, each attempt but the last ended by the SIGKILL of one worker in the middle of an epoch.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from tests.soak.kill_and_resume import counting_program
from tests.soak.kill_and_resume.elastic import EPOCHS, KILLED_AT, RECORDS, SIZES, ElasticRun, run
from tests.soak.kill_and_resume.rounds import make_data

pytestmark = pytest.mark.timeout(1800)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("elastic")
    make_data(folder, counting_program.__file__, counts=(RECORDS, 240), numbered=True)
    return folder


def each_record_once(one: ElasticRun) -> bool:
    """Return whether every attempt that ended an epoch had seen each of its records exactly once."""
    ends = [metrics for of_epoch in one.epochs.values() for metrics in of_epoch]
    return len(one.epochs) == EPOCHS and all(metrics["once"] == RECORDS for metrics in ends)


def test_the_records_are_the_same_and_the_loss_curve_differs_by_rounding(data: Path, tmp_path: Path) -> None:
    """Without random numbers or statistics of a replica, only the order of float32 sums depends on the workers."""
    fixed = run(data, tmp_path / "fixed", (1,))
    changing = run(data, tmp_path / "changing", SIZES, KILLED_AT)
    assert [workers for workers, _ in changing.started] == list(SIZES)
    assert all(0 < first <= killed for (_, first), killed in zip(changing.started[1:], KILLED_AT, strict=True))
    assert each_record_once(fixed)
    assert each_record_once(changing)
    assert changing.curve("order") == fixed.curve("order"), "every record at the same place of its epoch"
    side_by_side = list(zip(fixed.curve("loss"), changing.curve("loss"), strict=True))
    assert all(math.isclose(a, b, rel_tol=1e-4) for a, b in side_by_side), side_by_side
    for a, b in zip(fixed.weights, changing.weights, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-4)


def test_with_dropout_and_batch_normalization_it_ends_between_constant_numbers_of_workers(
    data: Path, tmp_path: Path
) -> None:
    """Masks and statistics are those of a replica's rows: 24 of them for one worker, 6 for each of four."""
    constant = [
        run(data, tmp_path / f"{workers}-{seed}", (workers,), program="random", seed=seed)
        for workers, seed in ((1, 7), (1, 8), (4, 7))
    ]
    changing = run(data, tmp_path / "changing", SIZES, KILLED_AT, program="random")
    assert each_record_once(changing)
    assert changing.curve("order") == constant[0].curve("order")
    for metric in ("val_accuracy", "val_loss"):
        ends = [reference.curve(metric)[-1] for reference in constant]
        margin = (max(ends) - min(ends)) / 4
        assert min(ends) - margin <= changing.curve(metric)[-1] <= max(ends) + margin, (metric, ends)
