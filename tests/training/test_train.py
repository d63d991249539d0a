"""The effects of a job's settings, from records to result, in this process and on one device.

The processes themselves (signals, workers, exit codes) are in tests/training/processes.
"""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tensorflow.tsl.profiler.protobuf import xplane_pb2

from mptraining_api import events, outcomes
from mptraining_records.reading.order import VERSION
from mptraining_trainer.devices.preemption import Preemption
from mptraining_trainer.step.evaluation import Evaluation
from tests.training import runs
from tests.training.runs import Run, same

TRAIN, BATCH = 300, 20
STEPS = TRAIN // BATCH


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """300 rows to train on, 70 to validate; `longer` are other ones."""
    folder = tmp_path_factory.mktemp("data")
    x, label = runs.numbers(TRAIN + 70)
    runs.write_rows(folder, "train", x[:TRAIN], label[:TRAIN])
    runs.write_rows(folder, "validation", x[TRAIN:], label[TRAIN:])
    runs.write_rows(folder, "longer", *runs.numbers(TRAIN + BATCH, seed=4))
    return folder


RunJob = Callable[..., Run]


def run_job(
    data: Path,
    folder: Path,
    *,
    name: str = "numbers",
    attempt: int = 1,
    sections: dict[str, Any] | None = None,
    validate: bool = False,
    preemption: Preemption | None = None,
    **training: Any,
) -> Run:
    """Run one attempt in this folder; sections of `training` may be given by name."""
    records = {"train": [f"{data}/train-*.tfrecord"]}
    if validate:
        records["validation"] = [f"{data}/validation-*.tfrecord"]
    spec = {"strategy": "None", "program": {"application": {"name": "mlp", "classes": 3}}} | (sections or {})
    spec["data"] = records | spec.get("data", {})
    spec["training"] = {"batchSize": {"global": BATCH}, "epochs": 2, "seed": 7} | training
    return runs.start(spec, folder, name=name, attempt=attempt, preemption=preemption)


@pytest.fixture
def train(data: Path, tmp_path: Path) -> RunJob:
    """Runs one attempt after the other in one folder; `after` is an earlier run, whose folder is copied first."""
    attempts: dict[str, int] = {}

    def next_attempt(folder: str = "run", *, after: Run | None = None, **job: Any) -> Run:
        if after is not None:
            shutil.copytree(after.folder, tmp_path / folder)
            attempts[folder] = 1
        attempts[folder] = attempts.get(folder, 0) + 1
        return run_job(data, tmp_path / folder, attempt=attempts[folder], **job)

    return next_attempt


@pytest.fixture(scope="module")
def whole(data: Path, tmp_path_factory: pytest.TempPathFactory) -> RunJob:
    """Returns the undisturbed run of a job, which trains once for all tests."""
    kept: dict[str, Run] = {}

    def trained(**job: Any) -> Run:
        key = json.dumps(job, sort_keys=True)
        if key not in kept:
            kept[key] = run_job(data, tmp_path_factory.mktemp("whole") / "run", **job)
        return kept[key]

    return trained


def saved(run: Run) -> list[int]:
    return [event.step for event in run.all(events.Saved)]


def test_a_run_from_records_to_result(train: RunJob) -> None:
    done = train(epochs=4, validate=True, sections={"checkpoint": {"maxToKeep": 2}})
    assert done.outcome == outcomes.SUCCEEDED
    assert (done.started.total_steps, done.started.steps_per_epoch, done.started.first_step) == (60, STEPS, 0)
    assert (done.started.train_examples, done.started.validation_examples) == (TRAIN, 70)
    assert done.started.cache == "Memory"
    assert saved(done) == [15, 30, 45, 60]
    assert (done.finished.step, done.finished.model, done.finished.exit_code) == (60, "model", 0)
    assert done.finished.metrics.keys() == {"loss", "accuracy", "val_loss", "val_accuracy"}
    assert done.finished.metrics["val_accuracy"] > 0.6
    assert done.result.metrics == done.finished.metrics
    assert (done.result.step, done.result.reason, done.result.global_batch_size) == (60, "Succeeded", BATCH)
    assert len(list(Path(done.folder, "checkpoints").glob("step-*"))) == 2


def test_two_runs_of_one_job_are_the_same_bit_for_bit(train: RunJob, whole: RunJob) -> None:
    assert same(train("again", stepsPerExecution=6), whole()), "however its steps are fused"
    assert not same(train("another", seed=8), whole())


def test_a_finished_run_trains_nothing_more_and_reports_it(train: RunJob, whole: RunJob) -> None:
    first = whole(epochs=3, validate=True)
    again = train(after=first, epochs=3, validate=True)
    assert again.outcome == outcomes.SUCCEEDED
    assert again.started.first_step == again.started.total_steps == 3 * STEPS
    assert again.finished.message == "already trained to the last step"
    assert (again.all(events.Progress), saved(again)) == ([], [])
    assert same(first, again)
    # An attempt may have ended between its last checkpoint and its result.
    assert again.finished.metrics == pytest.approx(first.finished.metrics)
    fewer = train(epochs=1)
    assert (fewer.finished.step, fewer.result.step) == (3 * STEPS, 3 * STEPS), "what there is stays"
    assert same(first, fewer)


@pytest.mark.parametrize(("size", "last"), [(40, STEPS + 2 * 7), (10, STEPS + 2 * 30)])
def test_another_batch_size_trains_the_passes_that_are_left(train: RunJob, whole: RunJob, size: int, last: int) -> None:
    """Steps count updates, so their number continues; epochs count passes over the data."""
    other = train(after=whole(epochs=1), epochs=3, batchSize={"global": size}, validate=True)
    assert (other.started.first_step, other.started.total_steps, other.finished.step) == (STEPS, last, last)
    assert [event.epoch for event in other.all(events.Progress)][-1] == 3
    assert other.state()["epoch"] == 2
    assert "BatchSizeChanged" in other.notices
    validated = [event.step for event in other.all(events.Progress) if "val_loss" in event.metrics]
    assert set(validated) >= {STEPS + (last - STEPS) // 2, last}, "at the end of every pass"
    # A later resume finds the same end.
    assert train(epochs=3, batchSize={"global": size}).finished.message == "already trained to the last step"


def test_another_batch_size_in_mid_epoch_skips_no_record(train: RunJob) -> None:
    train(epochs=None, totalSteps=5)
    other = train(epochs=1, batchSize={"global": 50})
    assert other.started.total_steps == 5 + (TRAIN - 5 * BATCH) // 50


def test_another_learning_rate_takes_effect(train: RunJob, whole: RunJob) -> None:
    before = whole(epochs=1)
    assert "ChangedSinceCheckpoint" not in before.notices
    after = train(after=before, optimizer={"className": "Adam", "config": {"learning_rate": 0.0}})
    assert same(after, before), "at a rate of zero nothing moves"


def test_a_pass_continues_with_the_seed_of_its_start(train: RunJob) -> None:
    undisturbed = train("undisturbed", epochs=None, totalSteps=12)
    train("parts", epochs=None, totalSteps=7)
    rest = train("parts", epochs=None, totalSteps=12, seed=99)
    assert same(rest, undisturbed)
    assert rest.result.notices == undisturbed.result.notices + tuple(
        notice for notice in rest.result.notices if notice.startswith("ChangedSinceCheckpoint: since the checkpoint")
    )
    assert "training.seed: 7, now 99" in rest.result.notices[-1]


def test_mixed_precision_resumes_from_a_float32_checkpoint(train: RunJob, whole: RunJob) -> None:
    mixed = train(after=whole(epochs=1), sections={"precision": {"policy": "mixed_float16"}})
    assert mixed.outcome == outcomes.SUCCEEDED
    assert mixed.started.first_step == STEPS
    assert mixed.state()["lossScale"] > 0
    said = mixed.notices["ChangedSinceCheckpoint"]
    assert said.startswith(f"since the checkpoint of step {STEPS} these changed: precision.policy: float32, now mixed")
    assert "not bit for bit" in said
    assert mixed.finished.metrics["loss"] < whole(epochs=1).finished.metrics["loss"]
    back = train(epochs=3)
    assert (back.outcome, back.started.first_step) == (outcomes.SUCCEEDED, 2 * STEPS)


def test_changed_data_is_refused_or_accepted(train: RunJob, data: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.tfrecord"
    sections: dict[str, Any] = {"data": {"train": [str(copy)], "features": FEATURES, "label": "label"}}
    copy.write_bytes(next(data.glob("train-*.tfrecord")).read_bytes())
    train(sections=sections)
    copy.write_bytes(next(data.glob("longer-*.tfrecord")).read_bytes())
    refused = train(sections=sections, epochs=3)
    assert refused.outcome == outcomes.RESUME_REFUSED
    assert "spec.data.train: the records changed since the checkpoint of step 30" in refused.finished.message
    sections["data"]["onChange"] = "Accept"
    accepted = train(sections=sections, epochs=3)
    assert (accepted.outcome, accepted.started.first_step) == (outcomes.SUCCEEDED, 2 * STEPS)


def test_a_checkpoint_of_another_order_of_records_is_refused(train: RunJob) -> None:
    first = train(epochs=1)
    [state] = Path(first.folder).glob("checkpoints/*/state.json")
    content = json.loads(state.read_text())
    assert content.pop("order") == VERSION
    state.write_text(json.dumps(content))
    refused = train(epochs=2)
    assert refused.outcome == outcomes.RESUME_REFUSED
    assert "the checkpoint of step 15 is of another version, which orders the records" in refused.finished.message
    assert train(resume="Never").outcome == outcomes.SUCCEEDED


FEATURES = [{"name": "x", "dtype": "float32", "shape": [8]}, {"name": "label", "dtype": "int64"}]


def test_resume_may_be_required_or_forbidden(train: RunJob, whole: RunJob) -> None:
    nothing = train("none", resume="Required")
    assert nothing.outcome == outcomes.RESUME_REFUSED
    assert "no checkpoint" in nothing.finished.message
    first = whole()
    assert train(after=first, resume="Required", epochs=3).started.first_step == 2 * STEPS
    again = train(resume="Never")
    assert again.started.first_step == 0
    assert "CheckpointsDeleted" in again.notices
    assert same(first, again)


def test_the_last_batch_is_dropped_or_padded(train: RunJob) -> None:
    dropped = train("drop", batchSize={"global": 64}, epochs=1)
    padded = train("pad", batchSize={"global": 64}, epochs=1, sections={"data": {"remainder": "PadAndMask"}})
    assert (dropped.finished.step, padded.finished.step) == (4, 5)
    whole = train("all", batchSize={"global": 512}, epochs=1, sections={"data": {"remainder": "PadAndMask"}})
    exact = train("exact", batchSize={"global": 300}, epochs=1)
    assert (whole.finished.step, exact.finished.step) == (1, 1)
    assert same(whole, exact, 1e-5), "masked examples count for nothing"


def test_validation_comes_as_often_as_asked(whole: RunJob) -> None:
    done = whole(validationEverySteps=4, epochs=1, validate=True)
    steps = [event.step for event in done.all(events.Progress) if "val_loss" in event.metrics]
    assert [step for step in steps if step % 4 == 0 or step == STEPS] == steps
    assert {4, 8, 12, 15} <= set(steps)


def test_on_sigterm_during_validation_it_saves_and_validates_in_the_next_attempt(
    train: RunJob, whole: RunJob, monkeypatch: pytest.MonkeyPatch
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
    assert (taken.outcome, saved(taken)) == (outcomes.PREEMPTED, [4])
    assert not any("val_loss" in event.metrics for event in taken.all(events.Progress))
    monkeypatch.undo()
    rest = train(validationEverySteps=4, epochs=1, validate=True)
    undisturbed = whole(validationEverySteps=4, epochs=1, validate=True)
    assert next(event.step for event in rest.all(events.Progress) if "val_loss" in event.metrics) == 4
    assert rest.finished.metrics == undisturbed.finished.metrics
    assert same(rest, undisturbed)


def test_steps_may_be_counted_instead_of_epochs(train: RunJob) -> None:
    done = train(epochs=None, totalSteps=20, stepsPerEpoch=8)
    assert (done.started.total_steps, done.started.steps_per_epoch, saved(done)[-1]) == (20, 8, 20)
    # On a busy machine the next save replaces one that has not begun.
    assert {*saved(done)} <= {8, 16, 20}
    assert train("epochs", epochs=2, stepsPerEpoch=8).finished.step == 16


def test_accumulated_batches_are_one_larger_batch(train: RunJob) -> None:
    parts = train("parts", batchSize={"global": 15}, gradientAccumulationSteps=4, epochs=1)
    whole = train("whole", batchSize={"global": 60}, epochs=1)
    assert (parts.finished.step, whole.finished.step) == (5, 5)
    assert same(parts, whole, 1e-4)


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
    assert "BadRecordsSkipped" in done.notices
    (manifest,) = Path(done.folder, "quarantine").iterdir()
    named = json.loads(manifest.read_text())["records"]
    assert sorted((bad["uri"], bad["record"]) for bad in named) == [(damaged, 1), (damaged, 2)]
    assert done.result.skipped_records == 2


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
    """A resume in the middle of an epoch is exact, with the random state of dropout."""
    (tmp_path / "compiled_model.py").write_text(COMPILED)
    monkeypatch.syspath_prepend(tmp_path)
    program = {"program": {"function": {"entryPoint": "compiled_model:build", "arguments": {"units": 16}}}}
    undisturbed = train("whole", sections=program, epochs=3, validate=True)
    assert undisturbed.outcome == outcomes.SUCCEEDED
    assert undisturbed.finished.metrics["val_accuracy"] > 0.55
    train("parts", sections=program, epochs=None, totalSteps=20)
    rest = train("parts", sections=program, epochs=3, validate=True)
    assert same(rest, undisturbed)
    assert rest.finished.metrics == undisturbed.finished.metrics


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
        {"sections": {"program": {"function": {"entryPoint": "with_callbacks:build"}}}},
        pytest.param(
            {
                "optimizer": {"className": "SGD", "config": {"learning_rate": DECAY, "momentum": 0.9}},
                "learningRateScaling": {"rule": "None", "warmupSteps": 20},
            },
            marks=pytest.mark.test_all,
        ),
        pytest.param(
            {"optimizer": {"className": "Adam", "config": {"learning_rate": 0.01, "use_ema": True}}},
            marks=pytest.mark.test_all,
        ),
    ],
    ids=["callbacks", "schedule-and-warmup", "moving-average"],
)
def test_the_rungs_of_a_trial_are_one_longer_training(
    train: RunJob, training: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sweep's job of each rung has its own name and more epochs, in the same run folder."""
    (tmp_path / "with_callbacks.py").write_text(CALLBACKS)
    monkeypatch.syspath_prepend(tmp_path)
    undisturbed = train("whole", epochs=9, validate=True, **training)
    rungs = [
        train("parts", name=name, epochs=epochs, validate=True, **training)
        for name, epochs in (("digits-4", 1), ("digits-4-r1", 3), ("digits-4-r2-x1", 9))
    ]
    assert [rung.outcome for rung in rungs] == [outcomes.SUCCEEDED] * 3
    assert [rung.started.first_step for rung in rungs] == [0, STEPS, 3 * STEPS]
    assert same(rungs[-1], undisturbed)
    assert rungs[-1].finished.metrics == undisturbed.finished.metrics


def test_a_profile_holds_the_steps_it_was_asked_for(train: RunJob) -> None:
    """TensorFlow's own profiler; its file names the steps that were marked."""
    done = train(sections={"profile": {"firstStep": 6, "lastStep": 9}}, stepsPerExecution=1)
    assert done.outcome == outcomes.SUCCEEDED
    (recorded,) = Path(done.folder, "tensorboard").rglob("*.xplane.pb")
    assert recorded.relative_to(Path(done.folder, "tensorboard")).as_posix() == (
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
