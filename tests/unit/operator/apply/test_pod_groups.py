"""The PodGroup of an attempt is created after its Job, also when the operator stopped between the two."""

from __future__ import annotations

from typing import Any

import pytest

from mptraining_api.kubernetes_api import BATCH_JOBS, ApiProblem, Resource
from mptraining_operator.jobs.plan.actions import CreatePodGroup
from mptraining_operator.jobs.resources.pod_groups import VOLCANO
from tests.fakes import Clock
from tests.unit.operator.api_objects import raw_job
from tests.unit.operator.apply.applied_job import Bench

GROUPS = Resource(VOLCANO.group, VOLCANO.version, VOLCANO.plural)


@pytest.fixture
def gang(api: Any, clock: Clock) -> Bench:
    """A job of two workers for Volcano, which is installed."""
    api.served.add(VOLCANO.api_version)
    template = {"annotations": {"scheduling.volcano.sh/queue-name": "research"}}
    return Bench(api, clock, raw_job(workers=2, scheduling={"gang": "Volcano"}, podTemplate=template))


def test_the_job_then_its_pod_group(gang: Bench) -> None:
    gang.start()
    assert gang.api.written()[-2:] == [("create", "jobs", "flowers-1"), ("create", "podgroups", "flowers-1")]
    group = gang.api.find(GROUPS, "team", "flowers-1")
    assert group["spec"] == {"minMember": 2, "queue": "research"}
    (batch_job,) = gang.snapshot.batch_jobs
    assert group["metadata"]["ownerReferences"][0]["uid"] == batch_job.uid
    assert (batch_job.gang, gang.lookups.pod_group_of) == (VOLCANO.api_version, batch_job.uid)


def test_the_operator_stopped_before_the_pod_group(gang: Bench) -> None:
    gang.api.refuse("create", GROUPS, ApiProblem(0, "Unknown", "no answer"))
    with pytest.raises(ApiProblem):
        gang.start()
    (batch_job,) = gang.snapshot.batch_jobs
    gang.apply(actions=(CreatePodGroup(batch_job.name, batch_job.uid),))
    assert gang.api.find(GROUPS, "team", "flowers-1") is not None
    assert gang.lookups.pod_group_of == batch_job.uid
    # As after a restart, which does not know that it exists.
    gang.apply(actions=(CreatePodGroup(batch_job.name, batch_job.uid),))
    assert gang.lookups.refusal is None


def test_a_pod_group_that_is_refused(gang: Bench) -> None:
    gang.api.refuse("create", GROUPS, ApiProblem(403, "Forbidden", "podgroups is forbidden"))
    assert gang.start()
    assert gang.refused == ("Refused", "PodGroup flowers-1", "podgroups is forbidden")
    assert gang.lookups.pod_group_of == ""
    assert gang.api.find(BATCH_JOBS, "team", "flowers-1") is not None


def test_a_gang_that_the_cluster_does_not_serve_creates_nothing(gang: Bench) -> None:
    gang.api.served.clear()
    assert gang.start()
    assert gang.refused[0] == "NoGang"
    assert gang.api.written() == []


def test_what_is_served_is_read_once_a_minute(gang: Bench, clock: Clock) -> None:
    gang.api.served.clear()
    gang.start()
    gang.api.served.add(VOLCANO.api_version)
    gang.start()
    assert gang.api.written() == []
    clock.now += 61
    gang.start()
    assert gang.api.find(GROUPS, "team", "flowers-1") is not None
