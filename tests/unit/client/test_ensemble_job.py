"""Members of an ensemble and their weights, chosen from runs without TensorFlow."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mptraining.ensemble_job import choose, ensemble_document, score_weights
from mptraining.runs import History, Run
from mptraining_api.problems import InvalidData, InvalidSpec
from mptraining_api.resolve.resolve import ClusterSettings, resolve
from mptraining_api.rules.check import violations
from mptraining_api.run_folder import Best, Result
from mptraining_api.spec import MPTrainingJob


def run(folder: str, model: str | None = "model", best: Best | None = None, **metrics: float) -> Run:
    spec = {
        "accelerator": {"type": "cpu"},
        "program": {"application": {"name": "mlp", "classes": 3}},
        "data": {"train": ["/data/train-*"], "validation": ["/data/validation-*"], "label": "kind"},
    }
    job = resolve(MPTrainingJob.parse({"metadata": {"name": folder}, "spec": spec}), ClusterSettings())
    # fmt: off
    result = Result(
        name=folder, reason="Succeeded", exit_code=0, message="", attempt=1, step=9, metrics=metrics, strategy="None",
        precision="float32", keras="Keras3", workers=1, replicas_in_sync=1, global_batch_size=8, step_seconds=None,
        examples_per_second=None, input_bound_percent=None, training_seconds=None, seconds=1.0, peak_memory_bytes=1,
        skipped_steps=0, recoveries=0, native_bfloat16=None, notices=(), model=model, best=best,
    )
    # fmt: on
    return Run(f"runs/{folder}", job, result, History())


def folders(chosen: Any) -> list[str]:
    return [each.folder for each, _ in chosen.members]


def test_the_best_are_those_with_the_least_loss_and_the_most_accuracy() -> None:
    runs = [run("a", val_loss=0.3, val_accuracy=0.8), run("b", val_loss=0.1, val_accuracy=0.7)]
    runs.append(run("c", val_loss=0.2, val_accuracy=0.9))

    assert folders(choose(runs, top=2)) == ["runs/b", "runs/c"]
    assert folders(choose(runs, monitor="val_accuracy", top=2)) == ["runs/c", "runs/a"]
    assert folders(choose(runs, monitor="val_accuracy", mode="min")) == ["runs/b", "runs/a", "runs/c"]


def test_the_value_of_a_run_is_that_of_the_exported_weights() -> None:
    exported = Best(monitor="val_loss", mode="min", step=3, value=0.05)
    chosen = choose([run("a", val_loss=0.1), run("b", best=exported, val_loss=0.9)])

    assert [value for _, value in chosen.members] == [0.05, 0.1]


def test_another_metric_is_that_of_the_exported_step(tmp_path: Path) -> None:
    runs = []
    for name, exported, last in (("a", 0.9, 0.6), ("b", 0.7, 0.8)):
        folder = tmp_path / name
        (folder / "model").mkdir(parents=True)
        (folder / "model" / "model.json").write_text(
            json.dumps({"version": 1, "metrics": {"val_loss": 0.1, "val_accuracy": exported}})
        )
        best = Best(monitor="val_loss", mode="min", step=3, value=0.1)
        runs.append(replace(run(name, best=best, val_loss=0.2, val_accuracy=last), folder=str(folder)))
    chosen = choose(runs, monitor="val_accuracy")

    assert [(Path(each.folder).name, value) for each, value in chosen.members] == [("a", 0.9), ("b", 0.7)]
    assert score_weights(chosen) == pytest.approx([0.9 / 1.6, 0.7 / 1.6])

    (tmp_path / "b" / "model" / "model.json").write_text('{"metrics": "x"}')
    with pytest.raises(InvalidData, match=r"b/model/model\.json: cannot be read"):
        choose(runs, monitor="val_accuracy")


def test_runs_that_cannot_be_members_are_named() -> None:
    runs = [run("a", val_loss=0.3), run("b", val_loss=0.1), run("c", model=None, val_loss=0.2), run("d", loss=1.0)]
    chosen = choose([*runs, replace(runs[0], folder="runs/a/")])

    assert [(each.folder, reason) for each, reason in chosen.skipped] == [
        ("runs/c", "has no exported model"),
        ("runs/d", "has no val_loss"),
        ("runs/a/", "is named twice"),
    ]
    with pytest.raises(InvalidData, match=r"1 of 2 runs can be members: runs/c has no exported model"):
        choose([runs[0], runs[2]])


def test_a_metric_that_no_run_has_is_refused_with_those_there_are() -> None:
    with pytest.raises(InvalidSpec, match=r"no run has 'val_acuracy'.*'val_accuracy'.*Did you mean 'val_accuracy'"):
        choose([run("a", val_accuracy=0.5), run("b", val_accuracy=0.4)], monitor="val_acuracy", mode="max")


def test_a_metric_of_unknown_direction_needs_a_mode() -> None:
    runs = [run("a", val_score=0.5), run("b", val_score=0.4)]
    with pytest.raises(InvalidSpec, match="--mode min or --mode max"):
        choose(runs, monitor="val_score")
    assert folders(choose(runs, monitor="val_score", mode="min")) == ["runs/b", "runs/a"]


def test_weights_by_score_follow_the_direction() -> None:
    runs = [run("a", val_loss=0.1, val_accuracy=0.75), run("b", val_loss=0.3, val_accuracy=0.25)]

    assert score_weights(choose(runs)) == pytest.approx([0.75, 0.25])
    assert score_weights(choose(runs, monitor="val_accuracy")) == pytest.approx([0.75, 0.25])
    with pytest.raises(InvalidSpec, match=r"val_loss -0\.2 of runs/b"):
        score_weights(choose([runs[0], run("b", val_loss=-0.2)]))


def test_the_document_is_a_valid_job_over_the_records_of_the_best_member() -> None:
    chosen = choose([run("a", val_loss=0.1), run("b", val_loss=0.3)])
    document = ensemble_document("both", chosen, [0.75, 0.25], "runs/both")

    job = MPTrainingJob.parse(document)
    assert violations(job) == []
    assert job.spec.program.ensemble is not None
    assert job.spec.program.ensemble.members == ["runs/a", "runs/b"]
    assert job.spec.data is not None
    assert (job.spec.data.validation, job.spec.data.label) == (["/data/validation-*"], "kind")
