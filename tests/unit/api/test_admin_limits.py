"""The administrator's limits: refusals and their messages."""

from __future__ import annotations

from typing import Any

import pytest

from mptraining_api.admin_limits import JobLimits
from mptraining_api.limit_rules import check_limits
from mptraining_api.problems import InvalidSpec, OutsideLimits
from mptraining_api.resolve.resolve import ClusterSettings, resolve
from mptraining_api.resolve.runtime_settings import Runtime
from mptraining_api.spec import MPTrainingJob

SPEC: dict[str, Any] = {
    "accelerator": {"type": "t4"},
    "workers": 3,
    "program": {"application": {"name": "cnn", "classes": 2}},
    "data": {"train": ["gs://bucket/train"]},
    "training": {"batchSize": {"global": 96}},
}


def answer(limits: dict[str, Any], namespace: str = "team", cpu_fallback: bool = False, **spec: Any) -> str:
    """Return the refusal of the job; empty when it is allowed."""
    document = {"metadata": {"name": "flowers", "namespace": namespace}, "spec": {**SPEC, **spec}}
    job = MPTrainingJob.parse(document)
    resolved = resolve(job, ClusterSettings(cpu_fallback=cpu_fallback))
    runtimes = {"default": Runtime.parse({"limits": limits})}
    try:
        check_limits(job, resolved, runtimes, operator_namespace="mptraining-system", operator_account="operator")
    except OutsideLimits as problem:
        return str(problem)
    return ""


@pytest.mark.parametrize(
    ("limits", "spec"),
    [
        ({}, {}),
        ({"accelerators": ["t4", "cpu"]}, {}),
        ({"registries": ["gcr.io"]}, {}),
        ({"registries": ["gcr.io"]}, {"podTemplate": {"image": "gcr.io/p/trainer:1"}}),
        ({"images": ["team/trainer"], "registries": ["gcr.io"]}, {"podTemplate": {"image": "team/trainer:9"}}),
        ({"registries": ["gcr.io"]}, {"podTemplate": {"volumes": [{"name": "a", "emptyDir": {}}]}}),
        ({"workersPerJob": 3, "workersPerNamespace": 3}, {}),
        ({}, {"podTemplate": {"serviceAccountName": "trainer"}}),
        # An elastic job takes what the limits leave.
        ({"workersPerJob": 2}, {"workers": None, "elastic": {"min": 2, "max": 8}}),
    ],
)
def test_inside_the_limits(limits: dict[str, Any], spec: dict[str, Any]) -> None:
    assert answer(limits, **spec) == ""


@pytest.mark.parametrize(
    ("limits", "spec", "said"),
    [
        ({"accelerators": ["v100", "cpu"]}, {},
         "spec.accelerator.type: 't4' is outside runtimes.default.limits.accelerators; "
         "expected one of v100, cpu. Ask the operator's administrator."),
        ({"registries": ["gcr.io/team"], "images": ["docker.io/team/trainer:1"]},
         {"podTemplate": {"image": "team/trainer:2"}},
         "spec.podTemplate.image: 'team/trainer:2' is outside runtimes.default.limits.images "
         "(docker.io/team/trainer:1) and runtimes.default.limits.registries (gcr.io/team). "
         "Ask the operator's administrator."),
        ({"registries": ["gcr.io"]}, {"podTemplate": {"volumes": [{"name": "a",
         "image": {"reference": "evil.org/data"}}]}},
         "spec.podTemplate.volumes[0].image.reference: 'evil.org/data' is outside "
         "runtimes.default.limits.registries (gcr.io). Ask the operator's administrator."),
        ({"registries": ["gcr.io"]}, {"podTemplate": {"image": "gcr.io/a b"}},
         "spec.podTemplate.image: 'gcr.io/a b' is no image, such as registry.example.com/team/trainer:1. "
         "Fix the name."),
        ({"workersPerJob": 2}, {},
         "spec.workers: 3 workers are more than runtimes.default.limits.workersPerJob allows; "
         "expected at most 2. Ask the operator's administrator."),
        ({"workersPerNamespace": 2}, {},
         "spec.workers: 3 workers are more than runtimes.default.limits.workersPerNamespace allows; "
         "expected at most 2. Ask the operator's administrator."),
        ({"accelerators": ["t4", "cpu"]}, {"accelerator": {"type": "t4", "alternatives": [{"type": "cpu"},
         {"type": "l4"}]}},
         "spec.accelerator.alternatives[1].type: 'l4' is outside runtimes.default.limits.accelerators; "
         "expected one of t4, cpu. Ask the operator's administrator."),
        ({}, {"podTemplate": {"serviceAccountName": "operator"}},
         "spec.podTemplate.serviceAccountName: 'operator' is the operator's own name. "
         "Name an account made for this job's data."),
    ],
)  # fmt: skip
def test_outside_a_limit_that_is_named(limits: dict[str, Any], spec: dict[str, Any], said: str) -> None:
    assert answer(limits, **spec) == said


def test_what_was_asked_for_counts_when_a_job_falls_back_to_the_cpu() -> None:
    assert answer({"accelerators": ["t4"]}, cpu_fallback=True) == ""
    assert "'t4' is outside" in answer({"accelerators": ["cpu"]}, cpu_fallback=True)
    batch = {"batchSize": {"global": 64}}
    refused = answer({"workersPerJob": 3}, workers=None, elastic={"min": 3, "max": 8}, training=batch)
    assert refused.startswith("spec.elastic.min: 4 workers are more than runtimes.default.limits.workersPerJob allows")


def test_the_operators_own_namespace_is_refused_whatever_the_limits() -> None:
    assert answer({}, namespace="mptraining-system") == (
        "metadata.namespace: 'mptraining-system' is the operator's own, with its account and its certificate. "
        "Make the job in another namespace."
    )


@pytest.mark.parametrize(
    ("limits", "field"),
    [
        ({"accelerators": ["t5"]}, "accelerators[0]"),
        ({"images": ["https://gcr.io/a"]}, "images[0]"),
        ({"registries": ["gcr.io/a:1"]}, "registries[0]"),
        ({"workersPerJob": 0}, "workersPerJob"),
        ({"workersPerNamspace": 1}, "workersPerNamspace"),
    ],
)
def test_an_empty_limit_is_named(limits: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidSpec) as caught:
        JobLimits.parse(limits)
    assert caught.value.where == field
