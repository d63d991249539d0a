"""Trainings with numbers that are not finite, and trainings that measure their policy: from records to result."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from mptraining_api import events, outcomes
from mptraining_api.launch import WorkerIdentity
from mptraining_api.resolve.resolve import ClusterSettings, resolve
from mptraining_api.run_folder import Result
from mptraining_api.spec import MPTrainingJob
from mptraining_records.convert.convert import convert
from mptraining_trainer import train
from mptraining_trainer.distribution.preemption import Preemption
from mptraining_trainer.run import run
from mptraining_trainer.training import policy_trials

BATCH, STEPS = 20, 15
# In index order: step 8 has example 150.
POISONED = 150

PROGRAM = """
import keras

def build(kind="plain", rate=0.05):
    layers = keras.layers
    model = {
        "plain": [layers.Dense(8, "relu", name="first"), layers.BatchNormalization(), layers.Dropout(0.2)],
        "overflow": [layers.Activation(keras.ops.exp, name="huge"), layers.Rescaling(0.01)],
        "root": [
            layers.Dense(8, use_bias=False, name="first"),
            layers.Activation(lambda x: keras.ops.sqrt(keras.ops.abs(x)), name="root"),
        ],
        "normalized": [layers.BatchNormalization(name="norm")],
        "large": [layers.Rescaling(1e3, name="large"), layers.ReLU(), layers.Rescaling(1e-6)],
    }[kind]
    return {
        "model": keras.Sequential([layers.Input((8,)), *model, layers.Dense(3, name="head", dtype="float32")]),
        "optimizer": keras.optimizers.SGD(rate, momentum=0.9),
    }

def logarithm(labels, outputs):
    return keras.ops.log(keras.ops.sum(keras.ops.abs(outputs), axis=-1))

def build_with_loss():
    layers = keras.layers
    head = layers.Dense(3, use_bias=False, name="head")
    return {"model": keras.Sequential([layers.Input((8,)), head]), "loss": logarithm,
            "optimizer": keras.optimizers.SGD(0.001)}

def steep(labels, outputs):
    return 1e4 * keras.losses.sparse_categorical_crossentropy(labels, outputs, from_logits=True)

def build_too_fast():
    return build(rate=3e38) | {"loss": steep}
"""


class Attempt:
    def __init__(self, folder: Path, number: int, outcome: outcomes.Outcome) -> None:
        (file,) = (folder / "events").glob(f"{number}-*.jsonl")
        self.folder = folder
        self.outcome = outcome
        self.events = [event for line in file.read_text().splitlines() if (event := events.parse(line))]

    def all(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def result(self) -> Result:
        return Result.read((self.folder / "result.json").read_bytes())

    @property
    def message(self) -> str:
        return str(self.all(events.Finished)[0].message)

    @property
    def ways_back(self) -> list[tuple[int, int, str]]:
        return [(one.from_step, one.to_step, one.precision) for one in self.all(events.Recovered)]

    @property
    def topics(self) -> set[str]:
        return {event.topic for event in self.all(events.Notice)}

    def weights(self) -> list[np.ndarray]:
        with np.load(self.folder / "model" / "weights.npz") as stored:
            return [stored[name] for name in sorted(stored)]


Start = Callable[..., Attempt]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    """Runs a job over 300 examples in index order; `poisoned` replaces some of them by a value."""
    (tmp_path / "poisoned_model.py").write_text(PROGRAM)
    monkeypatch.syspath_prepend(tmp_path)
    attempts: dict[str, int] = {}

    def begin(
        name: str = "run",
        *,
        poisoned: dict[int, float] | None = None,
        without: slice | None = None,
        kind: str = "plain",
        entry: str | None = "build",
        keras: str = "Keras3",
        policy: str = "float32",
        every: int = 3,
        replicas: int = 1,
        scale: dict[str, Any] | None = None,
        **training: Any,
    ) -> Attempt:
        number = attempts[name] = attempts.get(name, 0) + 1
        x = np.random.default_rng(3).normal(size=(BATCH * STEPS, 8)).astype(np.float32)
        label = x[:, :3].argmax(axis=1)
        for place, value in (poisoned or {}).items():
            x[place] = value
        if without is not None:
            x, label = np.delete(x, without, axis=0), np.delete(label, without)
        np.savez(tmp_path / f"{name}.npz", x=x, label=label)
        if number == 1:
            convert(str(tmp_path / f"{name}.npz"), str(tmp_path / "records"), name=name, keep_order=True)
        spec: dict[str, Any] = {
            "keras": keras,
            "accelerator": {"type": "cpu", "countPerNode": replicas},
            "strategy": "None" if replicas == 1 else "Auto",
            "program": {"function": {"entryPoint": f"poisoned_model:{entry}"}},
            "data": {"train": [f"{tmp_path}/records/{name}-*.tfrecord"], "shuffle": {"bufferSize": 0}},
            "training": {"batchSize": {"global": BATCH}, "epochs": 1, "seed": 7} | training,
            "checkpoint": {"everySteps": every},
            "precision": {"policy": policy} | ({"lossScale": scale} if scale else {}),
        }
        if entry == "build":
            spec["program"]["function"]["arguments"] = {"kind": kind}
        if entry is None:
            spec["program"] = {"application": {"name": "mlp", "classes": 3}}
        spec["training"] = {key: value for key, value in spec["training"].items() if value is not None}
        job = resolve(MPTrainingJob.parse({"metadata": {"name": "numbers"}, "spec": spec}), ClusterSettings())
        identity = WorkerIdentity(index=0, hosts=("localhost:0",), attempt=number, incarnation="a")
        if replicas > 1:
            monkeypatch.setattr(tf.config, "set_logical_device_configuration", lambda *_: None)
        folder = tmp_path / "folders" / name
        outcome = run(job, identity, str(folder), Preemption(lambda: None), {"MPTRAINING_PROGRESS_SECONDS": "0"})
        return Attempt(folder, number, outcome)

    return begin


def same(first: Attempt, second: Attempt, *, within: float = 0.0) -> bool:
    pairs = zip(first.weights(), second.weights(), strict=True)
    return all(np.allclose(a, b, rtol=within, atol=within) for a, b in pairs)


@pytest.mark.parametrize("keras", ["Keras3", "Legacy"])
def test_a_batch_that_causes_nan_is_skipped_and_nothing_else_changes(start: Start, keras: str) -> None:
    """The weights are, bit for bit, those of a training whose data never had that batch."""
    more: dict[str, Any] = {"keras": keras, "replicas": 2, "entry": "build" if keras == "Keras3" else None}
    done = start("poisoned", poisoned={POISONED: np.nan}, **more)
    assert done.outcome == outcomes.SUCCEEDED, done.message
    assert done.ways_back == [(8, 6, "float32")]
    never = start("never", without=slice(140, 160), **more)
    assert same(done, never)
    assert (done.result.step, done.result.skipped_steps, done.result.recoveries) == (STEPS, 1, 1)
    assert [one.to_step for one in done.result.recovered] == [6]
    assert never.result.recoveries == 0
    last = done.all(events.Progress)[-1]
    assert (last.precision, last.recoveries, last.skipped_steps) == ("float32", 1, 1)
    assert last.gradient_norm > 0
    assert done.result.gradient_norm == last.gradient_norm
    assert "RecordExcluded" in done.topics
    assert len(done.all(events.Started)) == 1


def test_without_a_checkpoint_training_starts_again(start: Start) -> None:
    done = start("poisoned", poisoned={25: np.inf}, every=100)
    assert done.outcome == outcomes.SUCCEEDED, done.message
    assert done.ways_back == [(2, 0, "float32")]
    # One replica drops rows, so that its batches no longer have a fixed size: TensorFlow divides in another way.
    assert same(done, start("never", without=slice(20, 40), every=100), within=1e-6)


def test_findings_survive_a_restart(start: Start) -> None:
    """The next attempt continues to check every update, as the undisturbed run does."""
    poisoned = {POISONED: np.nan, 250: np.nan}
    whole = start("whole", poisoned=poisoned)
    start("parts", poisoned=poisoned, epochs=None, totalSteps=10)
    rest = start("parts", poisoned=poisoned)
    assert rest.ways_back == []
    assert (rest.result.recoveries, rest.result.skipped_steps) == (1, 2)
    assert same(rest, whole)


# Half of a batch: skipping a few records does not help.
FIRST, SECOND = dict.fromkeys(range(45, 55), np.nan), dict.fromkeys(range(245, 255), np.nan)


def test_when_it_happens_again_the_next_safer_policy_continues(start: Start) -> None:
    done = start(policy="mixed_bfloat16", poisoned=FIRST | SECOND)
    assert done.outcome == outcomes.SUCCEEDED, done.message
    assert done.ways_back == [(3, 0, "mixed_bfloat16"), (13, 12, "float32")]
    assert done.result.precision == "float32"
    assert done.result.skipped_steps == 2
    assert "CauseNotFound" in done.topics
    again = start(policy="mixed_bfloat16", poisoned=FIRST | SECOND, epochs=2)
    assert again.all(events.Started)[0].precision == "float32", "the next attempt knows"


def test_precision_and_weights_come_from_the_same_checkpoint(start: Start) -> None:
    """The newest one is damaged, and has the policy of a recovery that the older one knows nothing of."""
    done = start(policy="mixed_bfloat16", poisoned=FIRST | SECOND)
    assert [way[1:] for way in done.ways_back] == [(0, "mixed_bfloat16"), (12, "float32")]
    (done.folder / "checkpoints" / f"step-{STEPS:010d}" / "model.safetensors").write_bytes(b"damaged")
    again = start(policy="mixed_bfloat16", poisoned=FIRST | SECOND)
    (started,) = again.all(events.Started)
    assert (started.first_step, started.precision) == (12, "mixed_bfloat16")
    assert again.ways_back == [(13, 12, "float32")]
    assert again.result.recoveries == 2
    assert same(done, again)


def test_float16_that_overflows_for_good_is_replaced_by_a_wider_policy(start: Start) -> None:
    # 1000 times 1000 exceeds float16; the first eight examples, which are inspected before the first step, are small.
    scale, large = {"mode": "Dynamic", "value": 2}, dict.fromkeys(range(8, 300), 1000.0)
    done = start(policy="mixed_float16", kind="large", scale=scale, epochs=8, every=1000, poisoned=large)
    assert done.outcome == outcomes.SUCCEEDED, done.message
    ((from_step, to_step, policy),) = done.ways_back
    assert to_step == 0
    assert policy in ("mixed_bfloat16", "float32")
    assert from_step >= 100
    assert "steps in a row with the loss scale at its floor" in done.all(events.Recovered)[0].message


def test_when_nothing_helps_the_run_has_diverged(start: Start) -> None:
    poisoned = [place for place in range(8, 300) if place % BATCH >= BATCH // 2]
    done = start(poisoned=dict.fromkeys(poisoned, np.nan), epochs=10)
    assert done.outcome == outcomes.DIVERGED
    assert len(done.ways_back) == 1
    assert "steps in a row" in done.message
    assert "it began with the input 'x'" in done.message


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        ({"poisoned": {POISONED: np.nan}}, "the input 'x' (record 150 of "),
        ({"kind": "overflow", "poisoned": {POISONED: 100.0}}, "the output of layer 'huge' (float32)"),
        ({"kind": "root", "poisoned": {POISONED: 0.0}}, "the gradient 'sequential/first/kernel'"),
        ({"entry": "build_with_loss", "poisoned": {POISONED: 0.0}}, "the loss, from outputs that are finite"),
        ({"kind": "normalized", "poisoned": {POISONED: 3e38}}, "moving_variance' (record 150 of "),
        ({"policy": "mixed_float16", "poisoned": {POISONED: np.nan}}, "the input 'x' (record 150 of "),
    ],
    ids=["input", "activation", "gradient", "loss", "moving statistic", "float16"],
)
def test_fail_names_step_layer_and_tensor(start: Start, job: dict[str, Any], expected: str) -> None:
    failed = start(onNonFinite="Fail", **job)
    assert failed.outcome == outcomes.DIVERGED
    assert expected in failed.message
    assert failed.message.startswith("step 8: ")
    assert "among examples 140 to 159 of pass 1)" in failed.message
    assert failed.ways_back == []
    assert ("LookingForTheCause" in failed.topics) is ("policy" not in job), "float16 looks at every update anyway"


def test_fail_names_the_weight_that_an_update_made_infinite(start: Start) -> None:
    failed = start(onNonFinite="Fail", entry="build_too_fast")
    assert failed.outcome == outcomes.DIVERGED
    assert "it began with the weight '" in failed.message


def test_measure_begins_as_if_its_choice_had_been_written(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train, "native_bfloat16", lambda: True)
    monkeypatch.setattr(policy_trials, "choose_policy", lambda trials: "mixed_bfloat16")
    measured = start("measured", policy="Measure", epochs=None, totalSteps=10)
    assert measured.outcome == outcomes.SUCCEEDED, measured.message
    trials = measured.all(events.Started)[0].measured
    assert [trial.policy for trial in trials] == ["float32", "mixed_bfloat16"]
    assert all(trial.agrees and trial.step_seconds > 0 for trial in trials)
    assert measured.all(events.Started)[0].precision == "mixed_bfloat16"
    assert (measured.result.precision, measured.result.measured) == ("mixed_bfloat16", trials)
    assert "Measured" in measured.topics
    assert same(measured, start("told", policy="mixed_bfloat16", epochs=None, totalSteps=10))

    monkeypatch.setattr(
        policy_trials, "choose_policy", lambda trials: pytest.fail("an attempt that resumes measures nothing")
    )
    rest = start("measured", policy="Measure")
    assert (rest.all(events.Started)[0].precision, "Measured" in rest.topics) == ("mixed_bfloat16", False)
    assert rest.result.measured == trials


def test_a_cpu_without_native_bfloat16_computes_in_float32(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train, "native_bfloat16", lambda: False)
    measured = start(policy="Measure")
    assert measured.outcome == outcomes.SUCCEEDED, measured.message
    assert (measured.result.precision, measured.result.measured) == ("float32", ())


@pytest.mark.parametrize(
    ("before", "after"),
    [("mixed_float16", "mixed_bfloat16"), ("mixed_float16", "float32"), ("mixed_bfloat16", "mixed_float16")],
)
def test_a_run_resumes_under_the_policy_of_another_machine(start: Start, before: str, after: str) -> None:
    """At the same record, and as near to a run under one policy as the policies are.

    The program has no dropout, whose masks are others in another dtype.
    """
    first = start("moved", kind="normalized", policy=before, epochs=None, totalSteps=6)
    assert first.outcome == outcomes.SUCCEEDED, first.message
    saved = first.weights()
    rest = start("moved", kind="normalized", policy=after)
    (started,) = rest.all(events.Started)
    assert (started.first_step, started.precision, rest.result.step, rest.result.recoveries) == (6, after, STEPS, 0)
    assert (rest.result.loss_scale is not None) == (after == "mixed_float16")
    whole = start("whole", kind="normalized", policy=after)
    # Measured: 6e-5 apart at most with float32 at the end, else 4e-4.
    assert same(rest, whole, within=0.002)
    assert not any(np.array_equal(a, b) for a, b in zip(saved, rest.weights(), strict=True) if a.ndim > 1)
