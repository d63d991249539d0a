"""Validation of a job by the rules of `sections`, `cross_section` and `pod_template`, without an API server.

The API server evaluates `cel`, if there is any, on the value at `at` (`self`), `violations` evaluates `holds` on the
same value, and both report the same message. A rule holds if its `at` is absent from the job.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel

from mptraining_api.pods.fields import PodTemplate
from mptraining_api.problems import InvalidSpec
from mptraining_api.rules.cross_section import CROSS_FIELD_RULES
from mptraining_api.rules.data import DATA_RULES
from mptraining_api.rules.pod_template import POD_RULES
from mptraining_api.rules.rule import Rule, field_of
from mptraining_api.rules.sections import SECTION_RULES
from mptraining_api.spec import MPTrainingJob

__all__ = ["Rule", "check", "rules", "template_violations", "violations"]


def rules() -> tuple[Rule, ...]:
    """Return every rule, in the order in which violations are reported."""
    return (*SECTION_RULES, *DATA_RULES, *CROSS_FIELD_RULES, *POD_RULES)


def violations(job: MPTrainingJob) -> list[InvalidSpec]:
    """Return the violations of a job, in the order of the rules."""
    return _violations(job, rules())


def _violations(job: MPTrainingJob | Mapping[str, Any], checked: Iterable[Rule]) -> list[InvalidSpec]:
    found = []
    for rule in checked:
        for path, value in rule.values(job):
            if not rule.holds(value):
                field = path + rule.field.removeprefix(rule.at) if "[]" in rule.at else rule.field
                field += rule.part(value)
                text, step = rule.explain(value) if rule.explain else (_found_value(job, field), rule.next_step)
                found.append(InvalidSpec(field, text, expected=rule.message, next_step=step))
    return found


def template_violations(template: PodTemplate) -> list[InvalidSpec]:
    """Return the violations of a pod template that is not yet in a job, such as a runtime's."""
    return _violations({"spec": {"podTemplate": template}}, POD_RULES)


def check(job: MPTrainingJob) -> None:
    """Raise InvalidSpec for the first violation."""
    found = violations(job)
    if found:
        raise found[0]


def _found_value(job: MPTrainingJob | Mapping[str, Any], field: str) -> str:
    """Return the value of the field, shortened to fit a line."""
    value: Any = job
    for name, index in re.findall(r"([^.\[\]]+)|\[(\d+)\]", field):
        value = value[int(index)] if index else field_of(value, name)
        if value is None:
            return "missing"
    if isinstance(value, BaseModel):
        given = value.to_document() if hasattr(value, "to_document") else {}
        return f"has {', '.join(given)}" if given else "empty"
    if isinstance(value, list) and any(isinstance(each, BaseModel) for each in value):
        return f"has {len(value)} {'entry' if len(value) == 1 else 'entries'}"
    text = repr(str(value)) if isinstance(value, str) else repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
