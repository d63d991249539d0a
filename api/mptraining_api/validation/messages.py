"""The models' validation errors in the words of job files: field, bad value, expected value, next step."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic.alias_generators import to_camel

from mptraining_api.problems import InvalidSpec, InvalidValue, nearest
from mptraining_api.validation import patterns, short_forms
from mptraining_api.validation.mistakes import FieldPath, field_text, value_at

EXPECTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "float_type": "a number",
    "string_type": "text",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "list_type": "a list: [a, b]",
    "tuple_type": "a list: [a, b]",
    "greater_than_equal": "at least {ge}",
    "greater_than": "more than {gt}",
    "less_than_equal": "at most {le}",
    "less_than": "less than {lt}",
    "string_too_long": "at most {max_length} characters",
    "string_too_short": "at least {min_length} characters",
}


@dataclass(frozen=True, slots=True)
class InvalidField:
    """One invalid field of a document. `path` ends at the field, also if that is missing."""

    path: FieldPath
    problem: InvalidSpec


def invalid_fields(
    model: type[BaseModel], error: ValidationError, document: object, where: str = ""
) -> list[InvalidField]:
    """Return every invalid field of `document`, which `model` refused with `error`, each once."""
    details = error.errors(include_url=False)
    schema = _schema_of(model)
    invalid: dict[FieldPath, InvalidField] = {}
    misspelled: set[FieldPath] = set()
    for detail in details:
        path = _path(document, detail["loc"], missing=detail["type"] == "missing")
        refusal = (detail.get("ctx") or {}).get("error")
        if isinstance(refusal, InvalidValue):
            for wrong in (refusal, *refusal.also):
                inner = (*path, *wrong.path)
                problem = InvalidSpec(
                    field_text(inner, where), wrong.found, expected=wrong.expected, next_step=wrong.next_step
                )
                invalid.setdefault(inner, InvalidField(inner, problem))
            continue
        if detail["type"] == "extra_forbidden":
            problem, meant = _unknown(schema, path, value_at(document, path), where)
            misspelled.add((*path[:-1], meant))
        elif detail["type"] == "missing":
            problem = InvalidSpec(field_text(path, where), "missing", next_step="Add this field; it has no default.")
        else:
            problem = _invalid(schema, path, detail, where)
        invalid.setdefault(path, InvalidField(path, problem))
    # A misspelled field also makes the intended one missing; the misspelling is the mistake to report.
    return [field for field in invalid.values() if not (field.problem.found == "missing" and field.path in misspelled)]


def _path(document: object, location: Sequence[int | str], *, missing: bool) -> FieldPath:
    """Return the part of pydantic's location that is in the document, without the names of types in a union."""
    path: FieldPath = ()
    for part in location:
        inner = value_at(document, path)
        if isinstance(inner, Mapping):
            if part not in inner and not (missing and part == location[-1]):
                break
        elif not isinstance(inner, list) or not isinstance(part, int):
            break
        path = (*path, part)
    return path


def _unknown(schema: _Schema, path: FieldPath, value: object, where: str) -> tuple[InvalidSpec, str]:
    """Return the problem of an unknown field, and the name that was probably meant."""
    name, siblings = str(path[-1]), schema.fields_at(path[:-1])
    camel = to_camel(name)
    if camel in siblings:
        return InvalidSpec(field_text(path, where), f"unknown field; write it {camel!r}"), camel
    step = short_forms.for_unknown_field(name, value)
    if not step and (places := schema.places_of(camel)):
        step = f"{camel!r} belongs in {' or '.join(places[:2])}."
    close = "" if step else nearest(name, siblings)
    step = step or close or (f"Known fields here: {', '.join(sorted(siblings))}." if siblings else "")
    meant = close.removeprefix("Did you mean '").removesuffix("'?")
    return InvalidSpec(field_text(path, where), "unknown field", next_step=step), meant


def _invalid(schema: _Schema, path: FieldPath, detail: Mapping[str, Any], where: str) -> InvalidSpec:
    kind, context, value = detail["type"], detail.get("ctx") or {}, detail["input"]
    mistake, step = f"{quote(value)} is not valid", short_forms.for_value(path, value)
    expected = EXPECTED.get(kind, "").format(**context)
    if kind in ("literal_error", "enum"):
        options = schema.options_at(path)
        expected = either(options) or str(context.get("expected"))
        step = step or (nearest(value, options) if isinstance(value, str) else "")
    elif kind in ("model_type", "model_attributes_type", "dict_type"):
        fields = schema.fields_at(path)
        expected = f"the fields {', '.join(fields)}" if fields else "a mapping: {name: value}"
    elif kind == "string_type" and isinstance(value, (int, float)):
        step = step or f'Quote it: "{str(value).lower() if isinstance(value, bool) else value}".'
    elif kind == "value_error" and isinstance(value, (Mapping, BaseModel)):
        # The rule names the fields; the whole section would hide them.
        mistake = "not valid"
    elif kind == "string_pattern_mismatch":
        pattern = str(context.get("pattern"))
        expected = patterns.EXPECTED.get(pattern, pattern)
        step = step or _similar_name(pattern, str(value))
    elif kind == "string_too_short" and value == "":
        mistake, expected = "empty", "some text"
    elif kind in ("too_short", "too_long"):
        mistake = f"has {context['actual_length']} entries"
        expected = f"at least {context['min_length']}" if kind == "too_short" else f"at most {context['max_length']}"
    expected = expected or detail["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
    return InvalidSpec(field_text(path, where), mistake, expected=expected, next_step=step)


def _similar_name(pattern: str, value: str) -> str:
    """Return the suggestion of a name that the pattern admits for one that it does not, such as 'Team A'."""
    name = re.sub(r"[^a-z0-9]+", "-", value.lower()).strip("-")
    return f"Did you mean {name!r}?" if pattern in patterns.NAMES and re.fullmatch(pattern, name) else ""


def quote(value: object) -> str:
    """Return the value as a message quotes it, shortened to fit a line; YAML's words for true, false and nothing."""
    words = {True: "true", False: "false", None: "empty"}
    text = words[value] if value is None or isinstance(value, bool) else repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def either(options: Sequence[str]) -> str:
    """Return the options as text: `a, b or c`."""
    return " or ".join(filter(None, [", ".join(options[:-1]), options[-1]])) if options else ""


class _Schema:
    """The JSON schema of a model, by paths of a document."""

    def __init__(self, model: type[BaseModel]) -> None:
        self._schema = model.model_json_schema(by_alias=True)

    def fields_at(self, path: FieldPath) -> list[str]:
        """Return the names that are allowed in the mapping at `path`."""
        return list(self._at(path).get("properties", {}))

    def options_at(self, path: FieldPath) -> list[str]:
        """Return the values of an enumeration at `path`."""
        node = self._at(path)
        return [str(value) for value in node.get("enum", [node["const"]] if "const" in node else [])]

    def places_of(self, name: str) -> list[str]:
        """Return the sections that have a field of this name, the nearest to the root first."""
        return [field_text(path) for path in sorted(self._sections(self._schema, ()), key=len)
                if path and name in self.fields_at(path)]  # fmt: skip

    def _sections(self, node: dict[str, Any], path: FieldPath) -> Iterator[FieldPath]:
        node = inlined(self._schema, node)
        if "properties" in node:
            yield path
            for name, inner in node["properties"].items():
                yield from self._sections(inner, (*path, name))

    def _at(self, path: FieldPath) -> dict[str, Any]:
        node = inlined(self._schema, self._schema)
        for part in path:
            if isinstance(part, int):
                node = node.get("items", {})
            else:
                extra = node.get("additionalProperties")
                # Pydantic writes a dictionary as patternProperties if its keys have a pattern.
                extra = extra if isinstance(extra, dict) else next(iter(node.get("patternProperties", {}).values()), {})
                node = node.get("properties", {}).get(part) or extra
            node = inlined(self._schema, node)
        return node


@functools.cache
def _schema_of(model: type[BaseModel]) -> _Schema:
    # Pydantic takes tens of milliseconds for the schema of a job, which the operator may need for each bad job.
    return _Schema(model)


def inlined(schema: dict[str, Any], node: dict[str, Any]) -> dict[str, Any]:
    """Return the node of the JSON schema without references, and without the alternative null."""
    for option in node.get("anyOf", []):
        if option.get("type") != "null":
            node = option
            break
    if "allOf" in node:
        node = node["allOf"][0]
    reference = node.get("$ref", "")
    return inlined(schema, schema["$defs"][reference.rsplit("/", 1)[-1]]) if reference else node
