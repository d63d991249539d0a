"""Runs to predict with and to average, trained in this process on one device, and the references of plain Keras."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from mptraining_records.tfrecord import example
from tests.training import runs
from tests.training.runs import Run, start

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


def predict(model: Path | str, records: str, folder: Path, **more: Any) -> Run:
    """Run a prediction; `more` are fields of `program.prediction`, `data` and `workers`, and arguments of `start`."""
    arguments = {name: more.pop(name) for name in ("worker", "attempt", "preemption") if name in more}
    spec = {
        "strategy": more.pop("strategy", "None"),
        "data": {"predict": [records], **more.pop("data", {})},
        "workers": more.pop("workers", None),
        "program": {"prediction": {"model": str(model), "batchSize": BATCH, **more}},
    }
    return start(spec, folder, name=folder.name, **arguments)


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


@pytest.fixture(scope="session")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three classes, the largest of the first three of eight numbers; `unlabelled` has three shards and an id."""
    folder = tmp_path_factory.mktemp("numbers")
    x, label = runs.numbers(80 + 2 * ROWS)
    runs.write_rows(folder, "train", x[:80], label[:80])
    runs.write_rows(folder, "validation", x[80 : 80 + ROWS], label[80 : 80 + ROWS])
    rows = x[80 + ROWS :]
    write_records(folder / "test", "test", [{"x": row, "id": f"row {i}"} for i, row in enumerate(rows)], 3)
    return folder


Trained = Callable[..., Path]


@pytest.fixture(scope="session")
def trained(numbers: Path, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Return a function from generation and seed to the run folder of an mlp, trained once."""
    kept: dict[tuple[str, int], Path] = {}

    def run_once(generation: str = "Keras3", seed: int = 1, **training: Any) -> Path:
        key = (generation, seed)
        if key not in kept:
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
            ended = start(spec, folder, name=folder.name)
            assert ended.outcome.exit_code == 0, ended.message
            kept[key] = folder
        return kept[key]

    return run_once


@pytest.fixture(scope="session")
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

    kept: dict[str, Path] = {}

    def run_once(generation: str) -> Path:
        module = f"sentences_{generation.lower()}"
        if module in kept:
            return kept[module]
        (folder / f"{module}.py").write_text(SENTENCES.format(keras="keras" if generation == "Keras3" else "tf_keras"))
        importlib.invalidate_caches()
        features = [("words", "int32", [0]), ("topic", "int64", []), ("length", "float32", [])]
        spec = {
            "strategy": "None",
            "keras": generation,
            "program": {"function": {"entryPoint": f"{module}:build"}},
            "data": {
                "train": [records],
                "validation": [records],
                "labels": ["topic", "length"],
                "features": [{"name": name, "dtype": dtype, "shape": shape} for name, dtype, shape in features],
            },
            "training": {"batchSize": {"global": 11}, "epochs": 1},
        }
        kept[module] = folder / "runs" / module.replace("_", "-")
        ended = start(spec, kept[module], name=kept[module].name)
        assert ended.outcome.exit_code == 0, ended.message
        return kept[module]

    yield folder, run_once
    sys.path.remove(str(folder))
