"""The affinity of a pod: every requirement of the job and of its accelerator holds."""

from __future__ import annotations

from typing import Any

from mptraining_api.resolved_job import Placement
from mptraining_operator.resources.affinity import affinity

REQUIRED, PREFERRED = (f"{word}DuringSchedulingIgnoredDuringExecution" for word in ("required", "preferred"))


def expression(key: str, *values: str) -> dict[str, Any]:
    return {"key": key, "operator": "In", "values": list(values)}


def placement(*terms: dict[str, Any], pack_by: tuple[str, ...] | None = None) -> Placement:
    return Placement(node_selector={}, resources={}, tolerations=(), node_affinity=terms or None, pack_by=pack_by)


def test_a_job_without_requirements_has_none() -> None:
    assert affinity(placement(), None, {}) == {}


def test_one_term_of_the_accelerator_and_one_of_the_job_hold() -> None:
    gpu = [{"matchExpressions": [expression("gpu", name)]} for name in ("T4", "T4-16GB")]
    zones = [{"matchExpressions": [expression("zone", name)]} for name in ("a", "b")]
    preferred = [{"weight": 1, "preference": {"matchExpressions": [expression("disk", "fast")]}}]
    own = {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": zones}, PREFERRED: preferred}}
    found = affinity(placement(*gpu), own, {})["nodeAffinity"]
    terms = [
        [(each["key"], *each["values"]) for each in term["matchExpressions"]]
        for term in found[REQUIRED]["nodeSelectorTerms"]
    ]
    assert terms == [[("gpu", gpu_name), ("zone", zone)] for gpu_name in ("T4", "T4-16GB") for zone in ("a", "b")]
    assert found[PREFERRED] == preferred


def test_workers_near_one_another_are_a_preference_beside_the_job_s_own() -> None:
    apart = [{"topologyKey": "host", "namespaceSelector": {}, "labelSelector": {"matchLabels": {"app": "other"}}}]
    own = [{"weight": 7, "podAffinityTerm": {"topologyKey": "rack"}}]
    given = {"podAffinity": {PREFERRED: own}, "podAntiAffinity": {REQUIRED: apart}}
    found = affinity(placement(pack_by=("host", "block")), given, {"job": "a"})
    *near, last = found["podAffinity"][PREFERRED]
    assert [(each["weight"], each["podAffinityTerm"]["topologyKey"]) for each in near] == [(100, "host"), (50, "block")]
    assert (last, found["podAntiAffinity"]) == (own[0], {REQUIRED: apart})
