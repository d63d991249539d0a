"""The status is written first, only where it changes, and never over another writer."""

from __future__ import annotations

import pytest

from mptraining_api.kubernetes_api import JOBS, ApiProblem
from mptraining_api.status import EventRecord, JobStatus, Phase, Progress
from mptraining_operator.jobs.apply import status_changes
from mptraining_operator.jobs.plan import conditions
from mptraining_operator.jobs.plan.actions import Plan, StartAttempt
from mptraining_operator.jobs.plan.snapshot import Limits
from mptraining_operator.jobs.watch import parse
from tests.unit.operator.apply.applied_job import KEY, SHARED, STARTED, Bench


def test_the_status_is_written_before_anything_is_created(bench: Bench) -> None:
    said = (EventRecord("Started", "attempt 1"),)
    assert bench.apply(status=STARTED, job_text=bench.text, event_records=said), "the next plan follows at once"
    assert bench.api.calls == [("patch", "mptrainingjobs", "flowers")]
    # The cache has the operator's own writes at once.
    assert (bench.snapshot.status, bench.lookups.job_text) == (STARTED, bench.text)
    assert not bench.apply(actions=(StartAttempt(1, bench.job),))
    created = [("create", "configmaps", "flowers-job"), *SHARED, ("create", "jobs", "flowers-1")]
    assert bench.api.calls[1:] == created
    assert bench.said == ["Started"]
    assert len(bench.counted) == 2
    assert bench.started == [("job-1", 1)]
    assert [job.name for job in bench.snapshot.batch_jobs] == ["flowers-1"]


def test_a_conflict_on_the_status_stops_the_plan(bench: Bench) -> None:
    seen = bench.snapshot
    raw = bench.api.get(JOBS, "team", "flowers")
    bench.api.put(JOBS, {**raw, "status": {"phase": "Suspended"}})
    bench.api.calls.clear()
    plan = Plan(status=STARTED, job_text=bench.text, event_records=(EventRecord("Started", ""),))
    assert bench.applier.apply(plan, seen)
    assert bench.api.calls == [("patch", "mptrainingjobs", "flowers"), ("get", "mptrainingjobs", "flowers")]
    assert (bench.said, bench.counted, bench.lookups.job_text) == ([], [], None)
    assert bench.snapshot.status == JobStatus(phase=Phase.SUSPENDED)


@pytest.mark.parametrize("gone_at", ["patch", "get"])
def test_a_job_that_is_gone_is_forgotten(bench: Bench, gone_at: str) -> None:
    seen = bench.snapshot
    if gone_at == "get":
        bench.api.refuse("patch", JOBS, ApiProblem(409, "Conflict", "modified"))
    del bench.api.objects[("mptrainingjobs", "team", "flowers")]
    assert bench.applier.apply(Plan(status=STARTED), seen)
    assert bench.cache.snapshot(KEY, Limits()) is None


def test_only_what_changes_is_written_and_never_progress() -> None:
    before = JobStatus(phase=Phase.PENDING, current_attempt=1, workers=2, progress=Progress(step=3))
    after = JobStatus(phase=Phase.RUNNING, current_attempt=1)
    assert status_changes(before, after) == {"phase": "Running", "workers": None}
    assert status_changes(before, before) == {}


def test_conditions_of_other_controllers_stay_in_the_status(bench: Bench) -> None:
    """A merge patch replaces the list: it carries what was read, under the resourceVersion of that read."""
    theirs = {
        "type": "kueue.x-k8s.io/Admitted",
        "status": "True",
        "reason": "Admitted",
        "message": "by the queue",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    raw = bench.api.get(JOBS, "team", "flowers")
    bench.cache.put_job(parse.job(bench.api.put(JOBS, {**raw, "status": {"conditions": [theirs]}})))
    assert bench.snapshot.status is not None
    status = conditions.with_waiting(bench.snapshot.status, Phase.PENDING, "Starting", "", 0.0, 1)
    bench.apply(status=status)
    stored = bench.api.get(JOBS, "team", "flowers")["status"]["conditions"]
    assert stored[0] == theirs
    assert [each["type"] for each in stored] == ["kueue.x-k8s.io/Admitted", "Running", "Reconciling"]


def test_an_equal_status_is_not_written(bench: Bench) -> None:
    bench.apply(status=STARTED)
    bench.api.calls.clear()
    assert not bench.apply(status=STARTED, event_records=(EventRecord("Said", ""),))
    assert bench.api.calls == []
    assert bench.said == ["Said"]
