"""The callbacks that are run, and the state of each, in both generations of Keras."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from mptraining_api.problems import InvalidProgram
from mptraining_trainer import keras_internals
from mptraining_trainer.keras_backend import Keras
from mptraining_trainer.model import supported_callbacks


def package(keras: Keras) -> str:
    return "tf_keras" if keras.legacy else "keras"


def every_kind(keras: Keras, folder: Path) -> list[Any]:
    c = keras.module.callbacks
    return [
        c.EarlyStopping(patience=2),
        c.LearningRateScheduler(lambda epoch: 0.1),
        c.ReduceLROnPlateau(),
        c.ModelCheckpoint(str(folder / "model.keras")),
        c.TensorBoard(str(folder)),
        c.CSVLogger(str(folder / "log.csv")),
        c.LambdaCallback(),
        *([] if keras.legacy else [c.SwapEMAWeights()]),
        c.RemoteMonitor(),
    ]


def test_every_kind_is_taken(keras: Keras, tmp_path: Path) -> None:
    callbacks = every_kind(keras, tmp_path)
    assert supported_callbacks.check_callbacks(callbacks, package=package(keras)) == tuple(callbacks)
    missing = {"SwapEMAWeights"} if keras.legacy else set()
    assert [supported_callbacks.kind(callback) for callback in callbacks] == [
        name for name in keras_internals.CALLBACK_STATE if name not in missing
    ]
    expected = [*(type(callback).__name__ for callback in callbacks), "EarlyStopping-2"]
    assert supported_callbacks.checkpoint_names([*callbacks, callbacks[0]]) == expected


def test_the_state_is_complete_and_survives_json(keras: Keras, tmp_path: Path) -> None:
    for callback in every_kind(keras, tmp_path):
        if hasattr(callback, "best"):
            callback.best = 0.1 + 0.2
        if hasattr(callback, "wait"):
            callback.wait = 2
        state = json.loads(json.dumps(supported_callbacks.get_state(callback), allow_nan=False))
        (fresh,) = (one for one in every_kind(keras, tmp_path) if type(one) is type(callback))
        supported_callbacks.set_state(fresh, state)
        assert supported_callbacks.get_state(fresh) == supported_callbacks.get_state(callback)
    first, second = (keras.module.callbacks.EarlyStopping() for _ in range(2))
    for value in (math.inf, -math.inf, None, 3):
        first.best = value
        state = json.loads(json.dumps(supported_callbacks.get_state(first), allow_nan=False))
        supported_callbacks.set_state(second, state)
        assert (second.best, type(second.best)) == (value, type(value))


def test_subclasses_are_accepted_and_treated_as_their_base(keras: Keras) -> None:
    c = keras.module.callbacks

    class Mine(c.EarlyStopping):  # type: ignore[name-defined, misc]
        pass

    class Counting(c.Callback):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.count = 0

    class Telling(c.Callback):  # type: ignore[name-defined, misc]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None: ...

    callbacks = [Mine(), Counting(), Telling()]
    assert supported_callbacks.check_callbacks(callbacks, package=package(keras)) == tuple(callbacks)
    assert [supported_callbacks.kind(one) for one in callbacks] == ["EarlyStopping", None, None]
    names = ["own.Mine", "own.Counting", "own.Telling", "own.Mine-2"]
    assert supported_callbacks.checkpoint_names([*callbacks, Mine()]) == names
    assert [supported_callbacks.has_own_attributes(one) for one in callbacks] == [False, True, False]
    assert [supported_callbacks.has_batch_hooks(one) for one in callbacks] == [False, False, True]
    assert [supported_callbacks.superseded_reason(one) for one in callbacks] == [None, None, None]


def test_what_the_trainer_does_itself_is_not_called_and_what_is_no_callback_refused(keras: Keras) -> None:
    c = keras.module.callbacks
    for callback in (c.TerminateOnNaN(), c.BackupAndRestore("x"), c.History(), c.ProgbarLogger()):
        assert supported_callbacks.superseded_reason(callback), callback
    assert supported_callbacks.superseded_reason(c.RemoteMonitor()) is None

    class Stops(c.TerminateOnNaN):  # type: ignore[name-defined, misc]
        """A subclass may do more than Keras' own."""

    assert supported_callbacks.superseded_reason(Stops()) is None
    with pytest.raises(InvalidProgram, match=r"\[0\]: 'early' is no Keras callback"):
        supported_callbacks.check_callbacks(["early"], package=package(keras))
    other = "keras" if keras.legacy else "tf_keras"
    with pytest.raises(InvalidProgram, match=rf"EarlyStopping of {package(keras)}, but the model is of {other}"):
        supported_callbacks.check_callbacks([c.EarlyStopping()], package=other)


def test_only_those_that_do_something_are_called_at_every_batch(keras: Keras, tmp_path: Path) -> None:
    c, model = keras.module.callbacks, str(tmp_path / "model.keras")
    assert [type(one).__name__ for one in every_kind(keras, tmp_path) if supported_callbacks.has_batch_hooks(one)] == []
    hook = "on_train_batch_end"
    for callback in (
        c.ModelCheckpoint(model, save_freq=10),
        c.TensorBoard(str(tmp_path), update_freq=5),
        c.LambdaCallback(**{hook: lambda batch, logs: None}),
    ):
        assert supported_callbacks.has_batch_hooks(callback)
    assert not supported_callbacks.has_batch_hooks(c.LambdaCallback(on_epoch_end=lambda epoch, logs: None))


def test_observers_are_called_on_the_chief_alone(keras: Keras) -> None:
    base = keras.module.callbacks.Callback
    metrics_logger = type("WandbMetricsLogger", (base,), {"__module__": "wandb.integration.keras.callbacks"})()
    declared = type("Mine", (base,), {"observer": True})()
    # It stops the training, or saves it, wherever it comes from.
    checkpoint = type("WandbModelCheckpoint", (keras.module.callbacks.ModelCheckpoint,), {"__module__": "wandb.x"})
    others = [type("Other", (base,), {})(), keras.module.callbacks.EarlyStopping(), checkpoint("a.keras")]
    callbacks = [metrics_logger, declared, *others]
    assert supported_callbacks.of_worker(callbacks, chief=True) == tuple(callbacks)
    assert supported_callbacks.of_worker(callbacks, chief=False) == tuple(others)
