"""JSON schemas of a job file and of a sweep's file for editors: fields with descriptions and defaults, names.

`mptj schema` prints the first, and `mptj schema --sweep` the other one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from mptraining_api.accelerators import catalogue
from mptraining_api.resolve.field_defaults import DEFAULTS
from mptraining_api.spec import MPTrainingJob
from mptraining_api.sweep.defaults import DEFAULT_TEXTS as SWEEP_DEFAULTS
from mptraining_api.sweep.spec import MPTrainingSweep
from mptraining_api.validation.keras_names import Kind, table
from mptraining_api.validation.messages import inlined


def editor_schema() -> dict[str, Any]:
    """Return the JSON schema (draft 2020-12). Names are suggested, not enforced: a newer Keras may have more."""
    schema = MPTrainingJob.model_json_schema(by_alias=True)
    definitions: dict[str, Any] = schema["$defs"]
    definitions["Metadata"]["additionalProperties"] = True
    _suggest(definitions["Accelerator"]["properties"]["type"], list(catalogue()))
    _suggest(definitions["Application"]["properties"]["name"], list(_names("applications")))
    training = definitions["Training"]["properties"]
    training["optimizer"]["anyOf"][0] = _keras_object(_names("optimizers"))
    training["loss"]["anyOf"][0] = _keras_object(_names("losses"))
    training["metrics"]["anyOf"][0]["items"] = _keras_object(_names("metrics"))
    return _of_a_file(schema, {field: default.text for field, default in DEFAULTS.items()})


def sweep_editor_schema() -> dict[str, Any]:
    """Return the JSON schema of an MPTrainingSweep, whose job is checked as that of a job file.

    A field that the job needs may come from a parameter, so that none of the job's own is required.
    """
    schema = MPTrainingSweep.model_json_schema(by_alias=True)
    definitions: dict[str, Any] = {**editor_schema()["$defs"], **schema["$defs"]}
    schema["$defs"] = definitions
    definitions["SweepMetadata"]["additionalProperties"] = True
    definitions["JobSpec"].pop("required", None)
    properties = definitions["SweepSpec"]["properties"]
    properties["job"] = {"$ref": "#/$defs/JobSpec", "description": properties["job"]["description"]}
    kinds = ("values", "int", "uniform", "logUniform")
    definitions["Parameter"]["oneOf"] = [{"required": [kind]} for kind in kinds]
    return _of_a_file(schema, SWEEP_DEFAULTS)


def _of_a_file(schema: dict[str, Any], defaults: Mapping[str, str]) -> dict[str, Any]:
    """Return the schema of a resource as that of its file, with the defaults in the descriptions of its fields."""
    schema["properties"]["status"] = {"type": "object", "description": "Written by the operator."}
    schema["required"] = ["apiVersion", "kind", "metadata", "spec"]
    for field, text in defaults.items():
        _describe_default(schema, f"spec.{field}", text)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def schema_text(*, sweep: bool = False) -> str:
    """Return the text that `mptj schema` prints."""
    return json.dumps(sweep_editor_schema() if sweep else editor_schema(), indent=1, ensure_ascii=False) + "\n"


def _names(kind: Kind) -> tuple[str, ...]:
    return table()["Keras3"].names[kind]


def _keras_object(names: tuple[str, ...]) -> dict[str, Any]:
    suggested = {"properties": {"className": {"anyOf": [{"enum": list(names)}, {"type": "string"}]}}}
    return {"allOf": [{"$ref": "#/$defs/KerasObject"}, suggested]}


def _suggest(node: dict[str, Any], names: list[str]) -> None:
    bounds = {key: node.pop(key) for key in ("type", "minLength", "maxLength", "pattern") if key in node}
    node["anyOf"] = [{"enum": names}, bounds]


def _describe_default(schema: dict[str, Any], field: str, text: str) -> None:
    node: dict[str, Any] = schema
    *sections, last = field.split(".")
    for part in sections:
        node = inlined(schema, node["properties"][part.removesuffix("[]")])
        if part.endswith("[]"):
            node = inlined(schema, node["items"])
    about = node["properties"][last]
    # One definition may serve several fields.
    if f"Default: {text}." not in about.get("description", ""):
        about["description"] = f"{about.get('description', '')} Default: {text}.".strip()
