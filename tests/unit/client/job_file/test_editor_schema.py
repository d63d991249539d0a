"""The JSON schema for editors, by a validator that is not ours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from mptraining.job_file.editor_schema import editor_schema, sweep_editor_schema, to_json
from tests.unit.api.sweep.sweeps import JOB, document

ROOT = Path(__file__).parents[4]
EXAMPLES = sorted((ROOT / "manifests" / "examples").glob("*.yaml"))
VALIDATOR = jsonschema.Draft202012Validator(editor_schema())


def job(path: Path) -> dict[str, Any]:
    documents: list[dict[str, Any]] = list(yaml.safe_load_all(path.read_text()))
    return next(each for each in documents if each["kind"] == "MPTrainingJob")


def test_every_example_is_valid() -> None:
    jsonschema.Draft202012Validator.check_schema(json.loads(to_json()))
    for path in EXAMPLES:
        assert list(VALIDATOR.iter_errors(job(path))) == [], path


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"accelerator": "t4"}, ["spec", "accelerator"]),
        ({"epochs": 5}, ["spec"]),
        ({"precision": {"policy": "fp16"}}, ["spec", "precision"]),
        ({"training": {"batch_size": {"global": 16}}}, ["spec", "training"]),
    ],
)
def test_an_editor_marks_what_check_refuses(change: dict[str, Any], path: list[str]) -> None:
    document = job(EXAMPLES[0])
    document["spec"] |= change
    (error,) = VALIDATOR.iter_errors(document)
    assert list(error.absolute_path)[: len(path)] == path


def test_a_definition_of_several_fields_has_its_default_once() -> None:
    assert editor_schema()["$defs"]["KerasObject"]["properties"]["config"]["description"].count("Default:") == 1


def test_names_are_suggested_and_not_enforced() -> None:
    document = job(EXAMPLES[0])
    document["spec"]["accelerator"]["type"] = "nvidia-of-next-year"
    assert list(VALIDATOR.iter_errors(document)) == []
    types = editor_schema()["$defs"]["Accelerator"]["properties"]["type"]["anyOf"][0]["enum"]
    assert "t4" in types


# The epochs come from the parameter.
SWEEP = document(parameters=[{"path": "training.epochs", "int": {"low": 1, "high": 9}}], job=JOB | {"training": {}})
SWEEP_VALIDATOR = jsonschema.Draft202012Validator(sweep_editor_schema())


def test_the_schema_of_a_sweep_accepts_one() -> None:
    jsonschema.Draft202012Validator.check_schema(sweep_editor_schema())
    assert list(SWEEP_VALIDATOR.iter_errors(SWEEP)) == []


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"parameters": [{"path": "training.epochs"}]}, ["spec", "parameters", 0]),
        ({"parameters": [{"path": "a", "values": [1], "int": {"low": 1, "high": 2}}]}, ["spec", "parameters", 0]),
        ({"algorithm": {"name": "Bayes"}}, ["spec", "algorithm", "name"]),
        ({"job": {"traning": {}}}, ["spec", "job"]),
    ],
)
def test_the_schema_of_a_sweep_refuses(change: dict[str, Any], path: list[str | int]) -> None:
    errors = list(SWEEP_VALIDATOR.iter_errors({**SWEEP, "spec": SWEEP["spec"] | change}))
    assert [list(each.path) for each in errors] == [path]
