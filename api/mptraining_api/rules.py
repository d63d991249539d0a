"""What no field can say alone: each rule once, as CEL for the API server and as Python for everyone else.

The API server evaluates `cel` on the value at `at` (`self`), `violations` evaluates `holds` on the same value, and
both say the same message. A rule whose place is absent from a job holds. The rules stand in `section_rules`,
`cross_field_rules` and `pod_rules`; this module applies them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from pydantic.alias_generators import to_camel

from mptraining_api.job import MPTrainingJob
from mptraining_api.problems import InvalidSpec


@dataclass(frozen=True, slots=True)
class Rule:
    """`at`: where `self` is, `""` for the whole object, `[]` for each item of a list.

    `field`: what the user should look at, as a path from the root; `message`: what is expected there, without a full
    stop; `next_step`: one sentence.
    """

    at: str
    field: str
    cel: str
    message: str
    next_step: str
    # Takes the model (or the plain list) at `at`.
    holds: Callable[[Any], bool]

    @property
    def text(self) -> str:
        """What the API server says: it adds no field of ours by itself."""
        return f"{self.field}: expected {self.message}. {self.next_step}"

    def at_each(self, job: MPTrainingJob) -> Iterator[tuple[str, Any]]:
        """The places of the job that the rule is about: path from the root, value."""
        yield from _walk(job, self.at.split(".") if self.at else [], "")


def rules() -> tuple[Rule, ...]:
    """Every rule, in the order in which violations are told."""
    from mptraining_api.cross_field_rules import CROSS_FIELD_RULES
    from mptraining_api.pod_rules import POD_RULES
    from mptraining_api.section_rules import SECTION_RULES

    return (*SECTION_RULES, *CROSS_FIELD_RULES, *POD_RULES)


def violations(job: MPTrainingJob) -> list[InvalidSpec]:
    """What the job breaks, in the order of the rules; an empty list for a job that the API server takes."""
    found = []
    for rule in rules():
        for path, value in rule.at_each(job):
            if not rule.holds(value):
                field = path + rule.field.removeprefix(rule.at) if "[]" in rule.at else rule.field
                found.append(
                    InvalidSpec(field, _seen(job, field), expected=rule.message, next_step=rule.next_step)
                )
    return found


def check(job: MPTrainingJob) -> None:
    """Raises the first violation, as InvalidSpec."""
    found = violations(job)
    if found:
        raise found[0]


def _walk(value: Any, parts: list[str], path: str) -> Iterator[tuple[str, Any]]:
    if value is None:
        return
    if not parts:
        yield path, value
        return
    name, rest = parts[0], parts[1:]
    inner = _get(value, name.removesuffix("[]"))
    here = f"{path}.{name.removesuffix('[]')}" if path else name.removesuffix("[]")
    if name.endswith("[]"):
        for index, item in enumerate(inner or ()):
            yield from _walk(item, rest, f"{here}[{index}]")
    else:
        yield from _walk(inner, rest, here)


def _get(value: Any, name: str) -> Any:
    if isinstance(value, Mapping):
        return value.get(name)
    for field, about in type(value).model_fields.items():
        if (about.alias or to_camel(field)) == name:
            return getattr(value, field)
    return None


def _seen(job: MPTrainingJob, field: str) -> str:
    """What stands at the field, short enough for a line."""
    value: Any = job
    for name, index in re.findall(r"([^.\[\]]+)|\[(\d+)\]", field):
        value = value[int(index)] if index else _get(value, name)
        if value is None:
            return "missing"
    if isinstance(value, BaseModel):
        given = value.to_document() if hasattr(value, "to_document") else {}
        return f"has {', '.join(given)}" if given else "empty"
    text = repr(str(value)) if isinstance(value, str) else repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
