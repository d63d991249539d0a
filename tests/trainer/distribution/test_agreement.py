"""Agreement among workers before and between steps; several processes are in tests/trainer/processes."""

from __future__ import annotations

import pytest
import tensorflow as tf

from mptraining_trainer.distribution.coordination import barrier, gather_over_workers, mean_over_workers

pytestmark = pytest.mark.training


def test_one_worker_with_two_replicas_votes_once() -> None:
    over = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    assert mean_over_workers(over, [0.5, 3.0]) == [0.5, 3.0]
    assert mean_over_workers(over, []) == []
    assert gather_over_workers(over, 0, 1, [1, 4, 77]) == [[1, 4, 77]]
    barrier(over)
