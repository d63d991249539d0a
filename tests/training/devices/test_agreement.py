"""Agreement among workers before and between steps; several processes are in tests/training/processes."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from mptraining_api.launch import WorkerIdentity
from mptraining_trainer.devices.coordination import agree, barrier, mean_over_workers


def test_one_worker_with_two_replicas_votes_once() -> None:
    over = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    assert mean_over_workers(over, [0.5, 3.0]) == [0.5, 3.0]
    assert mean_over_workers(over, []) == []
    barrier(over)


class Workers:
    """Workers as threads, whose float32 tensors are summed as a collective operation sums them."""

    def __init__(self, workers: int, replicas_of_each: int) -> None:
        self._replicas = replicas_of_each
        self._values: list[Any] = [None] * workers
        self._barrier = threading.Barrier(workers)

    def run(self, texts: Sequence[Sequence[str]]) -> list[list[bool]]:
        """Return the answer of each worker, which has these texts."""
        hosts = tuple(f"host-{index}:1" for index in range(len(texts)))

        def worker(index: int) -> list[bool]:
            identity = WorkerIdentity(index=index, hosts=hosts, attempt=1, incarnation="a")
            return agree(partial(self._sum, index), identity, texts[index])

        with ThreadPoolExecutor(len(texts)) as pool:
            return list(pool.map(worker, range(len(texts))))

    def _sum(self, index: int, values: Any) -> Any:
        self._values[index] = values.numpy()
        self._barrier.wait(60)
        total = np.zeros_like(values.numpy())
        for replica_values in self._values * self._replicas:
            total = total + replica_values
        self._barrier.wait(60)
        return total


@pytest.mark.parametrize("number", range(5))
def test_1024_replicas_that_have_the_same_agree(number: int) -> None:
    """The API allows 1,024 workers; any sum of unequal numbers beyond 2^24 would be rounded in float32."""
    answers = Workers(64, 16).run([[f"records {number}", "step 7"]] * 64)
    assert answers == [[True, True]] * 64


@pytest.mark.parametrize("index", [0, 1, 63])
def test_one_worker_that_differs_is_seen_by_all(index: int) -> None:
    texts = [["records", "step 7" if worker != index else "step 8"] for worker in range(64)]
    assert Workers(64, 16).run(texts) == [[True, False]] * 64
