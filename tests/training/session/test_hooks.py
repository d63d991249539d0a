"""Callbacks and best weights in whole trainings: their calls, and their state after a restart.

A training that ends at a step and is then resumed equals one that was killed there: a checkpoint is written before
the callbacks of the epoch's end.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras as keras3
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from mptraining_api import outcomes
from mptraining_storage import storage
from mptraining_trainer import train as training
from mptraining_trainer.session import policy_trials
from tests.testbed.keras_generations import GENERATIONS
from tests.training import runs
from tests.training.callback_runs import Train, in_order, module_of, until
from tests.training.runs import same

EPOCH = 5
BEST = {"export": {"checkpoint": "Best", "monitor": "val_loss"}}

PROGRAM = """
import numpy as np
import {package} as keras

ROWS = np.arange(32, dtype="float32").reshape(4, 8) / 8
OUTPUTS = []
TOLD = []
MODELS = []

def model():
    layers = keras.layers
    made = keras.Sequential([keras.Input((8,)), layers.Dense(8, activation="relu"), layers.BatchNormalization(),
                             layers.Dropout(0.1), layers.Dense(3, dtype="float32")])
    MODELS.append(made)
    return made

def program(callbacks, momentum=0.9):
    return dict(model=model(), optimizer=keras.optimizers.SGD(0.1, momentum=momentum), metrics=["accuracy"],
                loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True), callbacks=callbacks)

def telling():
    def epoch_begins(epoch, logs):
        TOLD.append(("epoch begins", epoch, sorted(logs)))

    def batch_ends(batch, logs):
        TOLD.append(("batch ends", batch, sorted(logs)))

    def epoch_ends(epoch, logs):
        TOLD.append(("epoch ends", epoch, sorted(logs)))
        MODELS[-1].optimizer.learning_rate = 0.0

    hooks = dict(on_epoch_begin=epoch_begins, on_epoch_end=epoch_ends, on_train_batch_end=batch_ends,
                 on_train_begin=lambda logs: TOLD.append(("training begins",)),
                 on_train_end=lambda logs: TOLD.append(("training ends", sorted(logs))))
    return program([keras.callbacks.LambdaCallback(**hooks)], momentum=0.0)

def stopping():
    def rate(epoch):
        return 0.05 if epoch < 2 else 30.0

    c = keras.callbacks
    return program([c.LearningRateScheduler(rate),
                    c.EarlyStopping("val_loss", patience=1, restore_best_weights=True, verbose=1)])

def remembering():
    c = keras.callbacks
    return program([
        c.ReduceLROnPlateau("val_loss", factor=0.5, patience=1, min_delta=10.0),
        c.EarlyStopping("val_accuracy", patience=3, mode="max", min_delta=1.0),
        c.LearningRateScheduler(lambda epoch, rate: rate * 0.9),
        c.CSVLogger("log.csv"),
        c.ModelCheckpoint("models/{{epoch}}.keras", monitor="val_loss", save_best_only=True),
    ])

def writing():
    c = keras.callbacks
    return program([c.TensorBoard("logs/today", histogram_freq=1), c.CSVLogger("log.csv"),
                    c.ModelCheckpoint("{{epoch:02d}}.keras"),
                    c.ModelCheckpoint("batches.weights.h5", save_weights_only=True, save_freq=2)])

class Scaled(keras.layers.Layer):
    # Its configuration omits the factor.
    def __init__(self, factor=1.0, **options):
        super().__init__(**options)
        self.factor = factor

    def call(self, rows):
        return rows * self.factor

    def get_config(self):
        return super().get_config() | {{"factor": 1.0}}

def keeping(forgetful=False):
    scaled = Scaled(30.0) if forgetful else keras.layers.Normalization()
    if not forgetful:
        scaled.adapt(np.random.default_rng(1).normal(3, 2, (50, 8)).astype("float32"))
    made = keras.Sequential([keras.Input((8,)), scaled, keras.layers.Dense(3, dtype="float32")])
    outputs = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: OUTPUTS.append(made(ROWS)))
    return program([keras.callbacks.ModelCheckpoint("kept.keras"), outputs]) | dict(model=made)

def scheduled():
    made = program([keras.callbacks.LearningRateScheduler(lambda epoch: 0.1)])
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 100, 0.9)
    return made | dict(optimizer=keras.optimizers.SGD(schedule))

def failing():
    return program([keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: logs["nothing"])])

def rising():
    return program([keras.callbacks.LearningRateScheduler(lambda epoch: 0.05 if epoch < 2 else 30.0)])
"""


@pytest.fixture
def program() -> str:
    return PROGRAM


def test_fused_steps_report_the_number_of_the_last_batch(train: Train) -> None:
    done = train("telling", training={"epochs": 3, "stepsPerExecution": 3})
    told = [call[1] for call in module_of("Keras3").TOLD if call[0] == "batch ends"]
    # The first executions are single steps, until their duration is known.
    assert told[-2:] == [2, 4]
    assert told.count(EPOCH - 1) == 3
    assert "stepsPerExecution: 1" in done.notices["BatchCallbacks"]


def test_early_stopping_ends_with_the_best_weights_and_stays_ended(train: Train, generation: str) -> None:
    stopped = train("stopping", keras=generation, training={"epochs": 9})
    assert (stopped.outcome, stopped.finished.step) == (outcomes.SUCCEEDED, 3 * EPOCH)
    assert stopped.finished.message == f"a callback stopped it at step {3 * EPOCH} of {9 * EPOCH}"
    assert stopped.result.step == 3 * EPOCH
    two = train("stopping", "two", keras=generation, training={"epochs": 2})
    assert same(stopped, two)
    if generation == "Keras3":
        again = train("stopping", training={"epochs": 20})
        assert (again.finished.step, again.outcome) == (3 * EPOCH, outcomes.SUCCEEDED)
        assert same(again, two)


def test_a_schedule_and_a_callback_that_sets_the_rate_disagree(train: Train) -> None:
    refused = train("scheduled")
    assert refused.outcome == outcomes.INVALID_PROGRAM
    assert "LearningRateScheduler sets the learning rate, and the optimizer's is a schedule" in refused.finished.message
    assert not Path(refused.folder, "job.json").exists(), "fixed, the job may run in this folder"


def test_an_error_in_a_callback_is_one_line_with_its_place(train: Train, tmp_path: Path) -> None:
    failed = train("failing")
    assert failed.outcome == outcomes.PROGRAM_FAILED
    place = f"{tmp_path}/keras_program.py:"
    assert failed.finished.message.startswith("the program's callbacks[0]: LambdaCallback.on_epoch_end raised KeyError")
    assert place in failed.finished.message


# Their state


def test_a_resume_is_exact_with_their_state(train: Train, generation: str) -> None:
    """In the middle of an epoch, and at the end of one whose callbacks have not run; without the state the result
    differs.
    """
    long = {"keras": generation, "training": {"epochs": 8, "stepsPerExecution": 1}}
    whole = train("remembering", "whole", **long)
    assert whole.finished.step == 4 * EPOCH, "EarlyStopping waited for three epochs"
    for cut in (EPOCH + 2, 2 * EPOCH) if generation == "Keras3" else (EPOCH + 2,):
        train("remembering", f"cut-{cut}", keras=generation, **until(cut))
        rest = train("remembering", f"cut-{cut}", **long)
        assert (rest.finished.step, rest.finished.metrics) == (whole.finished.step, whole.finished.metrics)
        assert same(rest, whole)
        assert rest.state()["callbacks"] == whole.state()["callbacks"]
        assert rest.read("callbacks/log.csv") == whole.read("callbacks/log.csv")
        assert rest.names("callbacks") == whole.names("callbacks")


# Numbers that are not finite


Data = Callable[[float], dict[str, Any]]


@pytest.fixture
def data_with(tmp_path: Path) -> Data:
    """Return the data's section, in index order, with this value as an input of the third step of every epoch."""

    def written(value: float) -> dict[str, Any]:
        folder = tmp_path / "records"
        folder.mkdir(exist_ok=True)
        x, label = runs.numbers(140, seed=4)
        x[41, 7] = value
        runs.write_rows(folder, "train", x[:100], label[:100])
        runs.write_rows(folder, "validation", x[100:], label[100:])
        return {"data": in_order(folder) | {"onChange": "Accept"}}

    return written


@pytest.mark.test_all
def test_a_recovery_begins_with_their_state_in_its_checkpoint(train: Train, data_with: Data) -> None:
    """It equals an attempt that begins at the checkpoint with the bad batch in its state."""
    ended = []
    for knows in (False, True):
        folder = f"knows-{knows}"
        cut = train("remembering", folder, **until(EPOCH), **BEST, **data_with(0.0))
        if knows:
            (state,) = Path(cut.folder).glob(f"checkpoints/step-*{EPOCH}/state.json")
            state.write_text(json.dumps(json.loads(state.read_text()) | {"checked": True}))
        ended.append(train("remembering", folder, training={"epochs": 4}, **BEST, **data_with(3e38)))
    back, straight = ended
    assert back.outcome == outcomes.SUCCEEDED, back.finished.message
    assert [way[:2] for way in back.ways_back] == [(EPOCH + 3, EPOCH)]
    assert straight.ways_back == []
    assert same(back, straight)
    assert back.state()["callbacks"] == straight.state()["callbacks"]
    assert back.result.best == straight.result.best
    assert back.read("callbacks/log.csv") == straight.read("callbacks/log.csv")
    assert [row[:2] for row in back.read("callbacks/log.csv").decode().splitlines()[1:]] == ["0,", "1,", "2,", "3,"]


def test_without_a_checkpoint_they_start_again_and_trials_do_not_call_them(
    train: Train, data_with: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "native_bfloat16", lambda: True)
    monkeypatch.setattr(policy_trials, "choose_policy", lambda trials: "float32")
    once = {"precision": {"policy": "Measure"}, "training": {"epochs": 1, "stepsPerExecution": 1}}
    done = train("telling", **once, **data_with(3e38))
    assert done.outcome == outcomes.SUCCEEDED, done.finished.message
    assert [way[:2] for way in done.ways_back] == [(3, 0)]
    assert len(done.result.measured) == 2
    told = [call[:2] for call in module_of("Keras3").TOLD]
    begun = [("training begins",), ("epoch begins", 0), ("batch ends", 0), ("batch ends", 1)]
    rest = [("batch ends", 2), ("batch ends", 3), ("batch ends", 4), ("epoch ends", 0)]
    assert told[:-1] == [*begun, *begun, *rest]
    assert told[-1][0] == "training ends"


# Their files


def test_their_files_are_in_the_run_folder_of_a_bucket(train: Train, bucket: str, tmp_path: Path) -> None:
    """Models under float32, whatever the policy: they open elsewhere, with the weights of their epoch."""
    policy = {"policy": "mixed_bfloat16"}
    done = train("writing", f"{bucket}/run", precision=policy, training={"epochs": 2, "stepsPerExecution": 1})
    assert done.outcome == outcomes.SUCCEEDED, done.finished.message
    assert done.names("callbacks") == ["01.keras", "02.keras", "batches.weights.h5", "log.csv"]
    header, *rows = done.read("callbacks/log.csv").decode().splitlines()
    assert header == "epoch,accuracy,loss,val_accuracy,val_loss"
    assert [row.split(",")[0] for row in rows] == ["0", "1"]
    for name in ("callbacks/02.keras", "model/model.keras"):
        storage.download(f"{done.folder}/{name}", tmp_path / Path(name).name)
    kept, exported = (keras3.saving.load_model(tmp_path / name, compile=False) for name in ("02.keras", "model.keras"))
    assert {layer.compute_dtype for layer in kept.layers} == {"float32"}
    assert all(np.array_equal(a, b) for a, b in zip(kept.get_weights(), exported.get_weights(), strict=True))
    tags = {}
    for name in done.names("tensorboard"):
        storage.download(f"{done.folder}/tensorboard/{name}", tmp_path / "events")
        found = tf.compat.v1.train.summary_iterator(str(tmp_path / "events"))
        tags.setdefault(name.partition("/")[0], set()).update(v.tag for each in found for v in each.summary.value)
    assert tags["validation"] >= {"epoch_loss", "epoch_accuracy"}
    assert tags["train"] >= {"epoch_loss", "epoch_learning_rate"}
    assert any("kernel/histogram" in tag for tag in tags["train"])


@pytest.mark.parametrize("generation", GENERATIONS)
def test_model_checkpoint_s_file_equals_the_live_model(train: Train, generation: str) -> None:
    """Also in the state that is in neither the weights nor the configuration, as plain Keras opens it."""
    once = {"keras": generation, "training": {"epochs": 1}, "precision": {"policy": "mixed_bfloat16"}}
    done = train("keeping", **once)
    assert done.outcome == outcomes.SUCCEEDED, done.finished.message
    assert "ModelCheckpoint" not in done.notices
    package = tf_keras if generation == "Legacy" else keras3
    kept = package.models.load_model(f"{done.folder}/callbacks/kept.keras", compile=False)
    ran = module_of(generation)
    (expected,) = (np.asarray(outputs) for outputs in ran.OUTPUTS)
    np.testing.assert_allclose(np.asarray(kept(ran.ROWS)), expected, rtol=0, atol=0.02 * np.abs(expected).max())


@pytest.mark.parametrize("generation", GENERATIONS)
def test_a_file_of_model_checkpoint_that_differs_is_named(train: Train, generation: str) -> None:
    done = train("keeping", keras=generation, training={"epochs": 1}, arguments={"forgetful": True})
    assert done.outcome == outcomes.SUCCEEDED, done.finished.message
    assert done.notices["ModelCheckpoint"].startswith("its files have the model as it is: its outputs differ by ")


# The best weights


def test_the_best_weights_are_exported_and_named_and_outlive_a_restart(train: Train) -> None:
    """Killed right after the step that becomes the best, and long after it."""
    whole = train("rising", "whole", training={"epochs": 4}, **BEST)
    assert whole.outcome == outcomes.SUCCEEDED, whole.finished.message
    assert whole.notices["Best"].startswith(f"the weights of step {2 * EPOCH} are exported: val_loss 0.")
    found = whole.result.best
    assert found is not None
    assert (found.monitor, found.mode, found.step) == ("val_loss", "min", 2 * EPOCH)
    about = json.loads(whole.read("model/model.json"))
    assert (about["step"], about["metrics"]["val_loss"]) == (2 * EPOCH, found.value)
    assert whole.finished.metrics["val_loss"] > found.value
    assert f"exported step {2 * EPOCH} with val_loss" in whole.finished.message
    for cut in (2 * EPOCH, 3 * EPOCH + 1):
        part = train("rising", f"cut-{cut}", **until(cut), **BEST)
        assert same(part, whole), "the best are those of step 10 in each of them"
        rest = train("rising", f"cut-{cut}", training={"epochs": 4}, **BEST)
        assert rest.result.best == whole.result.best
        assert same(rest, whole)


@pytest.mark.test_all
def test_a_training_metric_is_read_when_epochs_end(train: Train) -> None:
    """In tf_keras, whose metrics do not have a direction."""
    monitored = {"export": {"checkpoint": "Best", "monitor": "accuracy"}}
    best = train("rising", keras="Legacy", training={"epochs": 4}, **monitored).result.best
    assert best is not None
    assert (best.mode, best.step % EPOCH) == ("max", 0)


def test_a_monitor_that_is_not_there_is_refused_before_the_first_step(train: Train) -> None:
    refused = train("rising", export={"checkpoint": "Best", "monitor": "val_acuracy"})
    assert refused.outcome == outcomes.INVALID_SPEC
    assert "spec.export.monitor: 'val_acuracy'" in refused.finished.message
    assert "Did you mean 'val_accuracy'?" in refused.finished.message
