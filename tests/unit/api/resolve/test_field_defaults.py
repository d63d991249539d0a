"""`kubectl explain` shows the defaults of the spec's optional fields, and `resolve` uses the same."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from hack.crd import custom_resource_definition, with_defaults
from mptraining_api.resolve.defaults import resolve_run_policy
from mptraining_api.resolve.field_defaults import DEFAULTS
from mptraining_api.resolve.resolve import ClusterSettings, resolve
from mptraining_api.spec import MPTrainingJob
from mptraining_operator.jobs.resources.indexed_job import DEFAULT_REQUESTS
from tests.fakes import with_image

SPEC = custom_resource_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
# Items of Kubernetes' own types.
KUBERNETES = tuple(
    f"podTemplate.{each}"
    for each in (
        *("volumes[]", "env[]", "dnsConfig.", "lifecycle.", "initContainers[].lifecycle."),
        *("initContainers[].env[]", "initContainers[].volumeMounts[]", "initContainers[].startupProbe."),
    )
)
# One epoch over the data of an application on a GPU: every field that has a value as its default applies.
JOB: dict[str, Any] = {
    "accelerator": {"type": "t4"},
    "program": {"application": {"name": "ResNet50", "classes": 5}},
    "data": {"train": ["gs://bucket/train"], "validation": ["gs://bucket/validation"]},
}
PREDICTION: dict[str, Any] = {
    "accelerator": {"type": "t4"},
    "program": {"prediction": {"model": "gs://bucket/model"}},
    "data": {"predict": ["gs://bucket/test"]},
}


def optional_fields(node: dict[str, Any] = SPEC, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield path and description of every field that may be absent."""
    for name, inner in node.get("properties", {}).items():
        field = f"{path}.{name}".removeprefix(".")
        if field.startswith(KUBERNETES):
            continue
        if name not in node.get("required", ()):
            yield field, inner["description"]
        yield from optional_fields(inner, field)
    if isinstance(node.get("items"), dict):
        yield from optional_fields(node["items"], f"{path}[]")


def test_a_description_ends_with_the_default() -> None:
    described = dict(optional_fields())
    for field, description in described.items():
        assert description.count("Default: ") == (field in DEFAULTS), field
        assert "Absent" not in description, field
    for field, default in DEFAULTS.items():
        assert re.fullmatch(r"\S.*[.…] Default: .*\w\.", described[field]), field
        assert described[field].endswith(f" Default: {default.text}."), field
    assert described["runPolicy.backoffLimit"] == "Maximum number of retries after program errors. Default: 3."
    assert described["precision.lossScale.value"].endswith("Default: 32768.")


def with_value(spec: dict[str, Any], path: list[str], value: Any) -> dict[str, Any]:
    first, *rest = path
    return spec | {first: with_value(spec.get(first, {}), rest, value) if rest else value}


@pytest.mark.parametrize("field", [field for field, default in DEFAULTS.items() if default.value is not None])
def test_a_field_with_its_default_means_the_same_as_without(field: str) -> None:
    base = PREDICTION if field.startswith("program.prediction") else JOB
    if field == "runPolicy.resizeSeconds":
        base = JOB | {"elastic": {"min": 1, "max": 2}}
    written = with_value(base, field.split("."), DEFAULTS[field].value)
    before, after = (MPTrainingJob.parse({"metadata": {"name": "flowers"}, "spec": spec}) for spec in (base, written))
    assert after != before
    settings = ClusterSettings(runtimes=with_image("trainer:1"))
    # The pods' own fields are passed on as they are written.
    without_reasons = {"choices": (), "pod_template": None, "scheduling": None}
    assert resolve(after, settings).model_copy(update=without_reasons) == resolve(before, settings).model_copy(
        update=without_reasons
    )
    assert resolve_run_policy(after.spec.run_policy) == resolve_run_policy(before.spec.run_policy)


def test_the_requests_of_the_pods_are_those_of_the_operator() -> None:
    text = " and ".join(f"{name} {amount}" for name, amount in DEFAULT_REQUESTS.items())
    assert DEFAULTS["podTemplate.resources.requests"].text.endswith(f"; {text} on CPUs")


def test_a_default_of_a_field_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"no such fields: .*runPolicy\.backoffLimit"):
        with_defaults({"type": "object", "properties": {}}, {"runPolicy.backoffLimit": "3"})
