"""Ensembles against averages by NumPy of what plain Keras predicts, and against Keras' own `evaluate`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from mptraining_api import outcomes
from mptraining_trainer.keras_backend import load
from tests.left_out import TEST_ALL
from tests.training.prediction.test_prediction import IN_GENERATIONS, LABELLED, model_of, softmax
from tests.training.prediction.trained_runs import Trained, predict, stacked
from tests.training.runs import Run, start


def average(members: list[Path], records: str, folder: Path, *, weights: list[float] | None = None, **data: Any) -> Run:
    ensemble = {"members": [str(member) for member in members]} | ({"weights": weights} if weights else {})
    spec = {
        "strategy": "None",
        "program": {"ensemble": ensemble},
        "data": {"train": [records], "validation": [records], **data},
    }
    return start(spec, folder, name=folder.name)


@IN_GENERATIONS
def test_an_ensemble_is_the_weighted_mean_of_outputs(
    generation: str, trained: Trained, numbers: Path, tmp_path: Path
) -> None:
    records = f"{numbers}/validation-*.tfrecord"
    members = [trained(generation, seed) for seed in (3, 1, 2)]
    ended = average(members, records, tmp_path / "ensemble", weights=[2.0, 1.0, 1.0])

    assert ended.outcome == outcomes.SUCCEEDED, ended.message
    rows = stacked(records, LABELLED)
    logits = [model_of(member, generation).predict(rows["x"], verbose=0) for member in members]
    wanted = np.average(logits, axis=0, weights=[2.0, 1.0, 1.0])
    found = model_of(tmp_path / "ensemble", generation)
    np.testing.assert_allclose(found.predict(rows["x"], verbose=0), wanted, atol=1e-6)

    labels = rows["label"]
    metrics = ended.result.metrics
    assert metrics["val_accuracy"] == pytest.approx(np.mean(wanted.argmax(axis=1) == labels), abs=1e-6)
    assert metrics["val_loss"] == pytest.approx(
        -np.mean(np.log(softmax(wanted)[np.arange(len(labels)), labels])), rel=1e-5
    )
    best = model_of(members[0], generation)
    losses = load(generation).module.losses  # type: ignore[arg-type]
    best.compile(loss=losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    of_best = best.evaluate(rows["x"], labels, return_dict=True, verbose=0)
    assert metrics["best_member_val_loss"] == pytest.approx(of_best["loss"], rel=1e-5)
    assert metrics["best_member_val_accuracy"] == pytest.approx(of_best["accuracy"], abs=1e-6)
    assert ended.result.model == "model"


def test_an_ensemble_is_predicted_with_and_rebuilt_as_any_model(
    trained: Trained, numbers: Path, tmp_path: Path
) -> None:
    records = f"{numbers}/validation-*.tfrecord"
    average([trained(seed=1), trained(seed=2)], records, tmp_path / "ensemble")
    ended = predict(tmp_path / "ensemble", records, tmp_path / "p")

    assert ended.outcome == outcomes.SUCCEEDED, ended.message
    found = pq.read_table(tmp_path / "p" / "predictions.parquet").to_pydict()
    np.testing.assert_allclose(found["probability"], np.max(softmax(np.array(found["output"])), axis=1), atol=1e-6)

    # In a process without this project: model.json, weights.npz and rebuild.py.
    code = (
        "import json, numpy, sys, keras; from rebuild import load_model; "
        "print(json.dumps(load_model().predict(numpy.ones((1, 8), 'float32'), verbose=0).tolist()))"
    )
    folder = tmp_path / "ensemble" / "model"
    printed = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(folder), "TF_CPP_MIN_LOG_LEVEL": "3"},
    )  # fmt: skip
    assert printed.returncode == 0, printed.stderr
    wanted = model_of(tmp_path / "ensemble", "Keras3").predict(np.ones((1, 8), np.float32), verbose=0)
    np.testing.assert_allclose(json.loads(printed.stdout.splitlines()[-1]), wanted, atol=1e-6)


@TEST_ALL
@IN_GENERATIONS
def test_several_outputs_are_averaged_one_by_one_and_keep_the_programs_preprocessing(
    generation: str, sentences: tuple[Path, Callable[[str], Path]], tmp_path: Path
) -> None:
    folder, run = sentences
    records = f"{folder}/text-*.tfrecord"
    member = run(generation)
    ended = average([member, member], records, tmp_path / "ensemble", labels=["topic", "length"])
    assert ended.outcome == outcomes.SUCCEEDED, ended.message
    predict(tmp_path / "ensemble", records, tmp_path / "mean")
    predict(member, records, tmp_path / "member")

    mean = pq.read_table(tmp_path / "mean" / "predictions.parquet").to_pydict()
    alone = pq.read_table(tmp_path / "member" / "predictions.parquet").to_pydict()
    np.testing.assert_allclose(mean["topic"], alone["topic"], atol=1e-5)
    np.testing.assert_allclose(mean["length"], alone["length"], atol=1e-5)
    assert mean["topic_class"] == alone["topic_class"]


def test_members_that_differ_are_refused_with_the_difference(
    trained: Trained, sentences: tuple[Path, Callable[[str], Path]], numbers: Path, tmp_path: Path
) -> None:
    _, run = sentences
    ended = average([trained(), run("Keras3")], f"{numbers}/validation-*.tfrecord", tmp_path / "ensemble")

    assert ended.outcome == outcomes.INVALID_SPEC
    assert "the inputs of" in ended.message
    assert "'words'" in ended.message
