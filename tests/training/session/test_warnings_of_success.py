"""Metrics that are NaN are shown as plain Keras shows them; a training that skipped most steps is no success."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mptraining.comparison import compare
from mptraining.display.summary import success_lines
from mptraining.display.text import event_lines
from mptraining.runs import load_run
from mptraining_api import events, outcomes
from mptraining_trainer.keras_backend import Keras, load
from tests.left_out import first_of
from tests.training.callback_runs import Train, in_order, module_of

PROGRAM = """
import weakref

import tensorflow as tf
import {package} as keras

COLUMN, LIMIT = 4, 0.59

# None of the first eight rows, which are tried before the first step, and some of each later batch.
def rare(x):
    return x[:, COLUMN:COLUMN + 1] > LIMIT

class NaNAtInference(keras.layers.Layer):
    def call(self, x, training=False):
        return x if training else tf.where(rare(x), float("nan"), x)

def undefined(labels, outputs):
    return 0.0 * outputs[:, 0] / 0.0

def nan():
    layers = keras.layers
    model = keras.Sequential([keras.Input((8,)), NaNAtInference(), layers.Dense(3, kernel_initializer="ones")])
    return dict(model=model, optimizer=keras.optimizers.SGD(0.1), metrics=["accuracy", undefined],
                loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))

class Overflow(keras.layers.Layer):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def call(self, x):
        # Infinite in float16, and with a large factor in float32.
        return tf.where(rare(x), x * self.factor * self.factor / self.factor / self.factor, x)

MODELS, ALIVE = [], []

class Counted(keras.layers.Layer):
    def build(self, shape):
        self.calls = self.add_weight(name="calls", shape=(), initializer="zeros", trainable=False)

    def call(self, x):
        self.calls.assign_add(1.0)
        return x

def averaged(ema=True):
    layers = keras.layers
    model = keras.Sequential([keras.Input((8,)), Counted(), layers.Dense(3, kernel_initializer="ones")])
    stops = keras.callbacks.EarlyStopping("val_loss", mode="max", patience=9, restore_best_weights=True)
    return dict(model=model, metrics=["accuracy"], callbacks=[] if ema else [stops],
                optimizer=keras.optimizers.SGD(0.5, use_ema=ema, ema_momentum=0.9),
                loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))

class StopEarly(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        self.model.stop_training = True

def overflow(stop=False, factor=1e4):
    layers = keras.layers
    ALIVE.append(sum(model() is not None for model in MODELS))
    model = keras.Sequential([keras.Input((8,)), Overflow(factor), layers.Dense(3, dtype="float32")])
    MODELS.append(weakref.ref(model))
    return dict(model=model, optimizer=keras.optimizers.SGD(0.1), metrics=["accuracy"],
                loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
                callbacks=[StopEarly()] if stop else [])
"""


@pytest.fixture
def program() -> str:
    return PROGRAM


def fitted(data: Path, generation: str, build: str, **arguments: Any) -> Any:
    """Return the model that plain Keras' `fit` trained on the same rows in the same order."""
    keras = load(generation)
    arrays = [np.load(data / f"{name}.npz") for name in ("train", "validation")]
    keras.set_policy("float32")
    built = getattr(module_of(generation), build)(**arguments)
    built["model"].compile(optimizer=built["optimizer"], loss=built["loss"], metrics=built["metrics"])
    (x, y), validation = ((array["x"], array["label"]) for array in arrays)
    built["model"].fit(
        x,
        y,
        batch_size=20,
        epochs=3,
        shuffle=False,
        validation_data=validation,
        validation_batch_size=20,
        verbose=0,
        callbacks=built.get("callbacks"),
    )
    return built["model"]


def test_metrics_that_are_nan_are_shown_as_fit_shows_them(train: Train, data: Path, generation: str) -> None:
    run = train("nan", keras=generation, data=in_order(data))
    assert run.outcome == outcomes.SUCCEEDED, run.finished.message
    expected = fitted(data, generation, "nan").history.history
    assert all(math.isnan(expected[name][-1]) for name in ("undefined", "val_undefined", "val_loss"))
    loaded = load_run(run.folder)
    assert set(run.result.metrics) == set(expected)
    for name, values in expected.items():
        np.testing.assert_allclose(loaded.history[name], values, rtol=1e-5)
    # JSON has no NaN: what other programs read is strict.
    assert json.loads(run.read("result.json"), parse_constant=pytest.fail)["metrics"]["val_loss"] == "NaN"
    json.loads(run.read("model/model.json"), parse_constant=pytest.fail)
    shown = [line for event in run.all(events.Progress) for line in event_lines(event)]
    assert "val_loss NaN" in shown[-1]
    (warning,) = run.result.warnings
    assert "val_loss" in warning
    assert run.finished.warnings == run.result.warnings
    last = success_lines(run.finished, run.folder)
    assert last[0].startswith("Succeeded with a warning")
    assert warning in last[1]
    table = compare([loaded, loaded])
    assert "NaN" in str(table)
    json.loads(json.dumps(table.to_document()), parse_constant=pytest.fail)


@pytest.mark.parametrize(("stop", "keras"), first_of((False, "Keras3"), (True, "Legacy")))
def test_a_policy_that_skips_most_steps_is_replaced_from_the_beginning(
    train: Train, data: Path, stop: bool, keras: str
) -> None:
    """Also in a run of 5 or 15 steps; the weights are those of a job with the safer policy."""
    job: dict[str, Any] = {"keras": keras, "arguments": {"stop": stop}, "data": in_order(data)}
    run = train("overflow", precision={"policy": "mixed_float16"}, **job)
    assert run.outcome == outcomes.SUCCEEDED, run.finished.message
    (recovered,) = run.all(events.Recovered)
    steps = 5 if stop else 15
    assert (recovered.from_step, recovered.to_step) == (steps, 0)
    assert f"{steps} of {steps} steps were skipped under mixed_float16" in recovered.message
    assert (run.result.step, run.result.skipped_steps, run.result.warnings) == (steps, 0, ())
    alive = module_of(keras).ALIVE
    # The third model is built for the export.
    assert alive[:2] == [0, 0], "two models need twice the memory of the device"
    direct = train("overflow", "direct", precision={"policy": recovered.precision}, **job)
    for ours, expected in zip(run.weights(), direct.weights(), strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-6)


def test_a_training_without_a_finite_step_has_diverged(train: Train, data: Path) -> None:
    run = train("overflow", arguments={"factor": 1e30}, data=in_order(data))
    assert run.outcome == outcomes.DIVERGED
    assert "15 of 15 steps were skipped under float32" in run.finished.message


@pytest.mark.parametrize("ema", first_of(True, False), ids=["averaged", "restored"])
def test_the_result_judges_the_weights_that_are_exported(train: Train, data: Path, generation: str, ema: bool) -> None:
    """By plain Keras' evaluation of the exported model; `fit` has validated others last."""
    run = train("averaged", keras=generation, arguments={"ema": ema}, data=in_order(data))
    assert run.outcome == outcomes.SUCCEEDED, run.finished.message
    loaded = load(generation)
    model = fitted(data, generation, "averaged", ema=ema)
    (calls,), (expected_calls,) = (
        [w for w in weights if w.ndim == 0] for weights in (run.weights(), model.get_weights())
    )
    assert calls == expected_calls, "the trainer's own validation leaves no trace"
    model.set_weights(run.weights())
    with np.load(data / "validation.npz") as rows:
        expected = float(np.mean(_losses(loaded, rows["label"], model(rows["x"]))))
    assert run.result.metrics["val_loss"] == pytest.approx(expected, rel=1e-5)
    last = run.all(events.Progress)[-1]
    assert last.metrics["val_loss"] != pytest.approx(expected, rel=1e-3)


def _losses(keras: Keras, labels: np.ndarray, outputs: Any) -> Any:
    return keras.module.losses.sparse_categorical_crossentropy(labels, outputs, from_logits=True)
