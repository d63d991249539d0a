"""What is decided about devices before TensorFlow makes them."""

from __future__ import annotations

from typing import Any

import pytest

from mptraining_api.job import MPTrainingJob
from mptraining_api.resolve import ClusterSettings, resolve
from mptraining_trainer.runtime import wants_determinism

pytestmark = pytest.mark.training

DATA = {"data": {"train": ["a.tfrecord"]}, "training": {"epochs": 1}}
FUNCTION: dict[str, Any] = {"program": {"function": {"entryPoint": "model:build"}}, **DATA}
SCRIPT: dict[str, Any] = {"program": {"script": {"path": "train.py"}}}


@pytest.mark.parametrize(
    ("accelerator", "rest", "environment", "wanted"),
    [
        ("nvidia-tesla-t4", FUNCTION, {}, True),
        ("nvidia-tesla-t4", FUNCTION, {"TF_DETERMINISTIC_OPS": "1"}, True),
        ("nvidia-tesla-t4", FUNCTION, {"TF_DETERMINISTIC_OPS": "0"}, False),
        ("nvidia-tesla-t4", FUNCTION, {"TF_DETERMINISTIC_OPS": "False"}, False),
        ("nvidia-tesla-t4", SCRIPT, {}, False),
        ("cpu", FUNCTION, {}, False),
    ],
)
def test_operations_are_deterministic_on_gpus_unless_told_otherwise(
    accelerator: str, rest: dict[str, Any], environment: dict[str, str], wanted: bool
) -> None:
    spec = {"accelerator": {"type": accelerator}, **rest}
    job = resolve(MPTrainingJob.parse({"metadata": {"name": "flowers"}, "spec": spec}), ClusterSettings())
    assert wants_determinism(job, environment) == wanted
