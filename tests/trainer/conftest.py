"""Four logical CPU devices for the whole process: strategies over them are real, only the silicon is shared."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow as tf

from mptraining_trainer.keras_generation import Keras, load

_CPU = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(_CPU, [tf.config.LogicalDeviceConfiguration()] * 4)


@pytest.fixture(params=["Keras3", "Legacy"])
def keras(request: pytest.FixtureRequest) -> Iterator[Keras]:
    """Each test runs under both generations; the policy is the default one before and after."""
    found = load(request.param)
    found.set_policy("float32")
    found.set_seed(1)
    yield found
    found.set_policy("float32")


@pytest.fixture
def keras3() -> Iterator[Keras]:
    found = load("Keras3")
    found.set_policy("float32")
    found.set_seed(1)
    yield found
    found.set_policy("float32")
