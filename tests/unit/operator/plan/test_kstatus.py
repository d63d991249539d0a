"""Every planned status is read by kstatus (Flux, `helm --wait`) as InProgress, Current or Failed, as the job is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hack.crd import custom_resource_definition
from mptraining_api.status import JobStatus
from mptraining_operator.jobs.plan.plan import plan
from tests.unit.operator.plan.test_plan import BASE, cases, seen


def kstatus(generation: int, status: dict[str, Any]) -> str:
    """Return the status that sigs.k8s.io/cli-utils computes for a custom resource that is not being deleted.

    pkg/kstatus/status: checkGeneration, then the conditions Reconciling and Stalled in their order (generic.go), then
    Ready; a resource with none of them is Current (status.go).
    """
    if "observedGeneration" in status and status["observedGeneration"] != generation:
        return "InProgress"
    conditions = status.get("conditions", ())
    for condition in conditions:
        if condition["type"] == "Reconciling" and condition["status"] == "True":
            return "InProgress"
        if condition["type"] == "Stalled" and condition["status"] == "True":
            return "Failed"
    ready = [condition["status"] for condition in conditions if condition["type"] == "Ready"]
    return "InProgress" if ready and ready[0] != "True" else "Current"


@pytest.mark.parametrize(("file", "case"), cases())
def test_a_planned_status_is_read_as_the_job_is(file: Path, case: dict[str, Any]) -> None:
    snapshot = seen(case["seen"])
    status = plan(snapshot, BASE + case.get("now", 60)).status
    if status is None:
        return
    document = status.to_document()
    ended = {each["type"] for each in document["conditions"] if each["status"] == "True"}
    expected = "Current" if "Complete" in ended else "Failed" if "Failed" in ended else "InProgress"
    assert kstatus(snapshot.generation, document) == expected
    assert ("Finished" in ended) == (expected != "InProgress")


def test_a_job_that_no_operator_has_seen_is_in_progress() -> None:
    """The API server returns the schema's default of the status."""
    version = custom_resource_definition()["spec"]["versions"][0]
    default = version["schema"]["openAPIV3Schema"]["properties"]["status"]["default"]
    assert kstatus(1, default) == "InProgress"
    assert JobStatus.parse(default).observed_generation == -1
    assert kstatus(1, {}) == "Current"


@pytest.mark.parametrize(
    ("type", "status", "expected"),
    [("Complete", {"phase": "Succeeded"}, "Current"), ("Failed", {"phase": "Failed"}, "Failed")],
)
def test_an_edit_of_a_finished_job_is_observed(type: str, status: dict[str, Any], expected: str) -> None:
    """spec.runPolicy.suspend of a finished job changes nothing, but kstatus waits for observedGeneration."""
    ended = {"status": "True", "reason": "Why", "message": "m", "lastTransitionTime": "2026-01-01T00:00:50Z"}
    stalled = [{"type": "Stalled", **ended}] if type == "Failed" else []
    status = status | {
        "observedGeneration": 1,
        "currentAttempt": 1,
        "conditions": [{"type": type, **ended}, *stalled, {"type": "Finished", **ended}],
    }
    snapshot = seen({"status": status, "generation": 2, "spec": {"runPolicy": {"suspend": True}}})
    after = plan(snapshot, BASE + 60).status
    assert after is not None
    assert kstatus(2, after.to_document()) == expected
    assert after == JobStatus.parse(status | {"observedGeneration": 2})
