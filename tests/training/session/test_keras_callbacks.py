"""Custom callbacks: called as `fit` calls them, and exact over restarts if they declare their state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mptraining_api import outcomes
from mptraining_trainer.keras_backend import load
from tests.left_out import TEST_ALL
from tests.training.callback_runs import Train, in_order, module_of, until
from tests.training.runs import same

EPOCH, BATCH = 5, 20

PROGRAM = """
import {package} as keras
import numpy as np

TOLD = []
KEPT = []

def model():
    layers = keras.layers
    return keras.Sequential([keras.Input((8,)), layers.Dense(8, activation="tanh"), layers.Dense(3, dtype="float32")])

def program(*callbacks):
    return dict(model=model(), optimizer=keras.optimizers.SGD(0.1, momentum=0.5), metrics=["accuracy"],
                loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True), callbacks=list(callbacks))

def hook(name):
    def told(self, *numbers, logs=None):
        if len(numbers) > name.count("batch") + name.count("epoch"):
            *numbers, logs = numbers
        values = dict((key, float(value)) for key, value in (logs or dict()).items())
        TOLD.append((name, tuple(map(int, numbers)), values, int(self.model.optimizer.iterations), dict(self.params)))
    return told

NAMES = ["on_train_begin", "on_train_end", "on_epoch_begin", "on_epoch_end", "on_train_batch_begin",
         "on_train_batch_end", "on_test_begin", "on_test_end", "on_test_batch_begin", "on_test_batch_end",
         "on_predict_begin", "on_predict_end", "on_predict_batch_begin", "on_predict_batch_end"]
Recorder = type("Recorder", (keras.callbacks.Callback,), dict((name, hook(name)) for name in NAMES))

class Stopper(keras.callbacks.Callback):
    def __init__(self, step):
        super().__init__()
        self.step = step

    def on_train_batch_end(self, batch, logs=None):
        self.model.stop_training = int(self.model.optimizer.iterations) >= self.step

def recording(stop=None):
    return program(Recorder(), *([] if stop is None else [Stopper(stop)]))

class Rate(keras.callbacks.Callback):
    # Changes rate and weights at every batch, by what it has read.
    def on_train_batch_begin(self, batch, logs=None):
        self.model.optimizer.learning_rate = 0.1 / (1 + int(self.model.optimizer.iterations))

class Halve(keras.callbacks.CSVLogger):
    def on_train_batch_end(self, batch, logs=None):
        if logs["loss"] > 0.5:
            bias = self.model.layers[-1].bias
            bias.assign(bias * 0.5)

def changing(to):
    seen = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: TOLD.append(
        ("seen", (batch,), dict(loss=float(logs["loss"])), batch, dict())))
    return program(Rate(), Halve(to + "/log.csv"), seen, Recorder())

def swapping():
    ema = keras.optimizers.SGD(0.1, momentum=0.5, use_ema=True, ema_momentum=0.5)
    return program(keras.callbacks.SwapEMAWeights(), Recorder()) | dict(optimizer=ema)

class Averaged(keras.callbacks.Callback):
    # Sets the learning rate by what it saw in all batches, and averages the weights itself.
    def on_train_begin(self, logs=None):
        self.losses, self.average, self.best = [], None, float("inf")

    def on_epoch_begin(self, epoch, logs=None):
        self.losses = []

    def on_train_batch_end(self, batch, logs=None):
        self.losses.append(float(logs["loss"]))
        self.model.optimizer.learning_rate = 0.05 + 0.01 * len(self.losses)
        new = self.model.get_weights()[0]
        self.average = new if self.average is None else 0.9 * self.average + 0.1 * new

    def on_train_end(self, logs=None):
        KEPT.append(self.get_state())

    def get_state(self):
        return dict(losses=self.losses, average=self.average, best=self.best)

    def set_state(self, state):
        self.losses, self.average, self.best = state["losses"], state["average"], state["best"]

def averaged():
    return program(Averaged())

class Forgetful(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.count = 0

    def on_epoch_begin(self, epoch, logs=None):
        self.begun = epoch

    def on_epoch_end(self, epoch, logs=None):
        assert self.begun == epoch
        self.count += 1

class Patient(keras.callbacks.EarlyStopping):
    pass

def forgetful():
    c = keras.callbacks
    return program(Forgetful(), c.TerminateOnNaN(), c.BackupAndRestore("backup"), c.History(), Patient("val_loss"))

class Unkept(keras.callbacks.Callback):
    def get_state(self):
        return dict(model=self.model)

    def set_state(self, state):
        pass

def unkept():
    return program(Unkept())

def rates():
    optimizers = keras.optimizers
    slow, fast = optimizers.SGD(0.01), optimizers.SGD(0.1)
    several = optimizers.MultiOptimizer(lambda variable: slow if "bias" in variable.path else fast)
    return program(Forgetful()) | dict(optimizer=several)
"""


@pytest.fixture
def program() -> str:
    return PROGRAM


def examples(folder: Path, name: str) -> tuple[np.ndarray, np.ndarray]:
    with np.load(folder / f"{name}.npz") as found:
        return found["x"], found["label"]


def plain(generation: str, folder: Path, name: str = "recording", *, batch: int = BATCH, **arguments: Any) -> list[Any]:
    """Return the calls by Keras' own `fit` over the same batches."""
    keras = load("Legacy" if generation == "Legacy" else "Keras3")
    keras.clear_session()
    keras.set_seed(7)
    space: dict[str, Any] = {}
    exec(PROGRAM.format(package="tf_keras" if keras.legacy else "keras"), space)
    parts = space[name](**arguments)
    model = parts["model"]
    model.compile(optimizer=parts["optimizer"], loss=parts["loss"], metrics=parts["metrics"])
    x, label = examples(folder, "train")
    model.fit(
        x,
        label,
        batch_size=batch,
        epochs=2,
        shuffle=False,
        verbose=0,
        validation_data=examples(folder, "validation"),
        validation_batch_size=batch,
        callbacks=parts["callbacks"],
    )
    return list(space["TOLD"])


@pytest.mark.parametrize(
    ("name", "stop", "batch"),
    [
        pytest.param("recording", None, 4, id="whole"),
        pytest.param("recording", EPOCH + 3, BATCH, id="stopped in mid-epoch"),
        pytest.param("changing", None, 4, id="rate and weights", marks=TEST_ALL),
    ],
)
def test_calls_and_logs_are_those_of_fit(
    train: Train, generation: str, data: Path, tmp_path: Path, name: str, stop: int | None, batch: int
) -> None:
    """Each step is an execution of its own, and each batch of validation, without a setting of the job."""
    job = {"training": {"epochs": 2, "batchSize": {"global": batch}}, "data": in_order(data)}
    arguments: dict[str, Any] = {"stop": stop} if name == "recording" else {"to": str(tmp_path)}
    done = train(name, keras=generation, arguments=arguments, **job)
    assert done.outcome == outcomes.SUCCEEDED, done.finished.message
    assert done.finished.step == (stop or 2 * 100 // batch)
    assert done.started.steps_per_execution == 1
    ours, theirs = module_of(generation).TOLD, plain(generation, data, name, batch=batch, **arguments)
    assert [call[:2] for call in ours] == [call[:2] for call in theirs]
    for (name, numbers, logs, step, params), (_, _, expected, expected_step, expected_params) in zip(
        ours, theirs, strict=True
    ):
        where = (name, numbers)
        assert logs == pytest.approx(expected, rel=1e-5), where
        assert (step, params) == (expected_step, expected_params), where


def test_validation_of_averaged_weights_is_that_of_fit(train: Train, data: Path) -> None:
    """SwapEMAWeights exchanges weights and averages around validation."""
    done = train("swapping", training={"epochs": 2, "stepsPerExecution": 1}, data=in_order(data))
    assert done.outcome == outcomes.SUCCEEDED, done.finished.message
    ours, theirs = (
        [call[2] for call in calls if call[0] == "on_epoch_end"]
        for calls in (module_of("Keras3").TOLD, plain("Keras3", data, "swapping"))
    )
    assert [logs["val_loss"] for logs in ours] == pytest.approx([logs["val_loss"] for logs in theirs], rel=1e-5)


def test_declared_state_is_exact_over_a_restart_in_mid_epoch(train: Train, generation: str) -> None:
    long = {"keras": generation, "training": {"epochs": 3, "stepsPerExecution": 1}}
    whole = train("averaged", "whole", **long)
    assert whole.outcome == outcomes.SUCCEEDED, whole.finished.message
    kept = module_of(generation).KEPT
    train("averaged", "cut", keras=generation, **until(EPOCH + 2))
    rest = train("averaged", "cut", **long)
    assert rest.outcome == outcomes.SUCCEEDED, rest.finished.message
    assert same(rest, whole)
    first, _, last = kept
    assert (last["losses"], last["best"]) == (first["losses"], np.inf)
    assert np.array_equal(last["average"], first["average"])
    assert "CallbackState" not in whole.notices


def test_others_run_with_a_warning_and_those_of_the_trainer_are_not_called(train: Train, generation: str) -> None:
    done = train("forgetful", keras=generation, **until(EPOCH + 2))
    assert done.outcome == outcomes.SUCCEEDED, done.finished.message
    assert done.notices["CallbackState"].startswith("Forgetful declares no state (get_state() and set_state(state))")
    texts = [event.message for event in done.events if getattr(event, "topic", "") == "CallbackSuperseded"]
    assert [text.split()[0] for text in texts] == ["TerminateOnNaN", "BackupAndRestore", "History"]
    rest = train("forgetful", keras=generation, training={"epochs": 2})
    assert rest.outcome == outcomes.SUCCEEDED, "the epoch under way was begun for it again"
    assert done.state()["callbacks"]["own.Patient"]["best"] is not None, "what Keras' part of it keeps is exact"


def test_a_state_that_no_checkpoint_can_hold_is_refused_by_its_place(train: Train) -> None:
    failed = train("unkept")
    assert failed.outcome == outcomes.INVALID_PROGRAM
    text = "the program's callbacks[0]: Unkept.get_state(): state['model'] is of Sequential"
    assert failed.finished.message.startswith(text)


def test_callbacks_beside_optimizers_of_several_rates(train: Train) -> None:
    done = train("rates")
    assert done.outcome == outcomes.SUCCEEDED, done.finished.message
