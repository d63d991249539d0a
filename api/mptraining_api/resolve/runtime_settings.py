"""Runtimes as settings state them: checked field by field, with a JSON schema that `helm install` checks."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from mptraining_api.admin_limits import Image, JobLimits
from mptraining_api.model import Model, Name, Text, Uri
from mptraining_api.pods.fields import PodTemplate
from mptraining_api.problems import InvalidSpec, InvalidValue, nearest
from mptraining_api.rules.check import template_violations
from mptraining_api.validation import patterns
from mptraining_api.validation.messages import InvalidField
from mptraining_api.validation.mistakes import FieldPath, InvalidJobFile, Mistake, field_path
from mptraining_api.validation.yaml_text import read_yaml

M = TypeVar("M", bound=Model)

# The runtime of jobs that have no other; other runtimes override it field by field.
DEFAULT = "default"
_FOLDER = r"(gs://[a-z0-9]|/).*"
_PROXY = r"https?://[^\s/]+/?"

RuntimeName = Annotated[str, StringConstraints(min_length=1, max_length=63, pattern=patterns.DNS_LABEL)]


def matching(pattern: str, expected: str) -> AfterValidator:
    """Return the validator that refuses a text outside `pattern` with the words of `expected`."""

    def check(text: str) -> str:
        if re.fullmatch(pattern, text) is None:
            raise ValueError(expected)
        return text

    return AfterValidator(check)


Folder = Annotated[Uri, matching(_FOLDER, "gs://bucket/folder, or the path of a volume that jobs mount")]
Proxy = Annotated[Uri, matching(_PROXY, "the URL of a proxy, such as http://proxy.example:3128")]


def refuse(wrong: Sequence[InvalidValue]) -> None:
    """Raise the first refusal with the others; nothing for none."""
    if wrong:
        first, *others = wrong
        raise InvalidValue(
            first.found, expected=first.expected, next_step=first.next_step, path=first.path, also=others
        )


def _named(template: PodTemplate) -> PodTemplate:
    rules = (
        ("labels", "name of a label", patterns.LABEL_NAME),
        ("annotations", "key of an annotation", patterns.ANNOTATION_KEY),
    )
    wrong = [
        InvalidValue(f"{key!r} is no {what}, such as team or example.com/team", path=(field, key))
        for field, what, pattern in rules
        for key in getattr(template, field) or ()
        if re.fullmatch(pattern, key) is None
    ]
    refuse(wrong)
    return template


NamedTemplate = Annotated[PodTemplate, AfterValidator(_named)]


class RuntimeImages(Model):
    """Images by kind of accelerator. Absent: those of `default`."""

    cpu: Image | None = Field(None, description="For jobs on CPUs.")
    gpu: Image | None = Field(None, description="For jobs on GPUs.")
    tpu: Image | None = Field(None, description="For jobs on TPUs.")


class Runtime(Model):
    """Settings for the jobs of the runtime, for fields that a job does not set."""

    description: Text | None = Field(None, description="Shown by `mptj runtimes`.")
    pod_template: NamedTemplate | None = Field(None, description="As in a job, which adds to it.")
    images: RuntimeImages = Field(RuntimeImages(), description="Images by kind of accelerator.")
    provisioning: Literal["OnDemand", "Spot", "FlexStart"] | None = Field(
        None, description="Of the accelerators that name none."
    )
    output: Folder | None = Field(None, description="Folder for run folders: <output>/<namespace>/<job>.")
    priority_class_name: Name | None = Field(None, description="Priority class.")
    http_proxy: Proxy | None = Field(None, description="HTTP_PROXY.")
    https_proxy: Proxy | None = Field(None, description="HTTPS_PROXY.")
    no_proxy: Annotated[str, StringConstraints(max_length=4096)] | None = Field(
        None, description="NO_PROXY; the cluster's services and the metadata server are added."
    )
    ca_config_map: Name | None = Field(
        None, description="ConfigMap, in the namespace of the job, with the CA certificates (PEM) to trust."
    )
    ca_key: Name | None = Field(None, description="Key in that ConfigMap. Absent: ca.crt.")
    limits: JobLimits = Field(JobLimits(), description="Limits in addition to those of `default`.")

    @model_validator(mode="after")
    def _keeps_the_rules(self) -> Self:
        violations = template_violations(self.pod_template) if self.pod_template else []
        # A runtime has the fields of a job's spec.
        refuse(
            [
                InvalidValue(v.found, expected=v.expected, next_step=v.next_step, path=field_path(v.where)[1:])
                for v in violations
            ]
        )
        return self


def parse_settings(model: type[M], document: object, *, file: str, text: str = "", section: FieldPath = ()) -> M:
    """Parse the document of a file of settings. Raises InvalidJobFile with every mistake.

    `text` is that of the file, for the lines of the mistakes, and `section` the place of the document in it.
    """
    where = ".".join(map(str, section))
    value, invalid = model.validate_document(document, where=where)
    if value is not None:
        return value
    problems = {field.path: field.problem for field in invalid}
    if isinstance(document, Mapping):
        # Pydantic compares fields with one another only in a document without invalid ones.
        _, others = model.validate_document(_without(document, invalid), where=where)
        problems = {field.path: field.problem for field in others} | problems
    try:
        lines = read_yaml(text, file=file)
    except InvalidSpec:
        lines = []
    raise InvalidJobFile(
        [Mistake(file, lines[0].line_at((*section, *path)) if lines else None, problems[path]) for path in problems]
    )


def _without(document: Mapping[str, Any], invalid: Sequence[InvalidField]) -> dict[str, Any]:
    """Return the document without its invalid fields; of runtimes only their names, which namespaces refer to."""
    wrong = {field.path[:2] for field in invalid}
    rest: dict[str, Any] = {}
    for field, value in document.items():
        if field == "runtimes" and isinstance(value, Mapping):
            # In YAML a name without quotes may be a number.
            texts = map(str, value)
            rest[field] = {name: {} for name in texts if len(name) <= 63 and re.fullmatch(patterns.DNS_LABEL, name)}
        elif field == "defaultRuntimes" and isinstance(value, Mapping):
            rest[field] = {namespace: name for namespace, name in value.items() if (field, namespace) not in wrong}
        elif field not in {path[0] for path in wrong if path}:
            rest[field] = value
    return rest


def refusals(defaults: dict[str, str], runtimes: dict[str, Runtime]) -> list[InvalidValue]:
    """Return the refusal of every namespace whose runtime is not one of `runtimes`, and of every misplaced limit."""
    misplaced = [
        InvalidValue(
            "a limit on the namespace, whose jobs may have other runtimes",
            next_step=f"Move it to runtimes.{DEFAULT}.limits.",
            path=("runtimes", name, "limits", "workersPerNamespace"),
        )
        for name, runtime in runtimes.items()
        if name != DEFAULT and runtime.limits.workers_per_namespace is not None
    ]
    expected = f"one of {', '.join(sorted(runtimes))}" if runtimes else "no name, since there are no runtimes"
    return misplaced + [
        InvalidValue(
            f"{name!r} is no runtime of these settings",
            expected=expected,
            next_step=nearest(name, runtimes),
            path=("defaultRuntimes", namespace),
        )
        for namespace, name in defaults.items()
        if name not in (DEFAULT, *runtimes)
    ]
