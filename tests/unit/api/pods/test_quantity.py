"""Kubernetes' quantities."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from mptraining_api.pods.fields import PodTemplate
from mptraining_api.pods.quantity import amount, check_requests
from mptraining_api.problems import InvalidSpec
from mptraining_api.resolve.runtimes import merge


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (8, 8),
        ("500m", Fraction(1, 2)),
        ("1.5Gi", 3 * 2**29),
        (".5", Fraction(1, 2)),
        ("1e3", 1000),
        ("2E", 2 * 10**18),
        ("64 Gigs", None),
        ("", None),
    ],
)
def test_a_quantity_is_read_as_kubernetes_does(text: int | str, expected: Fraction | None) -> None:
    assert amount(text) == expected


def of(requests: str = "", limits: str = "") -> dict[str, Any]:
    parts = {"requests": requests, "limits": limits}
    return {name: {"memory": amount} for name, amount in parts.items() if amount}


def in_init_container(resources: dict[str, Any]) -> dict[str, Any]:
    return {"initContainers": [{"name": "fetch", "image": "fetch:1", "resources": resources}]}


@pytest.mark.parametrize(
    ("runtime", "own", "found"),
    [
        (None, {"resources": of("16Gi", "8Gi")}, "resources.requests.memory: 16Gi, above limits.memory: 8Gi; expected"),
        ({"resources": of(requests="16Gi")}, {"resources": of(limits="8Gi")},
         "resources.limits.memory: 8Gi, below requests.memory: 16Gi from the runtime large; expected"),
        ({"resources": of(limits="8Gi")}, {"resources": of(requests="16Gi")},
         "resources.requests.memory: 16Gi, above limits.memory: 8Gi from the runtime large; expected"),
        ({"resources": of("4Gi", "8Gi")}, {"resources": of("16Gi", "8Gi")},
         "resources.requests.memory: 16Gi, above limits.memory: 8Gi; expected"),
        ({"initContainers": [{"name": "proxy", "image": "proxy:1"}]}, in_init_container(of("16Gi", "8Gi")),
         "initContainers[0].resources.requests.memory: 16Gi, above limits.memory: 8Gi; expected"),
    ],
)  # fmt: skip
def test_a_request_above_its_limit_is_a_mistake_in_what_the_job_has(
    runtime: dict[str, Any] | None, own: dict[str, Any], found: str
) -> None:
    written = PodTemplate.parse(own)
    template = merge(PodTemplate.parse(runtime), written) if runtime else written
    with pytest.raises(InvalidSpec) as caught:
        check_requests(template, written, "large" if runtime else "")
    assert str(caught.value).startswith(f"spec.podTemplate.{found}")


@pytest.mark.parametrize("template", [{"resources": of("16Gi", "8Gi")}, in_init_container(of("16Gi", "8Gi"))])
def test_a_runtime_s_own_request_above_its_limit_is_no_mistake_of_the_template(template: dict[str, Any]) -> None:
    with pytest.raises(InvalidSpec, match=r"^spec[.]runtime: the runtime large has requests.memory: 16Gi above limits"):
        check_requests(PodTemplate.parse(template), None, "large")


@pytest.mark.parametrize("resources", [of("8Gi", "8Gi"), of("8Gi", "1.6e10"), of(requests="8Gi"), of("8 Gigs", "1Gi")])
def test_other_requests_are_left_to_the_api_server(resources: dict[str, Any]) -> None:
    check_requests(PodTemplate.parse({"resources": resources}))
