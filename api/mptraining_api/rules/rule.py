"""A validation rule: CEL for the API server, a Python predicate for all others, and the message of both."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic.alias_generators import to_camel

from mptraining_api.spec import MPTrainingJob


@dataclass(frozen=True, slots=True)
class Rule:
    """`at`: the path of `self`, `""` for the whole object, `[]` for each item of a list.

    `cel` is None where the resource has no schema, so that only the operator and `mptj check` see the field. `field`:
    the path from the root of the field to correct; `message`: the expected value, without a full stop; `next_step`: one
    sentence.
    """

    at: str
    field: str
    cel: str | None
    message: str
    next_step: str
    # The predicate on the model (or the plain list) at `at`.
    holds: Callable[[Any], bool]
    # The path below `field` of the part that breaks the rule, such as [1].name; the API server reports the field.
    part: Callable[[Any], str] = lambda _: ""
    # What was found and the next step, of a value that breaks the rule. None: the field's value and `next_step`.
    explain: Callable[[Any], tuple[str, str]] | None = None

    @property
    def text(self) -> str:
        """The message for the API server, with the field, because the API server does not add it."""
        return f"{self.field}: expected {self.message}. {self.next_step}"

    def values(self, job: MPTrainingJob | Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        """Yield path from the root and value of everything in the job that the rule validates."""
        yield from _walk(job, self.at.split(".") if self.at else [], "")


def _walk(value: Any, parts: list[str], path: str) -> Iterator[tuple[str, Any]]:
    if value is None:
        return
    if not parts:
        yield path, value
        return
    name, rest = parts[0], parts[1:]
    inner = field_of(value, name.removesuffix("[]"))
    here = f"{path}.{name.removesuffix('[]')}" if path else name.removesuffix("[]")
    if name.endswith("[]"):
        for index, item in enumerate(inner or ()):
            yield from _walk(item, rest, f"{here}[{index}]")
    else:
        yield from _walk(inner, rest, here)


def field_of(value: Any, name: str) -> Any:
    """Return the field of a model by its name in YAML, or the entry of a map; None if absent."""
    if isinstance(value, Mapping):
        return value.get(name)
    for field, about in type(value).model_fields.items():
        if (about.alias or to_camel(field)) == name:
            return getattr(value, field)
    return None
