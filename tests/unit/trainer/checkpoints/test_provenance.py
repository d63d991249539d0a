"""A checkpoint's record of code, versions, hardware and job, and the differences that a resume reports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mptraining_api.resolve.resolve import ClusterSettings, resolve
from mptraining_api.resolved_job import ResolvedJob
from mptraining_api.spec import MPTrainingJob
from mptraining_trainer.checkpoints.provenance import Origin, changes, code_digest, origin, settings


def job(**changed: Any) -> ResolvedJob:
    spec: dict[str, Any] = {
        "accelerator": {"type": "cpu"},
        "program": {"application": {"name": "mlp", "classes": 3}},
        "data": {"train": ["data/train-*"]},
        "training": {"epochs": 2, "batchSize": {"global": 32}},
        "output": {"uri": "/runs/a"},
    }
    for name, section in changed.items():
        spec[name] = {**spec.get(name, {}), **section}
    return resolve(MPTrainingJob.parse({"metadata": {"name": "digits"}, "spec": spec}), ClusterSettings())


def of(this: ResolvedJob, **fields: Any) -> Origin:
    return origin(this, None, versions={"tensorflow": "2.21.0"}).model_copy(update=fields)


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"training": {"batchSize": {"global": 64}}}, ["globalBatchSize: 32, now 64"]),
        ({"training": {"seed": 9}}, ["training.seed: 0, now 9"]),
        ({"precision": {"policy": "mixed_bfloat16"}}, ["precision.policy: float32, now mixed_bfloat16"]),
        ({"training": {"epochs": 20}}, []),
        ({"training": {"stepsPerExecution": 4}}, []),
        ({"checkpoint": {"everySteps": 7}}, []),
        ({"output": {"uri": "/runs/b"}}, []),
    ],
)
def test_a_change_of_the_job_is_named_with_both_values(section: dict[str, Any], said: list[str]) -> None:
    found = changes(of(job()), of(job(**section)))
    assert [line for line in found if line in said] == said
    if not said:
        assert found == []


def test_another_number_of_workers_is_named() -> None:
    found = changes(of(job()), of(job(**{"accelerator": {"countPerNode": 2}})))
    assert "replicas: 1, now 2" in found


def test_versions_hardware_and_code_are_compared() -> None:
    before = of(job())
    now = before.model_copy(
        update={"code": "b", "versions": before.versions | {"tensorflow": "2.22.0"}, "hardware": {"processor": "x"}}
    )
    found = changes(before, now)
    assert found[0] == "the program's code: another one"
    assert "tensorflow: 2.21.0, now 2.22.0" in found
    assert "accelerator: cpu, now nothing" in found
    assert changes(before, before) == []


def test_it_survives_the_state_file() -> None:
    before = of(job())
    assert Origin.read(before.to_json()) == before


def test_code_is_what_the_python_files_say(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "train.py").write_text("a = 1")
    (tmp_path / "package" / "model.py").write_text("b = 2")
    first = code_digest(tmp_path)
    (tmp_path / "notes.txt").write_text("no code")
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "other.py").write_text("not ours")
    (tmp_path / "nowhere.txt").symlink_to(tmp_path / "gone")
    assert code_digest(tmp_path) == first
    (tmp_path / "package" / "model.py").write_text("b = 3")
    second = code_digest(tmp_path)
    assert second != first
    (tmp_path / "package" / "model.py").rename(tmp_path / "package" / "moved.py")
    assert code_digest(tmp_path) != second


def test_settings_are_leaves_by_their_path() -> None:
    assert settings({"a": {"b": 1, "c": [1, 2]}, "name": "x", "empty": {}}) == {
        "a.b": "1",
        "a.c": "[1, 2]",
        "empty": "{}",
    }
