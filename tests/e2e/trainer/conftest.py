"""Trainer processes, forked from one that has imported TensorFlow."""

from __future__ import annotations

from tests.testbed.digits_attempts import digits, start  # noqa: F401
from tests.testbed.keras_generations import keras, keras3, keras_of_no_child  # noqa: F401
from tests.training.script_runs import through_us  # noqa: F401
