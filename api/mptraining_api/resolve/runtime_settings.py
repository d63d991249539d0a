"""Runtimes as settings state them: checked field by field, with a JSON schema that `helm install` checks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, ConfigDict, Field, StringConstraints, model_validator

from mptraining_api.accelerators import catalogue, lookup
from mptraining_api.admin_limits import Image, RuntimeLimits
from mptraining_api.model import Count, Model, Text, Uri
from mptraining_api.pods.fields import PodTemplate
from mptraining_api.problems import InvalidSpec, InvalidValue, nearest
from mptraining_api.rules.check import machine_violations, template_violations
from mptraining_api.spec import MOST_ALTERNATIVES, Machine
from mptraining_api.validation import patterns

# RFC 1123, as in Kubernetes.
DNS_LABEL = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
DNS_NAME = rf"{DNS_LABEL}(\.{DNS_LABEL})*"
# Keys of labels and of annotations.
LABEL_NAME = rf"({DNS_NAME}/)?[A-Za-z0-9]([-A-Za-z0-9_.]{{0,61}}[A-Za-z0-9])?"

RuntimeName = Annotated[str, StringConstraints(min_length=1, max_length=63, pattern=patterns.DNS_LABEL)]


def refuse(wrong: Sequence[InvalidValue]) -> None:
    """Raise the first refusal with the others; nothing for none."""
    if wrong:
        first, *others = wrong
        raise InvalidValue(
            first.found, expected=first.expected, next_step=first.next_step, path=first.path, also=others
        )


def _path(where: str) -> tuple[str | int, ...]:
    """Return the path below a runtime of a field of a job: spec.accelerator.alternatives[1].type, spec.podTemplate.a"""
    below = where.removeprefix("spec.").removeprefix("accelerator.")
    return tuple(int(index) if index else name for name, index in re.findall(r"([^.\[\]]+)|\[(\d+)\]", below))


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
    refuse(wrong)
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


class RuntimeImages(Model):
    """Images by kind of accelerator. Absent: those of the settings."""

    cpu: Image | None = Field(None, description="For jobs on CPUs.")
    gpu: Image | None = Field(None, description="For jobs on GPUs.")
    tpu: Image | None = Field(None, description="For jobs on TPUs.")


class Runtime(Model):
    """Settings for the jobs that name the runtime, for fields that a job does not set."""

    model_config = ConfigDict(json_schema_extra={"dependentRequired": {"tryForSeconds": ["alternatives"]}})

    description: Text | None = Field(None, description="Shown by `mptj runtimes`.")
    pod_template: NamedTemplate | None = Field(None, description="As in a job, which adds to it.")
    images: RuntimeImages = Field(RuntimeImages(), description="Images by kind of accelerator.")
    provisioning: Literal["OnDemand", "Spot", "FlexStart"] | None = Field(
        None, description="Of the accelerators that name none."
    )
    alternatives: Annotated[list[KnownMachine], Field(min_length=1, max_length=MOST_ALTERNATIVES)] | None = Field(
        None, description="Of accelerators, GPUs and TPUs, without alternatives; those that suit the job are tried."
    )
    try_for_seconds: Count | None = Field(
        None, description="With alternatives: how long the job's own choice is tried before them."
    )
    default_output: Uri | None = Field(None, description="Parent of the run folders, as defaultOutput.")
    limits: RuntimeLimits = Field(RuntimeLimits(), description="Limits in addition to settings.limits.")

    @model_validator(mode="after")
    def _keeps_the_rules(self) -> Self:
        found = template_violations(self.pod_template) if self.pod_template else []
        if self.alternatives:
            found += machine_violations(self.alternatives)
        wrong = [
            InvalidValue(each.found, expected=each.expected, next_step=each.next_step, path=_path(each.where))
            for each in found
        ]
        if self.try_for_seconds is not None and self.alternatives is None:
            wrong.append(InvalidValue("missing", expected="alternatives beside tryForSeconds", path=("alternatives",)))
        refuse(wrong)
        return self


def check_default_runtimes(defaults: dict[str, str], runtimes: dict[str, Runtime]) -> None:
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
    refuse(wrong)
