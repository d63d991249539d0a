"""The job of `mptj ensemble`: members and their weights, chosen from runs without TensorFlow."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mptraining.cli.ensemble import choose, job_document
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


def folders(*chosen: Any) -> list[str]:
    members, _ = choose(*chosen)
    return [member.folder for member, _ in members]


def test_the_best_are_those_with_the_least_loss_and_the_most_accuracy() -> None:
    runs = [run("a", val_loss=0.3, val_accuracy=0.8), run("b", val_loss=0.1, val_accuracy=0.7)]
    runs.append(run("c", val_loss=0.2, val_accuracy=0.9))

    assert folders(runs, "val_loss", None) == ["runs/b", "runs/c", "runs/a"]
    assert folders(runs, "val_accuracy", None) == ["runs/c", "runs/a", "runs/b"]
    assert folders(runs, "val_accuracy", "min") == ["runs/b", "runs/a", "runs/c"]


def test_the_value_of_a_run_is_that_of_the_exported_weights(capsys: pytest.CaptureFixture[str]) -> None:
    exported = Best(monitor="val_loss", mode="min", step=3, value=0.05)
    runs = [run("a", val_loss=0.1), run("b", best=exported, val_loss=0.9, val_accuracy=0.5)]
    members, _ = choose(runs, "val_loss", None)
    assert [value for _, value in members] == [0.05, 0.1]
    others = [run("c", val_accuracy=0.3), run("d", val_accuracy=0.2)]
    assert folders([*runs, *others], "val_accuracy", None) == ["runs/c", "runs/d"]
    assert "note: runs/b has no val_accuracy of its exported weights" in capsys.readouterr().err
    # A metric of unknown direction needs a mode.
    scored = [run("a", val_score=0.5), run("b", val_score=0.4)]
    with pytest.raises(InvalidSpec, match=r"--mode.*expected min or max"):
        choose(scored, "val_score", None)
    assert folders(scored, "val_score", "min") == ["runs/b", "runs/a"]


def test_runs_that_cannot_be_members_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    runs = [run("a", val_loss=0.3), run("b", val_loss=0.1), run("c", model=None, val_loss=0.2), run("d", loss=1.0)]
    assert folders([*runs, replace(runs[0], folder="runs/a/")], "val_loss", None) == ["runs/b", "runs/a/"]
    said = capsys.readouterr().err
    assert "runs/c has no exported model" in said
    assert "runs/d has no val_loss" in said
    with pytest.raises(InvalidData, match=r"1 runs can be members; expected two or more"):
        choose([runs[0], runs[2]], "val_loss", None)
    with pytest.raises(InvalidData, match="Did you mean 'val_loss'"):
        choose(runs, "val_los", None)


def test_the_document_is_a_valid_job_over_the_records_of_the_best_member() -> None:
    members, better = choose([run("a", val_loss=0.1), run("b", val_loss=0.4)], "val_loss", None)
    job = MPTrainingJob.parse(job_document("both", members, "score", better, "runs/both"))
    assert violations(job) == []
    assert job.spec.program.ensemble.members == ["runs/a", "runs/b"]
    assert job.spec.program.ensemble.weights == pytest.approx([10, 2.5])
    assert (job.spec.data.validation, job.spec.data.label) == (["/data/validation-*"], "kind")
    assert job_document("both", members, "equal", better, "r")["spec"]["program"]["ensemble"].keys() == {"members"}
    with pytest.raises(InvalidSpec, match="--weights: score with a value that is not above 0"):
        job_document("both", [(members[0][0], -0.2), members[1]], "score", better, "r")
