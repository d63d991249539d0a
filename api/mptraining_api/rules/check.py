"""Validation of a job by the rules, without an API server.

The API server evaluates the rules that have CEL, `violations` all of them; both report the same message.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel

from mptraining_api.pods.fields import PodTemplate
from mptraining_api.problems import InvalidSpec
from mptraining_api.rules.data import DATA_RULES
from mptraining_api.rules.job import JOB_RULES
from mptraining_api.rules.pod_template import POD_RULES
from mptraining_api.rules.rule import Rule, field_at
from mptraining_api.spec import MPTrainingJob


def rules() -> tuple[Rule, ...]:
    """Return every rule, in the order in which violations are reported."""
    return (*JOB_RULES, *DATA_RULES, *POD_RULES)


def violations(job: MPTrainingJob) -> list[InvalidSpec]:
    return _violations(job, rules())


def _violations(job: object, checked: Iterable[Rule]) -> list[InvalidSpec]:
    broken = []
    # Many rules share a section, and a job is checked while others wait to start.
    sections: dict[str, list[tuple[str, Any]]] = {}
    for rule in checked:
        if rule.at not in sections:
            sections[rule.at] = list(rule.values(job))
        for path, value in sections[rule.at]:
            broken_at = rule.broken_at(value)
            if broken_at is not None:
                field = path + rule.field.removeprefix(rule.at) + broken_at if rule.at else rule.field
                text = _shortened(field_at(job, field))
                broken.append(InvalidSpec(field, text, expected=rule.expected, next_step=rule.next_step))
    return broken


def template_violations(template: PodTemplate) -> list[InvalidSpec]:
    """Return the violations of a pod template that is not yet in a job, such as a runtime's."""
    return _violations({"spec": {"podTemplate": template}}, POD_RULES)


def check(job: MPTrainingJob) -> None:
    """Raise InvalidSpec for the first violation."""
    broken = violations(job)
    if broken:
        raise broken[0]


def _shortened(value: object) -> str:
    """Return the value of a field, shortened to fit a line."""
    if value is None:
        return "missing"
    if isinstance(value, BaseModel):
        given = value.model_dump(by_alias=True, exclude_none=True)
        return f"has {', '.join(given)}" if given else "empty"
    if isinstance(value, list) and any(isinstance(item, BaseModel) for item in value):
        return f"has {len(value)} {'entry' if len(value) == 1 else 'entries'}"
    text = repr(str(value)) if isinstance(value, str) else repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
