"""Trainings with numbers that are not finite, and trainings that measure their policy: from records to result.

Records 0 to 299 come in index order, 20 a step, so that record 150 is in step 8 of each pass.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from mptraining_api import events, outcomes
from mptraining_trainer import train
from mptraining_trainer.keras_backend import Generation, load
from mptraining_trainer.session import policy_trials
from tests.left_out import TEST_ALL, first_of
from tests.testbed.keras_generations import GENERATIONS
from tests.training import runs
from tests.training.runs import Run, same

BATCH, COUNT, BAD, SEED = 20, 300, 150, 7
STEPS = COUNT // BATCH

BAD_RECORDS: dict[str, dict[str, Any]] = {"Fail": {"action": "Fail"}, "Skip": {"action": "Skip", "maxSkipped": 2}}

PROGRAM = """
import {package} as keras

def build(kind="plain", rate=0.05):
    layers = keras.layers
    inner = {{
        "plain": lambda: [layers.Dense(8, "relu", name="first"), layers.BatchNormalization(), layers.Dropout(0.2)],
        "smooth": lambda: [layers.Dense(8, "tanh")],
        "overflow": lambda: [layers.Activation(keras.ops.exp, name="huge"), layers.Rescaling(0.01)],
        "root": lambda: [
            layers.Dense(8, use_bias=False, name="first"),
            layers.Activation(lambda x: keras.ops.sqrt(keras.ops.abs(x)), name="root"),
        ],
        "normalized": lambda: [layers.BatchNormalization(name="norm")],
        "large": lambda: [layers.Rescaling(1e3, name="large"), layers.ReLU(), layers.Rescaling(1e-6)],
    }}[kind]()
    return {{
        "model": keras.Sequential([layers.Input((8,)), *inner, layers.Dense(3, name="head", dtype="float32")]),
        "optimizer": keras.optimizers.SGD(rate, momentum=0.9),
        "loss": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    }}

def unchanged(inputs, labels):
    return inputs, labels

def logarithm(labels, outputs):
    return keras.ops.log(keras.ops.sum(keras.ops.abs(outputs), axis=-1))

def build_with_loss():
    layers = keras.layers
    head = layers.Dense(3, use_bias=False, name="head")
    return {{"model": keras.Sequential([layers.Input((8,)), head]), "loss": logarithm,
            "optimizer": keras.optimizers.SGD(0.001)}}

def steep(labels, outputs):
    return 1e4 * keras.losses.sparse_categorical_crossentropy(labels, outputs, from_logits=True)

def build_too_fast():
    return build(rate=3e38) | {{"loss": steep}}
"""

Start = Callable[..., Run]


def examples(poisoned: dict[int, float]) -> tuple[np.ndarray, np.ndarray]:
    x, label = runs.numbers(COUNT)
    for place, value in poisoned.items():
        x[place] = value
    return x, label


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    """Run one attempt after the other of the job `name`, in index order; `poisoned` are values of records, `without`
    records that the data never had. The job has a map, which may replace such values, unless it has `bad_records`.
    """
    for package in ("keras", "tf_keras"):
        (tmp_path / f"poisoned_{package}.py").write_text(PROGRAM.format(package=package))
    monkeypatch.syspath_prepend(tmp_path)
    attempts: dict[str, int] = {}

    def begin(
        name: str = "run",
        *,
        poisoned: dict[int, float] | None = None,
        without: slice | None = None,
        kind: str = "plain",
        entry: str = "build",
        keras: str = "Keras3",
        policy: str = "float32",
        every: int = 3,
        replicas: int = 1,
        scale: dict[str, Any] | None = None,
        cache: str = "Memory",
        bad_records: str | None = None,
        **training: Any,
    ) -> Run:
        number = attempts[name] = attempts.get(name, 0) + 1
        if number == 1:
            rows = examples(poisoned or {})
            x, label = rows if without is None else (np.delete(part, without, axis=0) for part in rows)
            runs.write_rows(tmp_path, name, x, label)
        module = f"poisoned_{'tf_keras' if keras == 'Legacy' else 'keras'}"
        arguments = {"arguments": {"kind": kind}} if entry == "build" else {}
        spec = {
            "keras": keras,
            "accelerator": {"type": "cpu", "countPerWorker": replicas},
            "strategy": "None" if replicas == 1 else "Auto",
            "program": {"function": {"entryPoint": f"{module}:{entry}", **arguments}},
            "data": {"train": [f"{tmp_path}/{name}-*.tfrecord"], "shuffle": {"bufferSize": 0}, "cache": cache}
            | ({"badRecords": BAD_RECORDS[bad_records]} if bad_records else {"preprocess": f"{module}:unchanged"}),
            "training": {"batchSize": {"global": BATCH}, "epochs": 1, "seed": SEED} | training,
            "checkpoint": {"everySteps": every},
            "precision": {"policy": policy} | ({"lossScale": scale} if scale else {}),
        }
        return runs.start(spec, tmp_path / "folders" / name, attempt=number)

    return begin


def quarantined(done: Run) -> set[int]:
    manifests = [json.loads(done.read(f"quarantine/{name}")) for name in done.names("quarantine")]
    return {bad["record"] for manifest in manifests for bad in manifest["records"]}


@pytest.mark.parametrize("keras", GENERATIONS)
def test_a_batch_that_causes_nan_is_skipped_and_nothing_else_changes(start: Start, keras: str) -> None:
    """The weights are, bit for bit, those of a training whose data never had that batch."""
    more: dict[str, Any] = {"keras": keras, "replicas": 2, "kind": "plain" if keras == "Keras3" else "smooth"}
    done = start("poisoned", poisoned={BAD: np.nan}, **more)
    assert done.outcome == outcomes.SUCCEEDED, done.message
    assert done.ways_back == [(8, 6, "float32")]
    never = start("never", without=slice(140, 160), **more)
    assert same(done, never)
    assert (done.result.step, done.result.skipped_steps, done.result.recoveries) == (STEPS, 1, 1)
    assert [recovery.to_step for recovery in done.result.recovered] == [6]
    assert never.result.recoveries == 0
    assert len(done.all(events.Started)) == 1
    last = done.all(events.Progress)[-1]
    assert (last.precision, last.recoveries, last.skipped_steps) == ("float32", 1, 1)
    assert last.gradient_norm > 0
    assert done.result.gradient_norm == last.gradient_norm
    # Where a fused ReLU turns NaN into 0, the loss is finite and the gradients are not; it depends on the CPU.
    assert re.match(
        r"step 8 is skipped: (gradients|loss or moving statistics) of replica 1 are "
        r"infinite or NaN \(examples 140 to 159 of pass 1: records 140, 141, 142, ",
        done.notices["StepSkipped"],
    )


@pytest.mark.parametrize("cache", ["Memory", "None"])
def test_a_record_that_holds_nan_is_a_bad_record(start: Start, cache: str) -> None:
    job: dict[str, Any] = {"poisoned": {BAD: np.nan, 37: np.inf}, "kind": "smooth", "cache": cache, "epochs": 2}
    failed = start("failed", **job, bad_records="Fail")
    assert failed.outcome == outcomes.INVALID_DATA
    assert "-00000-of-00001.tfrecord: record " in failed.message
    assert "feature 'x' cannot be decoded: a value that is infinite or NaN" in failed.message
    skipped = start("skipped", **job, bad_records="Skip")
    assert skipped.outcome == outcomes.SUCCEEDED, skipped.message
    assert quarantined(skipped) == {37, BAD}
    assert (skipped.result.skipped_steps, skipped.result.skipped_records) == (0, 2)


def plain(generation: Generation, policy: str, left_out: list[set[int]]) -> list[np.ndarray]:
    """Return the weights of Keras' own `fit` over the same batches, pass by pass without some records."""
    keras = load(generation)
    keras.clear_session()
    keras.set_policy(policy)
    keras.set_seed(SEED)
    space: dict[str, Any] = {}
    exec(PROGRAM.format(package="tf_keras" if keras.legacy else "keras"), space)
    parts = space["build"](kind="smooth")
    x, label = examples({})

    def batches() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for absent in left_out:
            for first in range(0, COUNT, BATCH):
                if rows := [row for row in range(first, first + BATCH) if row not in absent]:
                    yield x[rows], label[rows]

    signature = (tf.TensorSpec([None, 8], tf.float32), tf.TensorSpec([None], tf.int64))
    data = tf.data.Dataset.from_generator(batches, output_signature=signature)
    parts["model"].compile(optimizer=parts["optimizer"], loss=parts["loss"])
    parts["model"].fit(data, shuffle=False, verbose=0, steps_per_epoch=len(list(batches())))
    weights: list[np.ndarray] = parts["model"].get_weights()
    keras.set_policy("float32")
    return weights


@pytest.mark.parametrize(
    ("keras", "replicas", "policy"),
    [
        ("Keras3", 2, "float32"),
        *first_of(
            ("Keras3", 1, "mixed_float16"),
            ("Keras3", 1, "float32"),
            ("Keras3", 2, "mixed_float16"),
            ("Legacy", 2, "float32"),
            ("Legacy", 1, "mixed_float16"),
        ),
    ],
)
def test_a_batch_that_causes_nan_costs_one_step_of_each_pass(
    start: Start, keras: Generation, replicas: int, policy: str
) -> None:
    """As plain `fit` without that batch."""
    done = start(poisoned={BAD: np.nan}, kind="smooth", policy=policy, replicas=replicas, keras=keras, epochs=3)
    assert done.outcome == outcomes.SUCCEEDED
    assert (done.result.step, done.result.skipped_steps, done.result.skipped_records) == (3 * STEPS, 3, 0)
    expected = plain(keras, policy, [set(range(140, 160))] * 3)
    differences = [float(np.abs(a - b).max()) for a, b in zip(done.weights(), expected, strict=True)]
    # float16 rounds activations to 5e-4; sums over replicas are added in another order.
    assert max(differences) < (3e-3 if policy == "mixed_float16" else 2e-6)
    if policy == "mixed_float16":
        assert done.all(events.Progress)[-1].loss_scale == 32768, "the forward pass is not scaled"


@pytest.mark.parametrize("replicas", first_of(2, 1))
def test_a_huge_record_that_only_moving_statistics_show_is_skipped(start: Start, replicas: int) -> None:
    """Loss and gradients stay finite, since (x - mean) / sqrt(infinity) is 0."""
    done = start(poisoned={BAD: 3e38}, kind="normalized", replicas=replicas, epochs=2)
    assert done.outcome == outcomes.SUCCEEDED
    assert (done.result.skipped_steps, done.result.recoveries) == (2, 1)
    assert all(np.isfinite(array).all() for array in done.weights())


def test_streamed_records_and_fused_steps_come_to_the_same(start: Start) -> None:
    job: dict[str, Any] = {"kind": "smooth", "policy": "mixed_float16", "epochs": 2}
    job["poisoned"] = {BAD: np.nan, 151: np.inf, 37: np.nan}
    whole = start("whole", stepsPerExecution=1, **job)
    assert whole.result.skipped_steps == 4
    assert same(start("streamed", cache="None", stepsPerExecution=5, **job), whole)


def test_a_restart_changes_nothing(start: Start) -> None:
    poisoned = {BAD: np.nan, 250: np.nan}
    whole = start("whole", poisoned=poisoned)
    start("parts", poisoned=poisoned, epochs=None, totalSteps=10)
    rest = start("parts", poisoned=poisoned)
    assert rest.ways_back == []
    assert (rest.result.recoveries, rest.result.skipped_steps) == (1, 2)
    assert rest.notices["StepSkipped"].startswith("step 13 "), "the other one was skipped before"
    assert same(rest, whole)


def test_float16_that_overflows_for_good_is_replaced_by_a_wider_policy(start: Start) -> None:
    # 1000 times 1000 exceeds float16; the first eight examples, which are inspected before the first step, are small.
    scale, large = {"mode": "Dynamic", "value": 2}, dict.fromkeys(range(8, 300), 1000.0)
    done = start(policy="mixed_float16", kind="large", scale=scale, epochs=8, every=1000, poisoned=large)
    assert done.outcome == outcomes.SUCCEEDED, done.message
    ((from_step, to_step, policy),) = done.ways_back
    assert to_step == 0
    assert policy in ("mixed_bfloat16", "float32")
    assert from_step >= 100
    assert "steps in a row, with the loss scale at " in done.all(events.Recovered)[0].message
    again = start(policy="mixed_float16", kind="large", scale=scale, epochs=9, every=1000, poisoned=large)
    assert (again.started.first_step, again.started.precision) == (8 * STEPS, policy), "the next attempt knows"
    assert again.result.recoveries == 1


def test_when_nothing_helps_the_run_has_diverged(start: Start) -> None:
    poisoned = [place for place in range(8, 300) if place % BATCH >= BATCH // 2]
    done = start(poisoned=dict.fromkeys(poisoned, np.nan), epochs=10)
    assert done.outcome == outcomes.DIVERGED
    assert len(done.ways_back) == 1
    assert "steps in a row" in done.message
    assert "of replica 0 are infinite or NaN" in done.notices["StepSkipped"]


FORWARD, BACKWARD = "loss or moving statistics of replica 0 are ", "gradients of replica 0 are "


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        # Without ReLU: a product that is fused with it turns NaN into 0 on some CPUs, and keeps NaN on others.
        ({"kind": "smooth", "poisoned": {BAD: np.nan}}, FORWARD),
        ({"kind": "root", "poisoned": {BAD: 0.0}}, BACKWARD),
        ({"kind": "overflow", "poisoned": {BAD: 100.0}}, FORWARD),
        ({"entry": "build_with_loss", "poisoned": {BAD: 0.0}}, FORWARD),
        ({"kind": "normalized", "poisoned": {BAD: 3e38}}, FORWARD),
        ({"policy": "mixed_float16", "poisoned": {BAD: np.nan}}, FORWARD),
    ],
    ids=["input", "gradient", "activation", "loss", "moving statistic", "float16"],
)
def test_fail_ends_at_the_first_step_and_names_it_with_its_records(
    start: Start, job: dict[str, Any], expected: str
) -> None:
    failed = start(onNonFinite="Fail", **job)
    assert failed.outcome == outcomes.DIVERGED
    assert failed.message.startswith(f"step 8: {expected}infinite or NaN")
    assert "(examples 140 to 159 of pass 1: records 140, 141, " in failed.message
    assert "159 of run-00000-of-00001.tfrecord)" in failed.message
    assert failed.ways_back == []


@TEST_ALL
def test_an_update_that_makes_weights_infinite_ends_the_run(start: Start) -> None:
    failed = start(onNonFinite="Fail", entry="build_too_fast")
    assert failed.outcome == outcomes.DIVERGED


def test_measure_begins_as_if_its_choice_had_been_written(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train, "native_bfloat16", lambda: True)
    monkeypatch.setattr(policy_trials, "choose_policy", lambda trials: "mixed_bfloat16")
    measured = start("measured", policy="Measure", epochs=None, totalSteps=10)
    assert measured.outcome == outcomes.SUCCEEDED, measured.message
    trials = measured.started.measured
    assert [trial.policy for trial in trials] == ["float32", "mixed_bfloat16"]
    assert all(trial.agrees and trial.step_seconds > 0 for trial in trials)
    assert measured.started.precision == "mixed_bfloat16"
    assert (measured.result.precision, measured.result.measured) == ("mixed_bfloat16", trials)
    assert "Measured" in measured.notices
    assert same(measured, start("told", policy="mixed_bfloat16", epochs=None, totalSteps=10))

    monkeypatch.setattr(
        policy_trials, "choose_policy", lambda trials: pytest.fail("an attempt that resumes measures nothing")
    )
    rest = start("measured", policy="Measure")
    assert (rest.started.precision, "Measured" in rest.notices) == ("mixed_bfloat16", False)
    assert rest.result.measured == trials


@TEST_ALL
def test_a_cpu_without_native_bfloat16_computes_in_float32(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train, "native_bfloat16", lambda: False)
    measured = start(policy="Measure")
    assert measured.outcome == outcomes.SUCCEEDED, measured.message
    assert (measured.result.precision, measured.result.measured) == ("float32", ())


@pytest.mark.parametrize(
    ("before", "after"),
    first_of(("mixed_float16", "float32"), ("mixed_float16", "mixed_bfloat16"), ("mixed_bfloat16", "mixed_float16")),
)
def test_a_run_resumes_under_the_policy_of_another_machine(start: Start, before: str, after: str) -> None:
    """At the same record, and as near to a run under one policy as the policies are.

    The program has no dropout, whose masks are others in another dtype.
    """
    first = start("moved", kind="normalized", policy=before, epochs=None, totalSteps=6)
    assert first.outcome == outcomes.SUCCEEDED, first.message
    saved = first.weights()
    rest = start("moved", kind="normalized", policy=after)
    assert (rest.started.first_step, rest.started.precision, rest.result.step) == (6, after, STEPS)
    assert rest.result.recoveries == 0
    assert (rest.result.loss_scale is not None) == (after == "mixed_float16")
    whole = start("whole", kind="normalized", policy=after)
    # Measured: 6e-5 apart at most with float32 at the end, else 4e-4.
    assert same(rest, whole, within=0.002)
    assert not any(np.array_equal(a, b) for a, b in zip(saved, rest.weights(), strict=True) if a.ndim > 1)
