"""What no field can say alone: each rule once, as CEL for the API server and as Python for everyone else.

The API server evaluates `cel` on the value at `at` (`self`), `violations` evaluates `holds` on the same
value, and both say the same message. A rule whose place is absent from a job holds. The rules stand in
`section_rules`, `data_rules`, `cross_field_rules` and `pod_rules`; this module applies them.
"""

from __future__ import annotations

import re
from typing import Any

from pydantic import BaseModel

from mptraining_api.problems import InvalidSpec
from mptraining_api.rules.cross_section import CROSS_FIELD_RULES
from mptraining_api.rules.pod_template import POD_RULES
from mptraining_api.rules.rule import Rule, field_of
from mptraining_api.rules.sections import DATA_RULES, SECTION_RULES
from mptraining_api.spec import MPTrainingJob

__all__ = ["Rule", "check", "rules", "violations"]


def rules() -> tuple[Rule, ...]:
    """Every rule, in the order in which violations are told."""
    return (*SECTION_RULES, *DATA_RULES, *CROSS_FIELD_RULES, *POD_RULES)


def violations(job: MPTrainingJob) -> list[InvalidSpec]:
    """What the job breaks, in the order of the rules; an empty list for a job that the API server takes."""
    found = []
    for rule in rules():
        for path, value in rule.at_each(job):
            if not rule.holds(value):
                field = path + rule.field.removeprefix(rule.at) if "[]" in rule.at else rule.field
                found.append(InvalidSpec(field, _seen(job, field), expected=rule.message, next_step=rule.next_step))
    return found


def check(job: MPTrainingJob) -> None:
    """Raises the first violation, as InvalidSpec."""
    found = violations(job)
    if found:
        raise found[0]


def _seen(job: MPTrainingJob, field: str) -> str:
    """What stands at the field, short enough for a line."""
    value: Any = job
    for name, index in re.findall(r"([^.\[\]]+)|\[(\d+)\]", field):
        value = value[int(index)] if index else field_of(value, name)
        if value is None:
            return "missing"
    if isinstance(value, BaseModel):
        given = value.to_document() if hasattr(value, "to_document") else {}
        return f"has {', '.join(given)}" if given else "empty"
    text = repr(str(value)) if isinstance(value, str) else repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
