"""The decisions about devices before TensorFlow creates them, through whole jobs on a CPU."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tensorflow.python.framework import config

from mptraining_api import outcomes
from tests.left_out import first_of
from tests.training import runs

BATCH, EXAMPLES = 8, 160


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
