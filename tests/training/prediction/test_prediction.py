"""Predictions against plain Keras `predict` and `evaluate` over TensorFlow's own reader."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from mptraining_api import events, outcomes
from mptraining_records.convert.convert import convert
from mptraining_records.tfrecord import example
from mptraining_trainer.devices.preemption import Preemption
from mptraining_trainer.keras_backend import load
from mptraining_trainer.prediction import run_prediction
from tests.testbed.keras_generations import GENERATIONS
from tests.training import runs
from tests.training.prediction.trained_runs import BATCH, ROWS, Trained, dataset, predict, stacked, write_records

X = {"x": tf.io.FixedLenFeature([8], tf.float32)}
LABELLED = {**X, "label": tf.io.FixedLenFeature([], tf.int64)}
TOPIC = {"topic": tf.io.FixedLenFeature([], tf.int64)}
LENGTH = {"length": tf.io.FixedLenFeature([], tf.float32)}
IN_GENERATIONS = pytest.mark.parametrize("generation", GENERATIONS)


def table(folder: Path) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = pq.read_table(folder / "predictions.parquet").to_pydict()
    return found


def model_of(run: Path, generation: str) -> Any:
    keras = load(generation).module  # type: ignore[arg-type]
    return keras.models.load_model(run / "model" / "model.keras", compile=False)


def softmax(logits: Any) -> Any:
    values = np.exp(logits - logits.max(axis=1, keepdims=True))
    return values / values.sum(axis=1, keepdims=True)


@IN_GENERATIONS
def test_records_without_labels_get_what_keras_predicts_in_the_order_of_the_files(
    generation: str, trained: Trained, numbers: Path, tmp_path: Path
) -> None:
    records = f"{numbers}/test/test-*.tfrecord"
    ended = predict(trained(generation), records, tmp_path / "p")

    assert ended.outcome == outcomes.SUCCEEDED, ended.message
    found = table(tmp_path / "p")
    wanted = model_of(trained(generation), generation).predict(stacked(records, X)["x"], verbose=0)
    np.testing.assert_allclose(found["output"], wanted, atol=1e-6)
    assert found["class"] == wanted.argmax(axis=1).tolist()
    np.testing.assert_allclose(found["probability"], softmax(wanted).max(axis=1), atol=1e-6)
    assert list(found) == ["file", "record", "output", "class", "probability"]
    assert found["record"] == [*range(15), *range(15), *range(14)]
    assert [Path(file).name[5:10] for file in found["file"]] == ["00000"] * 15 + ["00001"] * 15 + ["00002"] * 14
    assert not (tmp_path / "p" / "predictions").exists()
    assert ended.result.reason == "Succeeded"


@IN_GENERATIONS
def test_evaluation_is_that_of_keras(generation: str, trained: Trained, numbers: Path, tmp_path: Path) -> None:
    records = f"{numbers}/validation-*.tfrecord"
    ended = predict(trained(generation), records, tmp_path / "p", evaluate=True)

    assert ended.outcome == outcomes.SUCCEEDED, ended.message
    model = model_of(trained(generation), generation)
    losses = load(generation).module.losses  # type: ignore[arg-type]
    model.compile(loss=losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    rows = stacked(records, LABELLED)
    wanted = model.evaluate(rows["x"], rows["label"], batch_size=BATCH, return_dict=True, verbose=0)
    assert ended.result.metrics == pytest.approx(dict(wanted), rel=1e-5)
    assert len(table(tmp_path / "p")["class"]) == ROWS


def test_an_application_without_classes_is_evaluated_with_those_that_the_manifest_named(tmp_path: Path) -> None:
    x, label = runs.numbers(40)
    pq.write_table(
        pa.table({"x": x.tolist(), "label": [f"class {number}" for number in label]}), tmp_path / "rows.parquet"
    )
    convert(str(tmp_path / "rows.parquet"), str(tmp_path), keep_order=True)
    records = f"{tmp_path}/train-*.tfrecord"
    spec = {"program": {"application": {"name": "mlp"}}, "data": {"train": [records]}, "strategy": "None"}
    assert runs.start(spec, tmp_path / "run").outcome == outcomes.SUCCEEDED
    ended = predict(tmp_path / "run", records, tmp_path / "p", evaluate=True)

    assert ended.outcome == outcomes.SUCCEEDED, ended.message
    right = np.mean([int(name.removeprefix("class ")) for name in table(tmp_path / "p")["class"]] == label)
    assert ended.result.metrics["accuracy"] == pytest.approx(right, abs=1e-6)


@IN_GENERATIONS
@pytest.mark.test_all
def test_two_outputs_over_sequences_are_columns_by_name(
    generation: str, sentences: tuple[Path, Callable[[str], Path]], tmp_path: Path
) -> None:
    folder, run = sentences
    words = {"words": tf.io.RaggedFeature(tf.int64, row_splits_dtype=tf.int64)}
    unlabelled = f"{folder}/unlabelled/text-*.tfrecord"
    ended = predict(run(generation), unlabelled, tmp_path / "p")

    assert ended.outcome == outcomes.SUCCEEDED, ended.message
    found = table(tmp_path / "p")
    model = model_of(run(generation), generation)
    rows = dataset(unlabelled, words, 1).map(lambda row: tf.cast(row["words"][0] + 1, tf.int32))
    batches = rows.padded_batch(BATCH)
    wanted = [model.predict_on_batch(batch) for batch in batches]
    np.testing.assert_allclose(found["topic"], np.concatenate([each["topic"] for each in wanted]), atol=1e-6)
    np.testing.assert_allclose(found["length"], np.concatenate([each["length"] for each in wanted])[:, 0], atol=1e-6)
    assert found["topic_class"] == np.argmax(found["topic"], axis=1).tolist()
    assert "length_class" not in found

    judged = predict(run(generation), f"{folder}/text-*.tfrecord", tmp_path / "judged", evaluate=True)
    assert judged.outcome == outcomes.SUCCEEDED, judged.message
    labels = stacked(f"{folder}/text-*.tfrecord", TOPIC | LENGTH)
    right = np.mean(np.argmax(table(tmp_path / "judged")["topic"], axis=1) == labels["topic"])
    assert judged.result.metrics["topic_accuracy"] == pytest.approx(right, abs=1e-6)
    errors = (np.array(table(tmp_path / "judged")["length"]) - labels["length"]) ** 2
    assert judged.result.metrics["length_loss"] == pytest.approx(np.mean(errors), rel=1e-5)


def test_two_workers_write_the_file_of_one(trained: Trained, numbers: Path, tmp_path: Path) -> None:
    records = f"{numbers}/validation-*.tfrecord"
    alone = predict(trained(), records, tmp_path / "one", evaluate=True)
    second = predict(trained(), records, tmp_path / "two", evaluate=True, workers=2, strategy="Auto", worker=1)
    assert second.outcome == outcomes.SUCCEEDED, second.message
    assert not (tmp_path / "two" / "predictions.parquet").exists()
    first = predict(trained(), records, tmp_path / "two", evaluate=True, workers=2, strategy="Auto", worker=0)

    assert first.outcome == outcomes.SUCCEEDED, first.message
    assert table(tmp_path / "two") == table(tmp_path / "one")
    assert first.result.metrics == pytest.approx(alone.result.metrics, rel=1e-6)


def test_two_replicas_predict_what_one_does(
    trained: Trained, numbers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = f"{numbers}/test/test-*.tfrecord"
    predict(trained(), records, tmp_path / "one")
    # The process' devices are those of tests/testbed/keras_generations.py.
    monkeypatch.setattr(run_prediction, "make_strategy", lambda *_: tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]))
    ended = predict(trained(), records, tmp_path / "two")

    assert ended.outcome == outcomes.SUCCEEDED, ended.message
    assert ended.started.replicas_in_sync == 2
    one, two = table(tmp_path / "one"), table(tmp_path / "two")
    np.testing.assert_allclose(two.pop("output"), one.pop("output"), atol=1e-6)
    assert two["class"] == one["class"]
    assert two["record"] == one["record"]


class StopAfter(Preemption):
    """A preemption that begins after so many questions."""

    def __init__(self, questions: int) -> None:
        super().__init__(lambda: None)
        self._left = questions

    def stop_requested(self) -> bool:
        self._left -= 1
        return self._left < 0


def test_a_restart_keeps_complete_parts_and_gives_the_same_file(
    trained: Trained, numbers: Path, tmp_path: Path
) -> None:
    records = f"{numbers}/test/test-*.tfrecord"
    predict(trained(), records, tmp_path / "whole", key="id")
    stopped = predict(trained(), records, tmp_path / "p", key="id", preemption=StopAfter(3))
    assert stopped.outcome == outcomes.PREEMPTED
    assert len(list((tmp_path / "p" / "predictions").glob("*.json"))) == 3
    assert not (tmp_path / "p" / "predictions.parquet").exists()

    again = predict(trained(), records, tmp_path / "p", key="id", attempt=2)

    assert again.outcome == outcomes.SUCCEEDED, again.message
    assert "3 of 6 parts are complete already" in [notice.message for notice in again.all(events.Notice)]
    assert (tmp_path / "p" / "predictions.parquet").read_bytes() == (
        tmp_path / "whole" / "predictions.parquet"
    ).read_bytes()
    assert table(tmp_path / "p")["id"] == [f"row {number}" for number in range(ROWS)]


def test_a_key_that_records_lack_is_refused_with_those_there_are(
    trained: Trained, numbers: Path, tmp_path: Path
) -> None:
    ended = predict(trained(), f"{numbers}/test/test-*.tfrecord", tmp_path / "p", key="identity")

    assert ended.outcome == outcomes.INVALID_SPEC
    assert "'identity' of a record has 0 values" in ended.message
    assert "has id, x" in ended.message


@pytest.fixture
def damaged(numbers: Path, tmp_path: Path) -> str:
    """Records of which number 11 has a wrong checksum and number 17 only three numbers."""
    generator = np.random.default_rng(4)
    rows = [{"x": generator.normal(size=8).astype(np.float32)} for _ in range(20)]
    rows[17] = {"x": rows[17]["x"][:3]}
    pattern = write_records(tmp_path, "bad", rows, 1)
    path = next(tmp_path.glob("bad-*"))
    content = bytearray(path.read_bytes())
    content[11 * (len(example.encode(rows[0])) + 16) + 20] ^= 1
    path.write_bytes(content)
    return pattern


def test_a_bad_record_ends_a_prediction_with_its_place(trained: Trained, damaged: str, tmp_path: Path) -> None:
    ended = predict(trained(), damaged, tmp_path / "p")

    assert ended.outcome == outcomes.INVALID_DATA
    assert "bad-00000-of-00001.tfrecord" in ended.message
    assert "record 11" in ended.message
    assert not (tmp_path / "p" / "predictions.parquet").exists()


def test_a_bad_record_that_may_be_skipped_has_a_row_with_the_cause(
    trained: Trained, damaged: str, tmp_path: Path
) -> None:
    skip = {"badRecords": {"action": "Skip", "maxSkipped": 2}}
    ended = predict(trained(), damaged, tmp_path / "p", data=skip)

    assert ended.outcome == outcomes.SUCCEEDED, ended.message
    found = table(tmp_path / "p")
    assert [row for row, output in enumerate(found["output"]) if output is None] == [11, 17]
    assert [row for row, cause in enumerate(found["problem"]) if cause is not None] == [11, 17]
    assert "record 11: " in found["problem"][11]
    assert "3 values" in found["problem"][17]
    assert found["record"] == list(range(20))
    assert ended.result.skipped_records == 2
    assert list((tmp_path / "p" / "quarantine").iterdir())


@IN_GENERATIONS
def test_a_keras_file_and_a_saved_model_are_predicted_with(
    generation: str, trained: Trained, numbers: Path, tmp_path: Path
) -> None:
    records = f"{numbers}/test/test-*.tfrecord"
    run = trained(generation)
    predict(run, records, tmp_path / "run")
    model = model_of(run, generation)
    model.save(tmp_path / "m.keras")
    model.export(str(tmp_path / "saved"), **({} if generation == "Legacy" else {"verbose": False}))
    data = {"features": [{"name": "x", "dtype": "float32", "shape": [8]}], "labels": []}
    of_file = predict(tmp_path / "m.keras", records, tmp_path / "file", data=data)
    of_saved = predict(tmp_path / "saved", records, tmp_path / "signature", data=data)

    assert of_file.outcome == of_saved.outcome == outcomes.SUCCEEDED, (of_file.message, of_saved.message)
    for name in ("file", "signature"):
        np.testing.assert_allclose(table(tmp_path / name)["output"], table(tmp_path / "run")["output"], atol=1e-6)


def test_what_is_no_model_is_refused_with_what_is_expected(trained: Trained, numbers: Path, tmp_path: Path) -> None:
    from mptraining_api.problems import InvalidSpec

    with pytest.raises(InvalidSpec, match=r"there is no model at .*expected a run folder"):
        predict(numbers, f"{numbers}/test/test-*.tfrecord", tmp_path / "p")
    missing = predict(trained(), f"{numbers}/test/test-*.tfrecord", tmp_path / "p", evaluate=True)
    assert missing.outcome == outcomes.INVALID_DATA
    assert "feature 'label' is missing" in missing.message


def test_the_chief_waits_for_the_parts_of_another_worker(trained: Trained, numbers: Path, tmp_path: Path) -> None:
    records = f"{numbers}/test/test-*.tfrecord"
    stopped = threading.Event()

    class Waits(Preemption):
        def wait(self, seconds: float) -> bool:
            stopped.set()
            return True

    ended = predict(trained(), records, tmp_path / "p", workers=2, strategy="Auto", preemption=Waits(lambda: None))
    assert stopped.is_set()
    assert ended.outcome == outcomes.PREEMPTED
    assert not (tmp_path / "p" / "predictions.parquet").exists()
