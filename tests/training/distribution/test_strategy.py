"""The decisions about devices before TensorFlow creates them, through whole jobs on a CPU."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import config

from mptraining_api import outcomes
from mptraining_trainer.data.pipeline import Split
from tests.left_out import first_of
from tests.training import runs

BATCH, EXAMPLES = 8, 160
# Reached only if nothing is read ahead.
PATIENCE = 60.0


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    runs.write_rows(folder, "train", *runs.numbers(EXAMPLES))
    return folder


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    yield
    config.disable_op_determinism()


def trained(data: Path, folder: Path, *, cache: str, deterministic: str) -> list[np.ndarray]:
    """Return the weights after a job with validation over these records."""
    pattern = [f"{data}/train-*.tfrecord"]
    spec = {
        "program": {"application": {"name": "mlp", "classes": 3}},
        "data": {"train": pattern, "validation": pattern, "cache": cache},
        "training": {"batchSize": {"global": BATCH}, "seed": 7, "deterministic": deterministic},
    }
    done = runs.start(spec, folder)
    assert done.outcome == outcomes.SUCCEEDED
    assert config.is_op_determinism_enabled() == (deterministic == "Always")
    return done.weights()


@pytest.mark.parametrize("cache", first_of("None", "Memory"))
def test_a_job_trains_under_determinism_as_without(data: Path, tmp_path: Path, cache: str) -> None:
    usual = trained(data, tmp_path / "usual", cache=cache, deterministic="Auto")
    always = trained(data, tmp_path / "always", cache=cache, deterministic="Always")
    # Deterministic operations round differently: the cross entropy is another kernel, on a CPU too.
    assert all(np.allclose(one, other, atol=1e-6) for one, other in zip(usual, always, strict=True))


@pytest.mark.parametrize("deterministic", ["Always", "Never"])
def test_the_trainer_reads_ahead_while_a_step_is_under_way(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deterministic: str
) -> None:
    """The first step ends only when batches of later steps have been read, which without overlap never happens."""
    read: Counter[int] = Counter()
    changed = threading.Condition()
    ahead: list[bool] = []
    take = Split.take

    def counted(self: Split, stream: Any, *arguments: Any) -> Any:
        with changed:
            read[id(stream)] += 1
            changed.notify_all()
        return take(self, stream, *arguments)

    class Step(tf.Module):
        def __call__(self, value: Any) -> Any:
            with tf.control_dependencies([tf.numpy_function(waits, [], tf.bool)]):
                return tf.identity(value)

    def waits() -> bool:
        if not ahead:
            with changed:
                ahead.append(changed.wait_for(lambda: max(read.values()) >= 6, PATIENCE))
        return True

    monkeypatch.setattr(Split, "take", counted)
    import mptraining_trainer.loop.train_loop as loop

    global_norm = loop.global_norm
    monkeypatch.setattr(loop, "global_norm", lambda gradients: Step()(global_norm(gradients)))
    trained(data, tmp_path / "run", cache="None", deterministic=deterministic)
    assert ahead == [True]
