"""The CustomResourceDefinition: structural, bounded, small, and its file is in step with the models."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hack.crd import FOLDER, custom_resource_definition, files, sweep_definition
from mptraining_api.rules.check import rules
from mptraining_api.status import CONDITION_TYPES

CRD = custom_resource_definition()
ROOT = CRD["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
SWEEPS = sweep_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]


def nodes(node: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, node
    for name, inner in node.get("properties", {}).items():
        yield from nodes(inner, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if isinstance(node.get(key), dict):
            yield from nodes(node[key], f"{path}[]")


@pytest.mark.parametrize("schema", [ROOT, SWEEPS])
def test_every_string_list_and_map_is_bounded(schema: dict[str, Any]) -> None:
    # The API server itself bounds metadata.
    unbounded = [
        path
        for path, node in nodes(schema)
        if path != ".metadata"
        and (
            (node.get("type") == "string" and not {"maxLength", "enum"} & node.keys())
            or (node.get("type") == "array" and "maxItems" not in node)
            or (node.get("type") == "object" and not {"properties", "maxProperties"} & node.keys())
        )
    ]
    assert unbounded == []


@pytest.mark.parametrize("schema", [ROOT, SWEEPS])
def test_the_schema_is_structural_and_every_field_described(schema: dict[str, Any]) -> None:
    for path, node in nodes(schema):
        kept = node.get("x-kubernetes-preserve-unknown-fields")
        assert node.get("type") or node.get("x-kubernetes-int-or-string") or kept, path
        forbidden = {"$ref", "anyOf", "oneOf", "allOf", "default", "title", "const", "nullable"}
        # The spec has no defaults; the status has one, for a job that no operator has seen.
        assert forbidden & node.keys() <= ({"default"} if path == ".status" else set()), path
        assert not ("properties" in node and "additionalProperties" in node), path
        assert isinstance(node.get("exclusiveMinimum", False), bool), path
    for path, node in nodes(schema["properties"]["spec"]):
        if not path.endswith("[]") and ".hostPath" not in path and path.count("[]") == 0:
            assert "description" in node, path


def test_free_form_objects_keep_what_they_hold_and_trials_are_merged_by_number() -> None:
    program = ROOT["properties"]["spec"]["properties"]["program"]["properties"]
    assert program["function"]["properties"]["arguments"]["x-kubernetes-preserve-unknown-fields"] is True
    limits = ROOT["properties"]["spec"]["properties"]["podTemplate"]["properties"]["resources"]["properties"]["limits"]
    assert limits["additionalProperties"] == {"x-kubernetes-int-or-string": True}
    assert SWEEPS["properties"]["status"]["properties"]["trials"]["x-kubernetes-list-map-keys"] == ["number"]


def test_other_controllers_may_add_conditions_and_own_them() -> None:
    """A map list merges by type under server-side apply; an atomic list has one owner."""
    conditions = ROOT["properties"]["status"]["properties"]["conditions"]
    assert conditions["x-kubernetes-list-type"] == "map"
    assert conditions["x-kubernetes-list-map-keys"] == ["type"]
    assert "type" in conditions["items"]["required"]
    type = conditions["items"]["properties"]["type"]
    assert "enum" not in type
    for valid in (*CONDITION_TYPES, "kueue.x-k8s.io/Admitted", "example.com/Some.Thing_else-2"):
        assert re.search(type["pattern"], valid), valid
    for invalid in ("", "two words", "Kueue/Admitted", "a/b/C", "-Done", "Done-"):
        assert not re.search(type["pattern"], invalid), invalid


def test_every_rule_is_at_its_place() -> None:
    placed = [rule["rule"] for _, node in nodes(ROOT) for rule in node.get("x-kubernetes-validations", ())]
    assert sorted(placed) == sorted(rule.cel for rule in rules() if rule.cel)


@pytest.mark.parametrize(("name", "text"), files().items())
def test_the_file_in_the_chart_is_up_to_date(name: str, text: str) -> None:
    file = Path(__file__).parents[3] / FOLDER / name
    assert file.read_text(encoding="utf-8") == text, "run `python -m hack.crd`"
