"""Base class of every serialized value: frozen, camelCase in JSON and YAML, unknown fields refused."""

from __future__ import annotations

import json
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError
from pydantic.alias_generators import to_camel

from mptraining_api.problems import InvalidSpec
from mptraining_api.validation.messages import InvalidField, invalid_fields

# The bounds keep the estimated cost of the CRD's CEL rules below the API server's limit; no job needs larger values.
Name = Annotated[str, StringConstraints(min_length=1, max_length=253)]
Word = Annotated[str, StringConstraints(min_length=1, max_length=63)]
Uri = Annotated[str, StringConstraints(min_length=1, max_length=1024)]
Text = Annotated[str, StringConstraints(max_length=4096)]
EntryPoint = Annotated[str, StringConstraints(min_length=1, max_length=512)]
Count = Annotated[int, Field(ge=1, le=2**31 - 1)]
NonNegative = Annotated[int, Field(ge=0, le=2**31 - 1)]
# JSON has no NaN and no infinity: there they are the strings "NaN", "Infinity" and "-Infinity".
AnyNumber = Annotated[float, Field(strict=False, allow_inf_nan=True)]
_NOT_IN_JSON = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
Arguments = Annotated[dict[str, Any], Field(max_length=256)]


def json_value(value: Any) -> Any:
    """Return the value as AnyNumber writes it to JSON; other values are returned as they are."""
    return _NOT_IN_JSON.get(str(value), value) if isinstance(value, float) else value


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
        ser_json_inf_nan="strings",
        protected_namespaces=(),
    )

    @classmethod
    def parse(cls, document: object, *, where: str = "") -> Self:
        """Parse `document` (mappings and lists as YAML loads them).

        Raises InvalidSpec with the first invalid field below `where` and the number of further ones.
        """
        value, invalid = cls.validate_document(document, where=where)
        if value is None:
            # A misspelled field is the likeliest cause of the others.
            first = next((field for field in invalid if field.problem.found == "unknown field"), invalid[0]).problem
            more = f" ({len(invalid) - 1} more)" if len(invalid) > 1 else ""
            raise InvalidSpec(
                first.where, f"{first.found}{more}", expected=first.expected, next_step=first.next_step
            ) from None
        return value

    @classmethod
    def validate_document(cls, document: object, *, where: str = "") -> tuple[Self | None, list[InvalidField]]:
        """Return the value of `document` and no invalid fields, or None and all of them."""
        try:
            # JSON mode is as strict as the API server ("1" is no number, 1 is no string) but takes lists as tuples.
            # Fields are known by their names in JSON alone, as to the API server: `batch_size` is refused.
            return cls.model_validate_json(json.dumps(document, default=str), by_alias=True, by_name=False), []
        except ValidationError as error:
            return None, invalid_fields(cls, error, document, where)

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
