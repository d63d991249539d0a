"""The JSON schema for editors, by a validator that is not ours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from mptraining_api.editor_schema import editor_schema, to_json

ROOT = Path(__file__).parents[3]
EXAMPLES = sorted((ROOT / "manifests" / "examples").glob("*.yaml"))
VALIDATOR = jsonschema.Draft202012Validator(editor_schema())


def job(path: Path) -> dict[str, Any]:
    documents: list[dict[str, Any]] = list(yaml.safe_load_all(path.read_text()))
    return next(each for each in documents if each["kind"] == "MPTrainingJob")


def test_the_published_file_is_current() -> None:
    published = (ROOT / "manifests" / "mptrainingjob.schema.json").read_text()
    assert published == to_json()
    jsonschema.Draft202012Validator.check_schema(json.loads(published))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_names_the_schema_and_is_valid(path: Path) -> None:
    assert "# yaml-language-server: $schema=../mptrainingjob.schema.json\n" in path.read_text()
    assert list(VALIDATOR.iter_errors(job(path))) == []


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


def test_names_are_suggested_and_not_enforced() -> None:
    document = job(EXAMPLES[0])
    document["spec"]["accelerator"]["type"] = "nvidia-of-next-year"
    assert list(VALIDATOR.iter_errors(document)) == []
    types = editor_schema()["$defs"]["Accelerator"]["properties"]["type"]["anyOf"][0]["enum"]
    assert "nvidia-tesla-t4" in types
