"""A record that makes its batch infinite or NaN is skipped by its number; weights are those of plain Keras without it.

Records 0 … 239 come in index order, 20 a step, so that record 150 is in step 8 of each pass.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
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
from mptraining_trainer.distribution.preemption import Preemption
from mptraining_trainer.keras_backend import Generation, load
from mptraining_trainer.run import run

BATCH, COUNT, BAD, SEED = 20, 240, 150, 7
STEPS = COUNT // BATCH

PROGRAM = """
import {package} as keras

def build(normalized=False):
    layers = keras.layers
    inner = [layers.BatchNormalization()] if normalized else []
    model = keras.Sequential([keras.Input((8,)), *inner, layers.Dense(8, "tanh"), layers.Dense(3, dtype="float32")])
    return dict(model=model, optimizer=keras.optimizers.SGD(0.05, momentum=0.9),
                loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
"""


class Done:
    def __init__(self, folder: Path, number: int, outcome: outcomes.Outcome) -> None:
        (file,) = (folder / "events").glob(f"{number}-*.jsonl")
        self.outcome = outcome
        self.events = [event for line in file.read_text().splitlines() if (event := events.parse(line))]
        self.result = Result.read((folder / "result.json").read_bytes())
        self.quarantine = {
            (Path(one["uri"]).name, one["record"])
            for path in folder.glob(f"quarantine/{number}-*.json")
            for one in json.loads(path.read_text())["records"]
        }
        with np.load(folder / "model" / "weights.npz") as stored:
            self.weights = [stored[name] for name in sorted(stored)]

    def notice(self, topic: str) -> str | None:
        found = [event.message for event in self.events if isinstance(event, events.Notice) and event.topic == topic]
        return found[0] if found else None

    @property
    def scales(self) -> list[float]:
        return [one.loss_scale for one in self.events if isinstance(one, events.Progress) and one.loss_scale]


def examples(poisoned: dict[int, float]) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(3).normal(size=(COUNT, 8)).astype(np.float32)
    label = x[:, :3].argmax(axis=1)
    for place, value in poisoned.items():
        x[place] = value
    return x, label


Start = Callable[..., Done]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    for package in ("keras", "tf_keras"):
        (tmp_path / f"excluding_{package}.py").write_text(PROGRAM.format(package=package))
    monkeypatch.syspath_prepend(tmp_path)
    attempts: dict[str, int] = {}

    def begin(
        name: str = "run",
        *,
        poisoned: dict[int, float],
        policy: str = "float32",
        replicas: int = 1,
        keras: Generation = "Keras3",
        normalized: bool = False,
        cache: str = "Memory",
        steps_per_execution: int | None = None,
        **training: Any,
    ) -> Done:
        number = attempts[name] = attempts.get(name, 0) + 1
        if number == 1:
            x, label = examples(poisoned)
            np.savez(tmp_path / f"{name}.npz", x=x, label=label)
            convert(str(tmp_path / f"{name}.npz"), str(tmp_path / "records"), name=name, keep_order=True)
        entry = f"excluding_{'tf_keras' if keras == 'Legacy' else 'keras'}:build"
        if steps_per_execution is not None:
            training["stepsPerExecution"] = steps_per_execution
        spec = {
            "keras": keras,
            "accelerator": {"type": "cpu", "countPerNode": replicas},
            "strategy": "None" if replicas == 1 else "Auto",
            "program": {"function": {"entryPoint": entry, "arguments": {"normalized": normalized}}},
            "data": {
                "train": [f"{tmp_path}/records/{name}-*.tfrecord"],
                "shuffle": {"bufferSize": 0},
                "cache": cache,
            },
            "training": {"batchSize": {"global": BATCH}, "seed": SEED} | training,
            "checkpoint": {"everySteps": 3},
            "precision": {"policy": policy},
        }
        job = resolve(MPTrainingJob.parse({"metadata": {"name": "numbers"}, "spec": spec}), ClusterSettings())
        identity = WorkerIdentity(index=0, hosts=("localhost:0",), attempt=number, incarnation="a")
        if replicas > 1:
            monkeypatch.setattr(tf.config, "set_logical_device_configuration", lambda *_: None)
        folder = tmp_path / "folders" / name
        outcome = run(job, identity, str(folder), Preemption(lambda: None), {"MPTRAINING_PROGRESS_SECONDS": "0"})
        return Done(folder, number, outcome)

    return begin


def plain(
    generation: Generation, policy: str, poisoned: dict[int, float], left_out: list[set[int]]
) -> list[np.ndarray]:
    """Return the weights of Keras' own `fit` over the same batches, pass by pass without some records; empty batches
    are skipped.
    """
    keras = load(generation)
    keras.clear_session()
    keras.set_policy(policy)
    keras.set_seed(SEED)
    space: dict[str, Any] = {}
    exec(PROGRAM.format(package="tf_keras" if keras.legacy else "keras"), space)
    parts = space["build"]()
    x, label = examples(poisoned)

    def batches() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for absent in left_out:
            for first in range(0, COUNT, BATCH):
                rows = [row for row in range(first, first + BATCH) if row not in absent]
                if rows:
                    yield x[rows], label[rows]

    signature = (tf.TensorSpec([None, 8], tf.float32), tf.TensorSpec([None], tf.int64))
    data = tf.data.Dataset.from_generator(batches, output_signature=signature)
    parts["model"].compile(optimizer=parts["optimizer"], loss=parts["loss"])
    parts["model"].fit(data, shuffle=False, verbose=0, steps_per_epoch=len(list(batches())))
    weights: list[np.ndarray] = parts["model"].get_weights()
    keras.set_policy("float32")
    return weights


def differ(done: Done, weights: list[np.ndarray]) -> float:
    return max(float(np.abs(a - b).max()) for a, b in zip(done.weights, weights, strict=True))


BATCH_OF_BAD = set(range(140, 160))


@pytest.mark.parametrize(
    ("keras", "replicas", "policy"),
    [
        ("Keras3", 1, "float32"),
        ("Keras3", 2, "float32"),
        ("Keras3", 1, "mixed_float16"),
        ("Keras3", 2, "mixed_float16"),
        ("Legacy", 2, "float32"),
        ("Legacy", 1, "mixed_float16"),
    ],
)
def test_a_bad_record_costs_one_step_and_then_itself_alone(
    start: Start, keras: Generation, replicas: int, policy: str
) -> None:
    """As plain `fit` without that batch in the first pass, and without that record in the second and third."""
    poisoned = {BAD: np.nan}
    done = start(poisoned=poisoned, policy=policy, replicas=replicas, keras=keras, epochs=3)
    assert done.outcome == outcomes.SUCCEEDED
    assert (done.result.step, done.result.skipped_steps, done.result.skipped_records) == (3 * STEPS, 1, 1)
    assert done.quarantine == {("run-00000-of-00001.tfrecord", BAD)}
    text = done.notice("RecordExcluded") or ""
    assert text.startswith(f"step 8: record {BAD} of ")
    assert "run-00000-of-00001.tfrecord is skipped from here on" in text
    expected = plain(keras, policy, poisoned, [BATCH_OF_BAD, {BAD}, {BAD}])
    # float16 rounds activations to 5e-4; sums over replicas are added in another order.
    assert differ(done, expected) < (3e-3 if policy == "mixed_float16" else 2e-6)
    if policy == "mixed_float16":
        assert done.scales[-1] == 32768, "the scale is given back what the record cost"


def test_a_huge_record_that_only_moving_statistics_show_is_skipped(start: Start) -> None:
    """Loss and gradients stay finite, since (x - mean) / sqrt(infinity) is 0."""
    for replicas in (1, 2):
        done = start(f"run{replicas}", poisoned={BAD: 3e38}, replicas=replicas, normalized=True, epochs=2)
        assert done.outcome == outcomes.SUCCEEDED
        assert done.quarantine == {(f"run{replicas}-00000-of-00001.tfrecord", BAD)}
        assert (done.result.skipped_steps, done.result.recoveries) == (1, 1)
        assert all(np.isfinite(each).all() for each in done.weights)


def test_streamed_records_and_fused_steps_come_to_the_same(start: Start) -> None:
    poisoned = {BAD: np.nan, 151: np.inf, 37: np.nan}
    whole = start("whole", poisoned=poisoned, policy="mixed_float16", epochs=2, steps_per_execution=1)
    assert {number for _, number in whole.quarantine} == {37, 150, 151}
    assert whole.result.skipped_steps == 2
    streamed = start(
        "streamed", poisoned=poisoned, policy="mixed_float16", cache="None", epochs=2, steps_per_execution=5
    )
    assert differ(streamed, whole.weights) == 0.0


def test_a_restart_keeps_the_skipped_records(start: Start) -> None:
    """The next attempt ends with the bits of an undisturbed run, wherever the run was cut."""
    poisoned = {BAD: np.nan}
    whole = start("whole", poisoned=poisoned, policy="mixed_float16", epochs=2)
    start("parts", poisoned=poisoned, policy="mixed_float16", totalSteps=10)
    rest = start("parts", poisoned=poisoned, policy="mixed_float16", epochs=2)
    assert differ(rest, whole.weights) == 0.0
    assert rest.notice("RecordExcluded") is None, "it was found before"
    assert {number for _, number in rest.quarantine} == {BAD}
    assert (rest.result.skipped_steps, rest.result.skipped_records, rest.result.loss_scale) == (1, 1, 32768)


def test_a_batch_that_is_bad_as_a_whole_is_unchanged(start: Start) -> None:
    done = start(poisoned=dict.fromkeys(range(145, 155), np.nan), epochs=2)
    assert done.outcome == outcomes.SUCCEEDED
    assert done.result.skipped_steps == 2
    assert done.quarantine == set()
    assert "no few records explain a batch" in (done.notice("CauseNotFound") or "")
