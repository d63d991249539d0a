"""Paths of parameters, looked up in the schema of a job: unknown fields, and fields that a sweep may not change."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from mptraining_api.problems import InvalidSpec, nearest
from mptraining_api.spec import JobSpec
from mptraining_api.sweep.search_space import path_parts
from mptraining_api.validation.messages import inlined
from mptraining_api.validation.mistakes import field_text, value_at

# Fields below `spec`, each with the reason.
NOT_SEARCHED = {
    "output": "every trial has a run folder of its own below it",
    "source": "all trials run the same code",
    "runPolicy": "it does not change the objective",
    "scheduling": "it does not change the objective",
    "tracking": "it does not change the objective",
    "profile": "it does not change the objective",
    "export": "the objective is the last value, whatever is exported",
    "data.validation": "values on other records cannot be compared",
    "training.resume": "a trial that lost its machine continues",
    "training.initialEpoch": "values after other numbers of epochs cannot be compared",
}


def path_problem(path: str, job: Mapping[str, Any], *, where: str) -> InvalidSpec | None:
    """Return what is wrong with a parameter's path, or None. `job` is the spec of the sweep's job."""
    for field, because in NOT_SEARCHED.items():
        if path == field or path.startswith((f"{field}.", f"{field}[")):
            return InvalidSpec(
                where, f"{path!r} cannot be searched: {because}", next_step=f"Set {field} in spec.job, or remove it."
            )
    node, schema = _schema(), _schema()
    parts = path_parts(path)
    for index, part in enumerate(parts):
        here = parts[:index]
        if isinstance(part, int):
            inner = value_at(dict(job), here)
            if not isinstance(inner, list) or part >= len(inner):
                count = f"has {len(inner)} items" if isinstance(inner, list) else "is not a list there"
                found = f"{path!r}: spec.job.{field_text(here)} {count}"
                return InvalidSpec(where, found, expected="the index of an item in spec.job, from 0")
            node = node.get("items", {})
        else:
            fields = node.get("properties")
            if fields is not None and part not in fields:
                return _unknown_field(path, part, field_text(here), fields, where)
            if fields is None and node.get("type") not in ("object", None):
                found = f"{path!r}: {field_text(here)} has no fields"
                return InvalidSpec(where, found, next_step=f"Search {field_text(here)} itself.")
            extra = node.get("additionalProperties")
            node = fields[part] if fields is not None else extra if isinstance(extra, dict) else {}
        node = inlined(schema, node)
    return None


def _unknown_field(path: str, part: str, section: str, fields: Mapping[str, Any], where: str) -> InvalidSpec:
    step = nearest(part, fields) or f"Known fields there: {', '.join(sorted(fields))}."
    if part == "spec" and not section:
        step = "Paths begin below the job's spec: write training.epochs, not spec.training.epochs."
    found = f"{path!r}: {f'{section} has' if section else 'a job has'} no field {part!r}"
    return InvalidSpec(where, found, next_step=step)


@cache
def _schema() -> dict[str, Any]:
    return JobSpec.model_json_schema(by_alias=True)
