"""Errors of the user's program and of values that it does not take: their own text, the field, the outcome.

A row is the same on one replica and on several.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mptraining_api import events
from mptraining_records.tfrecord import framing
from mptraining_records.tfrecord.example import encode
from tests.training.runs import start

PROGRAMS = """
import keras
import numpy as np
import tensorflow as tf

def compiled(model=None, loss=None):
    model = model or keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(3)])
    loss = loss or keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return {"model": model, "loss": loss, "optimizer": "sgd"}

def good():
    return compiled()

def without_shape(inputs, labels):
    return tf.numpy_function(lambda x: x * np.float32(2), [inputs], tf.float32), labels

def late(call, wrap):
    def preprocess(inputs, labels):
        mapped = wrap(call, [inputs], tf.float32)
        mapped.set_shape([2])
        return mapped, labels
    return preprocess

def refuse(x):
    if x[0] > 40:
        raise ValueError("an odd row of mine")
    return x

def look_up(x):
    if x[0] > 40:
        raise KeyError("no such plant")
    return x

def open_file(x):
    if x[0] > 40:
        raise ConnectionError("the service is away")
    return x

numpy_late = late(refuse, tf.numpy_function)
python_late = late(look_up, tf.py_function)
service_late = late(open_file, tf.numpy_function)

def assert_late(inputs, labels):
    tf.debugging.assert_less(inputs[0], 40.0, message="my rows are small")
    return inputs, labels

class Checked(keras.Model):
    def __init__(self):
        super().__init__()
        self.head = keras.layers.Dense(3)

    def call(self, x):
        with tf.control_dependencies([tf.debugging.assert_less(x, 40.0, message="my layer takes small rows")]):
            return self.head(tf.identity(x))

def layer_asserts():
    return compiled(Checked())

def embedding():
    layers = keras.layers
    return compiled(keras.Sequential([layers.Input((2,)), layers.Embedding(30, 4), layers.Flatten(), layers.Dense(3)]))

def loss_raises():
    def unfinished(labels, outputs):
        raise NotImplementedError("my loss is unfinished")
    return compiled(loss=unfinished)

def one_unit():
    return compiled(keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)]), "mse")
"""

CLASSES = [{"x": [1.0 * number, 2.0], "label": number % 3} for number in range(64)]
TEXTS = [{**row, "label": "abc"[number % 3]} for number, row in enumerate(CLASSES)]
NEGATIVE = [{**row, "label": -1 if number > 50 else 1} for number, row in enumerate(CLASSES)]
ONE_HOT = [{**row, "label": [1.0, 0.0, 0.0]} for row in CLASSES]
WEIGHTS = {"training": {"classWeight": {"0": 1.0, "1": 2.0}}}
PLACE = r"\(at \S+programs_of_users\.py:\d+\)"


def preprocess(name: str) -> dict[str, Any]:
    return {"data": {"preprocess": f"programs_of_users:{name}"}}


ROWS: dict[str, tuple[str, list[dict[str, Any]], dict[str, Any], str, str]] = {
    "no shape": ("good", CLASSES, preprocess("without_shape"), "InvalidProgram",
        r"^spec\.data\.preprocess: .*'x' without a shape, as tf\.numpy_function .*set_shape"),
    "numpy_function": ("good", CLASSES, preprocess("numpy_late"), "InvalidProgram",
        rf"^spec\.data\.preprocess: the function raised ValueError: an odd row of mine {PLACE}$"),
    "py_function": ("good", CLASSES, preprocess("python_late"), "InvalidProgram",
        rf"^spec\.data\.preprocess: the function raised KeyError: 'no such plant' {PLACE}$"),
    "a service": ("good", CLASSES, preprocess("service_late"), "ProgramFailed",
        rf"^spec\.data\.preprocess: the function raised ConnectionError: the service is away {PLACE}$"),
    "an assertion": ("good", CLASSES, preprocess("assert_late"), "InvalidProgram",
        r"^spec\.data\.preprocess: the function raised InvalidArgumentError: assertion failed: \[my rows are small\]"),
    "a text label": ("good", TEXTS, {}, "InvalidData",
        r"^spec\.data\.label: the label is text, .*expected class numbers from 0\. Map the label"),
    "a text as a number": ("one_unit", TEXTS, {}, "InvalidProgram",
        r"^spec\.program: .*Cast string to float is not supported.* map it to numbers in data\.preprocess"),
    "a class without weight": ("good", CLASSES, WEIGHTS, "InvalidSpec",
        r'^spec\.training\.classWeight: a label is 2, .*classes 0 to 1; .*Add a weight for "2"'),
    "a negative class": ("good", NEGATIVE, WEIGHTS, "InvalidSpec",
        r"^spec\.training\.classWeight: a label is -1, .*Count the labels from 0"),
    "one-hot without weight": ("good", ONE_HOT, WEIGHTS, "InvalidSpec",
        r"^spec\.training\.classWeight: weights of the classes 0 to 1, and a label has shape \[3\]"),
    "text with weights": ("good", TEXTS, WEIGHTS, "InvalidSpec",
        r"^spec\.training\.classWeight: given, and the label is text"),
    "a layer": ("layer_asserts", CLASSES, {}, "InvalidProgram",
        rf"^spec\.program: InvalidArgumentError: assertion failed: \[my layer takes small rows\].*{PLACE}"),
    "an id": ("embedding", CLASSES, {}, "InvalidProgram",
        r"^spec\.program: InvalidArgumentError: indices\[\d,0\] = \d+ is not in \[0, 30\)\. Give the layer"),
    "a loss": ("loss_raises", CLASSES, {}, "InvalidProgram",
        rf"^spec\.program: .*NotImplementedError: my loss is unfinished {PLACE}"),
}  # fmt: skip

Attempt = Callable[..., events.Finished]


@pytest.fixture
def attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Attempt:
    """Runs a function program over 64 records in their order; returns its last Event."""
    (tmp_path / "programs_of_users.py").write_text(PROGRAMS)
    monkeypatch.syspath_prepend(tmp_path)
    # Each test has its own copy.
    monkeypatch.delitem(sys.modules, "programs_of_users", raising=False)

    def run_job(function: str, rows: list[dict[str, Any]], sections: dict[str, Any], replicas: int) -> events.Finished:
        (tmp_path / "data.tfrecord").write_bytes(b"".join(framing.encode(encode(row)) for row in rows))
        spec = {
            "accelerator": {"type": "cpu", "countPerWorker": replicas},
            "program": {"function": {"entryPoint": f"programs_of_users:{function}"}},
            "data": {"train": [f"{tmp_path}/data.tfrecord"], "shuffle": {"bufferSize": 0}} | sections.get("data", {}),
            "training": {"batchSize": {"global": 8}, "epochs": 1, "seed": 7} | sections.get("training", {}),
        }
        return start(spec, tmp_path / "run").finished

    return run_job


# With several replicas, whose errors come from other places of TensorFlow; `make test-all` takes every row.
ON_REPLICAS = ("numpy_function",)


@pytest.mark.parametrize(
    ("row", "replicas"),
    [
        pytest.param(row, replicas, marks=[pytest.mark.test_all] * (replicas > 1 and row not in ON_REPLICAS))
        for row in ROWS
        for replicas in (1, 4)
    ],
)
def test_an_error_keeps_its_text_and_its_field(
    attempt: Attempt, capfd: pytest.CaptureFixture[str], row: str, replicas: int
) -> None:
    function, rows, sections, reason, message = ROWS[row]
    last = attempt(function, rows, sections, replicas)
    assert (last.reason, last.exit_code) == (reason, 1 if reason == "ProgramFailed" else 2), last.message
    assert re.search(message, last.message), last.message
    assert not re.search(r"stack traces|\{\{|\^\^|root error|INVALID_ARGUMENT", last.message)
    if last.exit_code == 2:
        assert "Traceback" not in capfd.readouterr().err
