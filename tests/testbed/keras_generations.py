"""Four logical CPU devices for the whole process: strategies over them are real, only the silicon is shared."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import tensorflow as tf

from mptraining_trainer.keras_backend import Keras, load
from tests.left_out import first_of

_CPU = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(_CPU, [tf.config.LogicalDeviceConfiguration()] * 4)


_bases = itertools.count(10_000, 10_000)
_make = tf.distribute.MirroredStrategy.__init__


def _numbered(self: Any, *arguments: Any, **named: Any) -> None:
    self._collective_key_base = next(_bases)
    _make(self, *arguments, **named)


# TensorFlow numbers the collective operations of every strategy from the same base. Two strategies in one process must
# not share the numbers, or one waits for the other's. A trainer has one strategy, the tests have many.
tf.distribute.MirroredStrategy.__init__ = _numbered


# Values of a parameter or a fixture: `make test` runs Keras 3, `make test-all` both.
GENERATIONS = first_of("Keras3", "Legacy")
# A test of what the two generations do differently: `make test` runs both.
BOTH_GENERATIONS = pytest.mark.parametrize("keras", ["Keras3", "Legacy"], indirect=True)


def _names(given: str | Sequence[str]) -> Sequence[str]:
    return [name.strip() for name in given.split(",")] if isinstance(given, str) else given


def in_generations(metafunc: pytest.Metafunc, generations: Sequence[Any] = GENERATIONS) -> None:
    """Run a test with the fixture `keras` under these generations, unless it names its own."""
    chosen = any("keras" in _names(mark.args[0]) for mark in metafunc.definition.iter_markers("parametrize"))
    if "keras" in metafunc.fixturenames and not chosen:
        metafunc.parametrize("keras", generations, indirect=True)


@pytest.fixture
def keras(request: pytest.FixtureRequest) -> Keras:
    """The generation that `in_generations` chooses."""
    found = load(request.param)
    found.set_seed(1)
    return found


@pytest.fixture
def keras3() -> Keras:
    found = load("Keras3")
    found.set_seed(1)
    return found


@pytest.fixture(autouse=True)
def keras_of_no_child() -> Iterator[None]:
    """Loading tf_keras sets the generation of every child process: the next test's children must not inherit it."""
    yield
    os.environ.pop("TF_USE_LEGACY_KERAS", None)
