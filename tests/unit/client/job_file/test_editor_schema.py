"""The JSON schema for editors, by a validator that is not ours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from mptraining.job_file.editor_schema import editor_schema, schema_text, sweep_editor_schema
from tests.unit.api.sweep.sweeps import JOB, document

ROOT = Path(__file__).parents[4]
EXAMPLES = sorted((ROOT / "manifests" / "examples").glob("*.yaml"))
VALIDATOR = jsonschema.Draft202012Validator(editor_schema())


# The epochs come from the parameter.
SWEEP = document(parameters=[{"path": "training.epochs", "int": {"low": 1, "high": 9}}], job=JOB | {"training": {}})
SWEEP_VALIDATOR = jsonschema.Draft202012Validator(sweep_editor_schema())


def job(path: Path) -> dict[str, Any]:
    documents: list[dict[str, Any]] = list(yaml.safe_load_all(path.read_text()))
    return next(document for document in documents if document["kind"] == "MPTrainingJob")


def test_every_example_is_valid() -> None:
    for text in (schema_text(), schema_text(sweep=True)):
        jsonschema.Draft202012Validator.check_schema(json.loads(text))
    for path in EXAMPLES:
        assert list(VALIDATOR.iter_errors(job(path))) == [], path
    assert list(SWEEP_VALIDATOR.iter_errors(SWEEP)) == []


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"accelerator": "t4"}, ["accelerator"]),
        ({"epochs": 5}, []),
        ({"precision": {"policy": "fp16"}}, ["precision"]),
        ({"training": {"batch_size": {"global": 16}}}, ["training"]),
        ({"parameters": [{"path": "training.epochs"}]}, ["parameters", 0]),
        ({"parameters": [{"path": "a", "values": [1], "int": {"low": 1, "high": 2}}]}, ["parameters", 0]),
        ({"algorithm": {"name": "Bayes"}}, ["algorithm", "name"]),
        ({"job": {"traning": {}}}, ["job"]),
    ],
)
def test_an_editor_marks_what_check_refuses(change: dict[str, Any], path: list[str | int]) -> None:
    of_sweep = next(iter(change)) in SWEEP["spec"]
    validator, file = (SWEEP_VALIDATOR, SWEEP) if of_sweep else (VALIDATOR, job(EXAMPLES[0]))
    (error,) = validator.iter_errors({**file, "spec": file["spec"] | change})
    assert list(error.absolute_path)[: len(path) + 1] == ["spec", *path]


def test_names_are_suggested_and_not_enforced_and_a_default_is_named_once() -> None:
    file = job(EXAMPLES[0])
    file["spec"]["accelerator"]["type"] = "nvidia-of-next-year"
    assert list(VALIDATOR.iter_errors(file)) == []
    definitions = editor_schema()["$defs"]
    assert "t4" in definitions["Accelerator"]["properties"]["type"]["anyOf"][0]["enum"]
    # Several fields have this definition.
    assert definitions["KerasObject"]["properties"]["config"]["description"].count("Default:") == 1
