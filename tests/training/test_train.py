"""The effects of a job's settings, from records to result, in this process and on one device.

The processes themselves (signals, workers, exit codes) are in tests/training/processes.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorflow.tsl.profiler.protobuf import xplane_pb2

from mptraining_api import events, outcomes
from mptraining_api.launch import WorkerIdentity
from mptraining_api.outcomes import Outcome
from mptraining_api.resolve.resolve import ClusterSettings, resolve
from mptraining_api.run_folder import Result
from mptraining_api.spec import MPTrainingJob
from mptraining_records.convert.convert import convert
from mptraining_trainer.distribution.preemption import Preemption
from mptraining_trainer.loop.evaluation import Evaluation
from mptraining_trainer.run import run

TRAIN, BATCH = 300, 20
STEPS = TRAIN // BATCH


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three classes, the largest of three of eight numbers: 300 rows to train on, 70 to validate."""
    folder = tmp_path_factory.mktemp("data")
    numbers = np.random.default_rng(3)
    for name, count in (("train", TRAIN), ("validation", 70), ("longer", TRAIN + BATCH)):
        x = numbers.normal(size=(count, 8)).astype(np.float32)
        np.savez(folder / f"{name}.npz", x=x, label=x[:, :3].argmax(axis=1))
        convert(str(folder / f"{name}.npz"), str(folder), name=name, keep_order=True)
    return folder


class Run:
    """One attempt: its end and its run folder."""

    def __init__(self, outcome: Outcome, folder: Path, attempt: int) -> None:
        self.outcome = outcome
        self.folder = folder
        (file,) = (folder / "events").glob(f"{attempt}-*.jsonl")
        self.events = [events.parse(line) for line in file.read_text().splitlines()]

    def all(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def started(self) -> events.Started:
        (event,) = self.all(events.Started)
        return event  # type: ignore[no-any-return]

    @property
    def finished(self) -> events.Finished:
        event = self.events[-1]
        assert isinstance(event, events.Finished)
        return event

    @property
    def topics(self) -> list[str]:
        return [event.topic for event in self.all(events.Notice)]

    @property
    def saved(self) -> list[int]:
        return [event.step for event in self.all(events.Saved)]

    @property
    def result(self) -> Result:
        return Result.read((self.folder / "result.json").read_bytes())

    def weights(self) -> list[np.ndarray]:
        with np.load(self.folder / "model" / "weights.npz") as stored:
            return [stored[name] for name in sorted(stored)]

    def state(self) -> dict[str, Any]:
        newest = sorted((self.folder / "checkpoints").iterdir())[-1]
        return json.loads((newest / "state.json").read_text())  # type: ignore[no-any-return]


RunJob = Callable[..., Run]


@pytest.fixture
def train(data: Path, tmp_path: Path) -> RunJob:
    """Runs one attempt after the other in one folder; sections of `training` may be given by name."""
    attempts = {}
    validated = {"validation": [f"{data}/validation-*.tfrecord"]}

    def attempt(
        folder: str = "run",
        *,
        name: str = "numbers",
        sections: dict[str, Any] | None = None,
        validate: bool = False,
        preemption: Preemption | None = None,
        **training: Any,
    ) -> Run:
        number = attempts[folder] = attempts.get(folder, 0) + 1
        spec: dict[str, Any] = {
            "accelerator": {"type": "cpu"},
            "strategy": "None",
            "program": {"application": {"name": "mlp", "classes": 3}},
            "data": {"train": [f"{data}/train-*.tfrecord"]} | (validated if validate else {}),
            "output": {"uri": str(tmp_path / folder)},
        }
        for field, section in (sections or {}).items():
            spec[field] = spec.get(field, {}) | section if field == "data" else section
        spec["training"] = {"batchSize": {"global": BATCH}, "epochs": 2, "seed": 7} | training
        spec["training"] = {field: value for field, value in spec["training"].items() if value is not None}
        job = resolve(MPTrainingJob.parse({"metadata": {"name": name}, "spec": spec}), ClusterSettings())
        identity = WorkerIdentity(index=0, hosts=("localhost:0",), attempt=number, incarnation="a")
        environment = {"MPTRAINING_PROGRESS_SECONDS": "0"}
        preemption = preemption or Preemption(lambda: None)
        outcome = run(job, identity, str(tmp_path / folder), preemption, environment)
        return Run(outcome, tmp_path / folder, number)

    return attempt


def same(first: Run, second: Run, tolerance: float = 0.0) -> bool:
    return all(
        np.allclose(a, b, rtol=tolerance, atol=tolerance)
        for a, b in zip(first.weights(), second.weights(), strict=True)
    )


def test_a_run_from_records_to_result(train: RunJob) -> None:
    done = train(epochs=4, validate=True, sections={"checkpoint": {"maxToKeep": 2}})
    assert done.outcome == outcomes.SUCCEEDED
    assert (done.started.total_steps, done.started.steps_per_epoch, done.started.first_step) == (60, STEPS, 0)
    assert (done.started.train_examples, done.started.validation_examples) == (TRAIN, 70)
    assert done.started.cache == "Memory"
    assert done.saved == [15, 30, 45, 60]
    assert (done.finished.step, done.finished.model, done.finished.exit_code) == (60, "model", 0)
    assert done.finished.metrics.keys() == {"loss", "accuracy", "val_loss", "val_accuracy"}
    assert done.finished.metrics["val_accuracy"] > 0.6
    assert done.result.metrics == done.finished.metrics
    assert (done.result.step, done.result.reason, done.result.global_batch_size) == (60, "Succeeded", BATCH)
    assert len(list((done.folder / "checkpoints").glob("step-*"))) == 2


def test_two_runs_of_one_job_are_the_same_bit_for_bit(train: RunJob) -> None:
    assert same(train("one"), train("two"))
    assert not same(train("one"), train("three", seed=8))


def test_more_epochs_continue_where_the_last_run_ended(train: RunJob) -> None:
    undisturbed = train("whole", epochs=3, validate=True)
    train("parts", epochs=1)
    longer = train("parts", epochs=3, validate=True)
    assert longer.started.first_step == STEPS
    assert "Resumed" in longer.topics
    assert same(longer, undisturbed)
    assert longer.finished.metrics == undisturbed.finished.metrics


def test_a_resume_in_the_middle_of_an_epoch_is_exact(train: RunJob) -> None:
    """The means of the current epoch continue where they were, as do weights, slots and the order of the records."""
    undisturbed = train("whole", epochs=None, totalSteps=22)
    train("parts", epochs=None, totalSteps=7)
    rest = train("parts", epochs=None, totalSteps=22)
    assert same(rest, undisturbed)
    assert rest.finished.metrics == undisturbed.finished.metrics


def test_without_the_data_position_a_resume_would_be_another_training(train: RunJob) -> None:
    """Shows that the tests above detect it."""
    undisturbed = train("whole", epochs=None, totalSteps=22)
    first = train("parts", epochs=None, totalSteps=7)
    state = first.folder / "checkpoints" / "step-0000000007" / "state.json"
    assert json.loads(state.read_text())["examples"] == 7 * BATCH
    state.write_text(json.dumps(json.loads(state.read_text()) | {"examples": 0}))
    assert not same(train("parts", epochs=None, totalSteps=22), undisturbed, 1e-3)


def test_a_finished_run_trains_nothing_more_and_reports_it(train: RunJob) -> None:
    first, again = train(validate=True), train(validate=True)
    assert again.outcome == outcomes.SUCCEEDED
    assert again.started.first_step == again.started.total_steps == 2 * STEPS
    assert again.finished.message == "already trained to the last step"
    assert (again.all(events.Progress), again.saved) == ([], [])
    assert same(first, again)
    # An attempt may have ended between its last checkpoint and its result.
    assert again.finished.metrics == pytest.approx(first.finished.metrics)


def test_fewer_epochs_than_done_keep_what_there_is(train: RunJob) -> None:
    first, fewer = train(epochs=2), train(epochs=1)
    assert (fewer.finished.step, fewer.result.step) == (2 * STEPS, 2 * STEPS)
    assert same(first, fewer)


@pytest.mark.parametrize(("size", "last"), [(40, STEPS + 2 * 7), (10, STEPS + 2 * 30)])
def test_another_batch_size_trains_the_passes_that_are_left(train: RunJob, size: int, last: int) -> None:
    """Steps count updates, so their number continues; epochs count passes over the data."""
    train(epochs=1)
    other = train(epochs=3, batchSize={"global": size}, validate=True)
    assert (other.started.first_step, other.started.total_steps, other.finished.step) == (STEPS, last, last)
    assert [event.epoch for event in other.all(events.Progress)][-1] == 3
    assert other.state()["epoch"] == 2
    assert "BatchSizeChanged" in other.topics
    validated = [event.step for event in other.all(events.Progress) if "val_loss" in event.metrics]
    assert set(validated) >= {STEPS + (last - STEPS) // 2, last}, "at the end of every pass"
    # A later resume finds the same end.
    assert train(epochs=3, batchSize={"global": size}).finished.message == "already trained to the last step"


def test_another_batch_size_in_mid_epoch_skips_no_record(train: RunJob) -> None:
    train(epochs=None, totalSteps=5)
    other = train(epochs=1, batchSize={"global": 50})
    assert other.started.total_steps == 5 + (TRAIN - 5 * BATCH) // 50


def test_another_learning_rate_takes_effect(train: RunJob) -> None:
    assert "ChangedSinceCheckpoint" not in train(epochs=1).topics
    first = train("run", epochs=2, optimizer={"className": "Adam", "config": {"learning_rate": 0.0}})
    before = train("other", epochs=1)
    assert same(first, before), "at a rate of zero nothing moves"


def test_a_pass_continues_with_the_seed_of_its_start(train: RunJob) -> None:
    undisturbed = train("whole", epochs=None, totalSteps=12)
    train("parts", epochs=None, totalSteps=7)
    rest = train("parts", epochs=None, totalSteps=12, seed=99)
    assert same(rest, undisturbed)
    assert rest.result.notices == undisturbed.result.notices + tuple(
        notice for notice in rest.result.notices if notice.startswith("ChangedSinceCheckpoint: since the checkpoint")
    )
    assert "training.seed: 7, now 99" in rest.result.notices[-1]


def test_mixed_precision_resumes_from_a_float32_checkpoint(train: RunJob) -> None:
    train(epochs=1)
    mixed = train(epochs=2, sections={"precision": {"policy": "mixed_float16"}})
    assert mixed.outcome == outcomes.SUCCEEDED
    assert mixed.started.first_step == STEPS
    assert mixed.state()["lossScale"] > 0
    (said,) = [notice.message for notice in mixed.all(events.Notice) if notice.topic == "ChangedSinceCheckpoint"]
    assert said.startswith(f"since the checkpoint of step {STEPS} these changed: precision.policy: float32, now mixed")
    assert "not bit for bit" in said
    assert mixed.finished.metrics["loss"] < train("float", epochs=1).finished.metrics["loss"]
    back = train(epochs=3)
    assert (back.outcome, back.started.first_step) == (outcomes.SUCCEEDED, 2 * STEPS)


def test_changed_data_is_refused_or_accepted(train: RunJob, data: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.tfrecord"
    sections = {"data": {"train": [str(copy)], "features": FEATURES, "label": "label"}}
    copy.write_bytes(next(data.glob("train-*.tfrecord")).read_bytes())
    train(sections=sections)
    copy.write_bytes(next(data.glob("longer-*.tfrecord")).read_bytes())
    refused = train(sections=sections, epochs=3)
    assert refused.outcome == outcomes.RESUME_REFUSED
    assert "spec.data.train: the records changed since the checkpoint of step 30" in refused.finished.message
    sections["data"]["onChange"] = "Accept"
    accepted = train(sections=sections, epochs=3)
    assert (accepted.outcome, accepted.started.first_step) == (outcomes.SUCCEEDED, 2 * STEPS)


FEATURES = [{"name": "x", "dtype": "float32", "shape": [8]}, {"name": "label", "dtype": "int64"}]


def test_resume_may_be_required_or_forbidden(train: RunJob) -> None:
    nothing = train("none", resume="Required")
    assert nothing.outcome == outcomes.RESUME_REFUSED
    assert "no checkpoint" in nothing.finished.message
    first = train()
    assert train(resume="Required", epochs=3).started.first_step == 2 * STEPS
    again = train(resume="Never")
    assert again.started.first_step == 0
    assert "CheckpointsDeleted" in again.topics
    assert same(first, again)


def test_the_last_batch_is_dropped_or_padded(train: RunJob) -> None:
    dropped = train("drop", batchSize={"global": 64}, epochs=1)
    padded = train("pad", batchSize={"global": 64}, epochs=1, sections={"data": {"remainder": "PadAndMask"}})
    assert (dropped.finished.step, padded.finished.step) == (4, 5)
    whole = train("all", batchSize={"global": 512}, epochs=1, sections={"data": {"remainder": "PadAndMask"}})
    exact = train("exact", batchSize={"global": 300}, epochs=1)
    assert (whole.finished.step, exact.finished.step) == (1, 1)
    assert same(whole, exact, 1e-5), "masked examples count for nothing"


def test_validation_comes_as_often_as_asked(train: RunJob) -> None:
    done = train(validationEverySteps=4, epochs=1, validate=True)
    steps = [event.step for event in done.all(events.Progress) if "val_loss" in event.metrics]
    assert [step for step in steps if step % 4 == 0 or step == STEPS] == steps
    assert {4, 8, 12, 15} <= set(steps)


def test_on_sigterm_during_validation_it_saves_and_validates_in_the_next_attempt(
    train: RunJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    validate, validation_started = Evaluation.run, threading.Event()

    class PreemptedInValidation(Preemption):
        def stop_requested(self) -> bool:
            return validation_started.is_set()

    def validate_after_start(self: Evaluation, *given: Any, **named: Any) -> Any:
        validation_started.set()
        return validate(self, *given, **named)

    monkeypatch.setattr(Evaluation, "run", validate_after_start)
    taken = train(validationEverySteps=4, epochs=1, validate=True, preemption=PreemptedInValidation(lambda: None))
    assert (taken.outcome, taken.saved) == (outcomes.PREEMPTED, [4])
    assert not any("val_loss" in event.metrics for event in taken.all(events.Progress))
    monkeypatch.undo()
    rest = train(validationEverySteps=4, epochs=1, validate=True)
    undisturbed = train("undisturbed", validationEverySteps=4, epochs=1, validate=True)
    assert next(event.step for event in rest.all(events.Progress) if "val_loss" in event.metrics) == 4
    assert rest.finished.metrics == undisturbed.finished.metrics
    assert same(rest, undisturbed)


def test_steps_may_be_counted_instead_of_epochs(train: RunJob) -> None:
    done = train(epochs=None, totalSteps=20, stepsPerEpoch=8)
    assert (done.started.total_steps, done.started.steps_per_epoch, done.saved) == (20, 8, [8, 16, 20])
    assert train("epochs", epochs=2, stepsPerEpoch=8).finished.step == 16


def test_accumulated_batches_are_one_larger_batch(train: RunJob) -> None:
    parts = train("parts", batchSize={"global": 15}, gradientAccumulationSteps=4, epochs=1)
    whole = train("whole", batchSize={"global": 60}, epochs=1)
    assert (parts.finished.step, whole.finished.step) == (5, 5)
    assert same(parts, whole, 1e-4)


@pytest.mark.parametrize("steps", [1, 6])
def test_steps_that_are_fused_are_the_same_steps(train: RunJob, steps: int) -> None:
    assert same(train("fused", stepsPerExecution=steps), train("measured"))


@pytest.fixture
def damaged(data: Path, tmp_path: Path) -> str:
    """A copy of the records, with a byte of the second's and the third's payload flipped."""
    content = bytearray(next(data.glob("train-*.tfrecord")).read_bytes())
    second = 16 + int.from_bytes(content[:8], "little")
    third = second + 16 + int.from_bytes(content[second : second + 8], "little")
    content[second + 20] ^= 0xFF
    content[third + 20] ^= 0xFF
    copy = tmp_path / "copy.tfrecord"
    copy.write_bytes(content)
    return str(copy)


def test_records_that_were_skipped_are_counted_and_named(train: RunJob, damaged: str) -> None:
    skip = {"action": "Skip", "maxSkipped": 2}
    section = {"train": [damaged], "features": FEATURES, "label": "label", "badRecords": skip}
    done = train(sections={"data": section}, epochs=1)
    assert done.outcome == outcomes.SUCCEEDED
    assert "BadRecordsSkipped" in done.topics
    (manifest,) = (done.folder / "quarantine").iterdir()
    named = json.loads(manifest.read_text())["records"]
    assert sorted((bad["uri"], bad["record"]) for bad in named) == [(damaged, 1), (damaged, 2)]
    assert json.loads((done.folder / "result.json").read_text())["skippedRecords"] == 2


def test_too_many_are_an_error(train: RunJob, damaged: str) -> None:
    skip = {"action": "Skip", "maxSkipped": 1}
    section = {"train": [damaged], "features": FEATURES, "label": "label", "badRecords": skip}
    done = train(sections={"data": section}, epochs=1)
    assert done.outcome == outcomes.INVALID_DATA
    assert "maxSkipped = 1" in done.finished.message


COMPILED = """
import keras

def build(units):
    model = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dropout(0.1), keras.layers.Dense(units, "relu"),
                              keras.layers.Dense(3)])
    model.compile(keras.optimizers.SGD(0.5, momentum=0.9), keras.losses.SparseCategoricalCrossentropy(from_logits=True),
                  metrics=["accuracy"])
    return model
"""


def test_a_function_program_keeps_what_it_compiled_with(
    train: RunJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With dropout, whose random state is a part of the checkpoint, a resume is exact as well."""
    (tmp_path / "compiled_model.py").write_text(COMPILED)
    monkeypatch.syspath_prepend(tmp_path)
    program = {"program": {"function": {"entryPoint": "compiled_model:build", "arguments": {"units": 16}}}}
    whole = train("whole", sections=program, epochs=3, validate=True)
    assert whole.outcome == outcomes.SUCCEEDED
    assert whole.finished.metrics["val_accuracy"] > 0.55
    train("parts", sections=program, epochs=None, totalSteps=20)
    assert same(train("parts", sections=program, epochs=3), whole)


CALLBACKS = """
import keras

def build():
    model = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dropout(0.1), keras.layers.Dense(16, "relu"),
                              keras.layers.BatchNormalization(), keras.layers.Dense(3)])
    model.compile(keras.optimizers.SGD(0.5, momentum=0.9), keras.losses.SparseCategoricalCrossentropy(from_logits=True),
                  metrics=["accuracy"])
    callbacks = [keras.callbacks.ReduceLROnPlateau(patience=1, min_delta=0.05),
                 keras.callbacks.EarlyStopping(patience=6, min_delta=0.05, restore_best_weights=True)]
    return {"model": model, "callbacks": callbacks}
"""
DECAY = {
    "class_name": "CosineDecay",
    "config": {"initial_learning_rate": 0.3, "decay_steps": 6 * STEPS, "warmup_target": 0.5, "warmup_steps": 2 * STEPS},
}


@pytest.mark.parametrize(
    "training",
    [
        {
            "optimizer": {"className": "SGD", "config": {"learning_rate": DECAY, "momentum": 0.9}},
            "learningRateScaling": {"rule": "None", "warmupSteps": 20},
        },
        {"optimizer": {"className": "Adam", "config": {"learning_rate": 0.01, "use_ema": True}}},
        {"sections": {"program": {"function": {"entryPoint": "with_callbacks:build"}}}},
    ],
    ids=["schedule-and-warmup", "moving-average", "callbacks"],
)
def test_the_rungs_of_a_trial_are_one_longer_training(
    train: RunJob, training: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sweep's job of each rung has its own name and more epochs, in the same run folder."""
    (tmp_path / "with_callbacks.py").write_text(CALLBACKS)
    monkeypatch.syspath_prepend(tmp_path)
    whole = train("whole", epochs=9, validate=True, **training)
    parts = [
        train("parts", name=name, epochs=epochs, validate=True, **training)
        for name, epochs in (("digits-4", 1), ("digits-4-r1", 3), ("digits-4-r2-x1", 9))
    ]
    assert [each.outcome for each in parts] == [outcomes.SUCCEEDED] * 3
    assert [each.started.first_step for each in parts] == [0, STEPS, 3 * STEPS]
    assert same(parts[-1], whole)
    assert parts[-1].finished.metrics == whole.finished.metrics


def test_a_profile_holds_the_steps_it_was_asked_for(train: RunJob) -> None:
    """TensorFlow's own profiler; its file names the steps that were marked."""
    done = train(sections={"profile": {"firstStep": 6, "lastStep": 9}}, stepsPerExecution=1)
    assert done.outcome == outcomes.SUCCEEDED
    (recorded,) = (done.folder / "tensorboard").rglob("*.xplane.pb")
    assert recorded.relative_to(done.folder / "tensorboard").as_posix() == (
        "plugins/profile/1-steps-6-9/worker-0.xplane.pb"
    )
    (notice,) = [event for event in done.all(events.Notice) if event.topic == "Profiled"]
    assert str(recorded) in notice.message
    space = xplane_pb2.XSpace.FromString(recorded.read_bytes())
    marks = [
        event
        for plane in space.planes
        for line in plane.lines
        for event in line.events
        if plane.event_metadata[event.metadata_id].name.startswith("train")
    ]
    assert len(marks) == 4
    assert sum(len(line.events) for plane in space.planes for line in plane.lines) > 100, "what the steps are made of"
