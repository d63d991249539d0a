"""Runs to predict with and to average, trained in this process on one device, and the references of plain Keras."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from mptraining_api import events
from mptraining_api.launch import WorkerIdentity
from mptraining_api.outcomes import Outcome
from mptraining_api.resolve.resolve import ClusterSettings, resolve
from mptraining_api.run_folder import Result
from mptraining_api.spec import MPTrainingJob
from mptraining_records.convert.convert import convert
from mptraining_records.tfrecord import example
from mptraining_trainer.distribution.preemption import Preemption
from mptraining_trainer.prediction.location import with_keras_of_models
from mptraining_trainer.run import run

ROWS, BATCH = 44, 8
# A program with two outputs over inputs of varying length, which are scaled by its own preprocessing.
SENTENCES = """
import {keras} as keras


def build(seed=1):
    keras.utils.set_random_seed(seed)
    words = keras.Input((None,), dtype="int32", name="words")
    x = keras.layers.Embedding(50, 6, mask_zero=True)(words)
    x = keras.layers.GRU(5)(x)
    topic = keras.layers.Dense(3, name="topic")(x)
    length = keras.layers.Dense(1, name="length")(x)
    model = keras.Model(words, {{"topic": topic, "length": length}})
    model.compile(
        "sgd",
        loss={{"topic": keras.losses.SparseCategoricalCrossentropy(from_logits=True), "length": "mse"}},
        metrics={{"topic": ["accuracy"], "length": ["mae"]}},
    )
    return {{"model": model, "preprocess": preprocess}}


def preprocess(words, labels):
    return words + 1, labels
"""


@dataclass(frozen=True)
class Ended:
    """One attempt: its end and its run folder."""

    outcome: Outcome
    folder: Path
    said: tuple[Any, ...]

    @property
    def message(self) -> str:
        return str(self.said[-1].message)

    @property
    def result(self) -> Result:
        return Result.read((self.folder / "result.json").read_bytes())


def run_job(
    spec: dict[str, Any], folder: Path, *, worker: int = 0, attempt: int = 1, preemption: Preemption | None = None
) -> Ended:
    """Run one worker of the job in this process."""
    document = {"metadata": {"name": folder.name}, "spec": {"accelerator": {"type": "cpu"}, **spec}}
    document["spec"]["output"] = {"uri": str(folder)}
    job = with_keras_of_models(resolve(MPTrainingJob.parse(document), ClusterSettings()))
    hosts = tuple(f"localhost:{number}" for number in range(job.processes))
    identity = WorkerIdentity(index=worker, hosts=hosts, attempt=attempt, incarnation="a")
    outcome = run(job, identity, str(folder), preemption or Preemption(lambda: None), {})
    (file,) = (folder / "events").glob(f"{attempt}-a-{worker}-*.jsonl")
    return Ended(outcome, folder, tuple(map(events.parse, file.read_text().splitlines())))


def predict(model: Path | str, records: str, folder: Path, **more: Any) -> Ended:
    """Run a prediction; `more` are fields of `program.prediction`, `data` and `nodes`, and arguments of `run_job`."""
    run_arguments = {name: more.pop(name) for name in ("worker", "attempt", "preemption") if name in more}
    spec = {
        "strategy": more.pop("strategy", "None"),
        "data": {"predict": [records], **more.pop("data", {})},
        "nodes": more.pop("nodes", None),
    }
    spec["program"] = {"prediction": {"model": str(model), "batchSize": BATCH, **more}}
    return run_job({name: value for name, value in spec.items() if value is not None}, folder, **run_arguments)


def dataset(pattern: str, features: dict[str, Any], batch: int = BATCH) -> Any:
    """Return TensorFlow's own parse of the records, in the order of the files, in batches."""
    files = sorted(tf.io.gfile.glob(pattern))
    parsed = tf.data.TFRecordDataset(files).map(lambda record: tf.io.parse_single_example(record, features))
    return parsed.batch(batch)


def stacked(pattern: str, features: dict[str, Any]) -> dict[str, Any]:
    """Return the features of all records as arrays, read by TensorFlow.

    Keras 3 warns at the end of a dataset of unknown length.
    """
    rows = list(dataset(pattern, features))
    return {name: np.concatenate([row[name].numpy() for row in rows]) for name in features}


def write_records(folder: Path, name: str, rows: list[dict[str, Any]], shards: int) -> str:
    """Write the rows into shards with TensorFlow's own writer; return the pattern of the files."""
    folder.mkdir(parents=True, exist_ok=True)
    each = -(-len(rows) // shards)
    for shard in range(shards):
        with tf.io.TFRecordWriter(str(folder / f"{name}-{shard:05d}-of-{shards:05d}.tfrecord")) as writer:
            for row in rows[shard * each : (shard + 1) * each]:
                writer.write(example.encode(row))
    return f"{folder}/{name}-*.tfrecord"


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three classes, the largest of the first three of eight numbers; `unlabelled` has three shards and an id."""
    folder = tmp_path_factory.mktemp("numbers")
    generator = np.random.default_rng(3)
    for name, count in (("train", 80), ("validation", ROWS)):
        x = generator.normal(size=(count, 8)).astype(np.float32)
        np.savez(folder / f"{name}.npz", x=x, label=x[:, :3].argmax(axis=1))
        convert(str(folder / f"{name}.npz"), str(folder), name=name, keep_order=True)
    rows = generator.normal(size=(ROWS, 8)).astype(np.float32)
    write_records(folder / "test", "test", [{"x": row, "id": f"row {i}"} for i, row in enumerate(rows)], 3)
    return folder


Trained = Callable[..., Path]


@pytest.fixture(scope="module")
def trained(numbers: Path, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Return a function from generation and seed to the run folder of an mlp, trained once."""
    found: dict[tuple[str, int], Path] = {}

    def run_once(generation: str = "Keras3", seed: int = 1, **training: Any) -> Path:
        key = (generation, seed)
        if key not in found:
            folder = tmp_path_factory.mktemp("runs") / f"mlp-{generation.lower()}-{seed}"
            spec = {
                "strategy": "None",
                "keras": generation,
                "program": {"application": {"name": "mlp", "classes": 3}},
                "data": {
                    "train": [f"{numbers}/train-*.tfrecord"],
                    "validation": [f"{numbers}/validation-*.tfrecord"],
                },
                "training": {"batchSize": {"global": 20}, "epochs": seed, "seed": seed, **training},
            }
            ended = run_job(spec, folder)
            assert ended.outcome.exit_code == 0, ended.message
            found[key] = folder
        return found[key]

    return run_once


@pytest.fixture(scope="module")
def sentences(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Callable[[str], Path]]]:
    """Records of 1 to 9 words in two shards, and a function from the generation to a run of SENTENCES."""
    folder = tmp_path_factory.mktemp("sentences")
    generator = np.random.default_rng(5)
    rows = []
    for _ in range(ROWS):
        words = generator.integers(0, 49, size=generator.integers(1, 10))
        rows.append({"words": words, "topic": int(words[0]) % 3, "length": float(len(words))})
    records = write_records(folder, "text", rows, 2)
    unlabelled = [{"words": row["words"]} for row in rows]
    write_records(folder / "unlabelled", "text", unlabelled, 2)
    sys.path.insert(0, str(folder))

    def run_once(generation: str) -> Path:
        module = f"sentences_{generation.lower()}"
        (folder / f"{module}.py").write_text(SENTENCES.format(keras="keras" if generation == "Keras3" else "tf_keras"))
        importlib.invalidate_caches()
        spec = {
            "strategy": "None",
            "keras": generation,
            "program": {"function": {"entryPoint": f"{module}:build"}},
            "data": {
                "train": [records],
                "validation": [records],
                "labels": ["topic", "length"],
                "features": [
                    {"name": "words", "dtype": "int32", "shape": [0]},
                    {"name": "topic", "dtype": "int64", "shape": []},
                    {"name": "length", "dtype": "float32", "shape": []},
                ],
            },
            "training": {"batchSize": {"global": 11}, "epochs": 1},
        }
        run_folder = folder / "runs" / module.replace("_", "-")
        ended = run_job(spec, run_folder)
        assert ended.outcome.exit_code == 0, ended.message
        return run_folder

    yield folder, run_once
    sys.path.remove(str(folder))
