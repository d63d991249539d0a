"""Runtimes as settings state them: checked field by field, with a JSON schema that `helm install` checks."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, ConfigDict, Field

from mptraining_api.accelerators import catalogue, lookup
from mptraining_api.pods.fields import PodTemplate
from mptraining_api.problems import InvalidSpec, InvalidValue, nearest
from mptraining_api.resolve.runtimes import Runtime
from mptraining_api.spec import MOST_ALTERNATIVES, Machine

# RFC 1123, as in Kubernetes.
DNS_LABEL = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
DNS_NAME = rf"{DNS_LABEL}(\.{DNS_LABEL})*"
# Keys of labels and of annotations.
LABEL_NAME = rf"({DNS_NAME}/)?[A-Za-z0-9]([-A-Za-z0-9_.]{{0,61}}[A-Za-z0-9])?"


def _known(machine: Machine) -> Machine:
    try:
        lookup(machine.type)
    except InvalidSpec as problem:
        raise InvalidValue(
            problem.found, expected=problem.expected, next_step=problem.next_step, path=("type",)
        ) from None
    return machine


def _named(template: PodTemplate) -> PodTemplate:
    wrong = [
        InvalidValue(f"{key!r} is no name of a label, such as team or example.com/team", path=(field, key))
        for field in ("labels", "annotations")
        for key in getattr(template, field) or ()
        if re.fullmatch(LABEL_NAME, key) is None
    ]
    if wrong:
        first, *others = wrong
        raise InvalidValue(first.found, path=first.path, also=others)
    return template


_KEYS = {"propertyNames": {"pattern": f"^{LABEL_NAME}$"}}
KnownMachine = Annotated[
    Machine,
    AfterValidator(_known),
    Field(json_schema_extra=lambda schema: schema.update(properties={"type": {"enum": list(catalogue())}})),
]
NamedTemplate = Annotated[
    PodTemplate,
    AfterValidator(_named),
    Field(json_schema_extra={"properties": {"labels": _KEYS, "annotations": _KEYS}}),
]


class RuntimeSettings(Runtime):
    """Settings for the jobs that name the runtime, for fields that a job does not set."""

    model_config = ConfigDict(json_schema_extra={"dependentRequired": {"tryForSeconds": ["alternatives"]}})

    pod_template: NamedTemplate | None = Field(None, description=Runtime.model_fields["pod_template"].description)
    alternatives: Annotated[list[KnownMachine], Field(min_length=1, max_length=MOST_ALTERNATIVES)] | None = Field(
        None, description=Runtime.model_fields["alternatives"].description
    )


def check_default_runtimes(defaults: dict[str, str], runtimes: dict[str, RuntimeSettings]) -> None:
    """Raise InvalidValue with every namespace whose runtime is not one of `runtimes`."""
    expected = f"one of {', '.join(sorted(runtimes))}" if runtimes else "no name, since there are no runtimes"
    wrong = [
        InvalidValue(
            f"{name!r} is no runtime of these settings",
            expected=expected,
            next_step=nearest(name, runtimes),
            path=("defaultRuntimes", namespace),
        )
        for namespace, name in defaults.items()
        if name not in runtimes
    ]
    if wrong:
        first, *others = wrong
        raise InvalidValue(first.found, expected=expected, next_step=first.next_step, path=first.path, also=others)
