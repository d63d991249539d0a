"""Base class of every serialized value: frozen, camelCase in JSON and YAML, unknown fields refused."""

from __future__ import annotations

import json
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError
from pydantic.alias_generators import to_camel

from mptraining_api.problems import InvalidSpec, nearest

# The bounds keep the estimated cost of the CRD's CEL rules below the API server's limit; no job needs larger values.
Name = Annotated[str, StringConstraints(min_length=1, max_length=253)]
Word = Annotated[str, StringConstraints(min_length=1, max_length=63)]
Uri = Annotated[str, StringConstraints(min_length=1, max_length=1024)]
Text = Annotated[str, StringConstraints(max_length=4096)]
EntryPoint = Annotated[str, StringConstraints(min_length=1, max_length=512)]
Count = Annotated[int, Field(ge=1, le=2**31 - 1)]
NonNegative = Annotated[int, Field(ge=0, le=2**31 - 1)]
Arguments = Annotated[dict[str, Any], Field(max_length=256)]


class Model(BaseModel):
    """A frozen value. `parse` refuses unknown fields; `read` ignores them: a newer version may have written them."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        alias_generator=to_camel,
        validate_by_alias=True,
        validate_by_name=True,
        serialize_by_alias=True,
        allow_inf_nan=False,
        protected_namespaces=(),
    )

    @classmethod
    def parse(cls, document: object, *, where: str = "") -> Self:
        """Parse `document` (mappings and lists as YAML loads them).

        Raises InvalidSpec with the first invalid field below `where` and the number of further ones.
        """
        try:
            # JSON mode is as strict as the API server ("1" is no number, 1 is no string) but takes lists as tuples.
            return cls.model_validate_json(json.dumps(document, default=str))
        except ValidationError as error:
            raise _first_problem(cls, error, where) from None

    @classmethod
    def read(cls, text: str | bytes) -> Self:
        """Parse JSON text that this or a newer version wrote."""
        return cls.model_validate_json(text, extra="ignore")

    def to_document(self) -> dict[str, Any]:
        """Return plain mappings and lists for YAML or JSON, without the fields that are None."""
        return self.model_dump(mode="json", exclude_none=True)

    def to_json(self) -> str:
        """Return JSON text for `read`; fields that are None are written as null."""
        return self.model_dump_json()


def _first_problem(cls: type[BaseModel], error: ValidationError, where: str) -> InvalidSpec:
    details = error.errors(include_url=False)
    # A misspelled field also makes the intended one missing; the misspelling is the error to report.
    first = next((detail for detail in details if detail["type"] == "extra_forbidden"), details[0])
    field = where
    for part in first["loc"]:
        field += f"[{part}]" if isinstance(part, int) else f".{part}" if field else str(part)
    more = f" ({len(details) - 1} more)" if len(details) > 1 else ""
    if first["type"] == "extra_forbidden":
        known = _fields_at(cls, first["loc"][:-1])
        hint = nearest(str(first["loc"][-1]), known) or f"Known fields here: {', '.join(sorted(known))}."
        return InvalidSpec(field, f"unknown field{more}", next_step=hint)
    if first["type"] == "missing":
        return InvalidSpec(field, f"missing{more}", next_step="Add this field; it has no default.")
    expected = first["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
    return InvalidSpec(field, f"{_quote(first['input'])} is not valid{more}", expected=expected)


def _quote(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _fields_at(cls: type[BaseModel], path: tuple[int | str, ...]) -> list[str]:
    """Return the names that are allowed in the mapping at `path` below the model `cls`."""
    schema = cls.model_json_schema(by_alias=True)
    node: dict[str, Any] = schema
    for part in path:
        node = _inlined(schema, node)
        node = node["items"] if isinstance(part, int) else node.get("properties", {}).get(part, {})
    return list(_inlined(schema, node).get("properties", {}))


def _inlined(schema: dict[str, Any], node: dict[str, Any]) -> dict[str, Any]:
    for option in node.get("anyOf", []):
        if option.get("type") != "null":
            node = option
    reference = node.get("$ref", "")
    return schema["$defs"][reference.rsplit("/", 1)[-1]] if reference else node
