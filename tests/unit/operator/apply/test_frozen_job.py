"""The resolved job that attempt 1 froze: all attempts use it, and no other text."""

from __future__ import annotations

import pytest

from mptraining_api import outcomes
from mptraining_api.kubernetes_api import BATCH_JOBS, CONFIG_MAPS, JOBS
from mptraining_api.resolved_job import Placement, ResolvedMachine
from mptraining_api.status import JobStatus
from mptraining_operator.children import NotCreated
from mptraining_operator.plan import conditions
from mptraining_operator.plan.actions import EndAttempt, ReadJobFile, StartAttempt
from mptraining_operator.resources import job_objects
from tests.fakes import Clock
from tests.unit.operator.api_objects import raw_batch_job, seen_batch_job, version_of
from tests.unit.operator.apply.applied_job import KEY, QUOTA, STARTED, Bench


def test_the_frozen_job_of_a_config_map_goes_before_the_planned_one(bench: Bench, large: None) -> None:
    bench.apply(status=JobStatus(current_attempt=1))
    frozen = bench.job.model_copy(update={"image": "trainer:0"})
    bench.api.put(CONFIG_MAPS, job_objects.config_map(bench.owner, frozen.to_json()))
    assert bench.start()
    assert bench.lookups.job_text == frozen.to_json()
    assert ("create", "jobs", "flowers-1") not in bench.api.calls
    assert not bench.apply(actions=(StartAttempt(1, frozen),))
    assert ("create", "jobs", "flowers-1") in bench.api.calls


def test_a_frozen_job_that_cannot_be_read(bench: Bench, large: None) -> None:
    bench.apply(status=JobStatus(current_attempt=1))
    body = job_objects.config_map(bench.owner, bench.text)
    body["data"]["job.json"] = '{"version": 99}'
    bench.api.put(CONFIG_MAPS, body)
    assert bench.start()
    assert bench.refused[0] == "Refused"
    assert "another version" in bench.refused[2]


def test_an_attempt_with_an_image_of_its_own_keeps_the_frozen_job(bench: Bench) -> None:
    bench.start()
    pinned = "registry.example/trainer@sha256:0123"
    bench.apply(actions=(StartAttempt(2, bench.job, image=pinned),))
    created = bench.api.find(BATCH_JOBS, "team", "flowers-2")
    assert created["spec"]["template"]["spec"]["containers"][0]["image"] == pinned
    assert job_objects.job_text(created) == bench.text


def test_a_forged_config_map_before_the_first_attempt_starts_nothing(bench: Bench, large: None) -> None:
    """A user who submits jobs may create ConfigMaps, and knows the job's uid: a suspended job leaves time for it."""
    forged = bench.job.model_copy(update={"image": "evil.org/miner:1", "processes": 64})
    bench.api.put(CONFIG_MAPS, job_objects.config_map(bench.owner, forged.to_json()))
    assert bench.start()
    assert bench.lookups.job_text == ""
    assert bench.refused[:2] == ("NameTaken", "ConfigMap flowers-job")
    assert "does not match status.jobDigest. Delete the ConfigMap" in bench.refused[2]
    assert ("create", "jobs", "flowers-1") not in bench.api.calls


def test_a_config_map_that_was_replaced_before_the_first_status_is_not_used(
    bench: Bench, clock: Clock, large: None
) -> None:
    """After a restart of the operator the Indexed Job has the digest."""
    assert not bench.start()
    forged = bench.job.model_copy(update={"image": "evil.org/miner:1"})
    bench.api.put(CONFIG_MAPS, job_objects.config_map(bench.owner, forged.to_json()))
    again = Bench(bench.api, clock, bench.api.get(JOBS, "team", "flowers"))
    stored = bench.api.get(BATCH_JOBS, "team", "flowers-1")
    again.cache.put_batch_job(KEY, version_of(stored), seen_batch_job(stored))
    with pytest.raises(NotCreated, match=r"ConfigMap flowers-job: job\.json does not match"):
        again.apply(actions=(ReadJobFile(),))
    bench.api.put(CONFIG_MAPS, job_objects.config_map(bench.owner, bench.text))
    assert again.apply(actions=(ReadJobFile(),))
    assert again.lookups.job_text == bench.text


def test_a_job_that_another_process_created_is_the_frozen_one(bench: Bench, clock: Clock) -> None:
    """The other process had other settings, and was killed before it wrote the status."""
    frozen = bench.job.model_copy(update={"image": "trainer:0"})
    assert not bench.apply(actions=(StartAttempt(1, frozen),))
    again = Bench(bench.api, clock, bench.api.get(JOBS, "team", "flowers"))
    assert not again.start()
    assert again.lookups.job_text == frozen.to_json()


def test_pods_never_get_the_text_of_another_job_than_their_own(bench: Bench) -> None:
    """A status that was emptied makes a changed spec a first attempt again, while the frozen text is remembered."""
    assert not bench.start()
    changed = bench.job.model_copy(update={"image": "trainer:0"})
    assert not bench.apply(status=STARTED, actions=(StartAttempt(2, changed),))
    created = bench.api.get(BATCH_JOBS, "team", "flowers-2")
    assert job_objects.job_text(created) == changed.to_json()
    status = bench.snapshot.status
    assert status is not None
    assert status.job_digest == job_objects.job_digest(changed.to_json())


@pytest.mark.parametrize("ended", ["", "one more Job", "job over"])
def test_the_frozen_job_is_kept_when_its_last_job_is_deleted_before_the_end(bench: Bench, ended: str) -> None:
    bench.start()
    uid = bench.snapshot.batch_jobs[0].uid
    status = STARTED
    if ended == "one more Job":
        bench.cache.put_batch_job(KEY, 999, seen_batch_job(raw_batch_job("flowers-2", uid="other", attempt=2)))
    if ended == "job over":
        status = conditions.with_finished(STARTED, outcomes.NO_PROGRESS, "", bench.clock.now, 1)
    assert not bench.apply(status=status, actions=(EndAttempt("flowers-1", uid),))
    kept = bench.api.find(CONFIG_MAPS, "team", "flowers-job")
    assert (kept is not None) == (ended == "")
    if kept is not None:
        assert (kept["data"], kept["immutable"]) == ({"job.json": bench.text}, True)
        assert bench.apply(actions=(ReadJobFile(),))
        assert bench.lookups.job_text == bench.text


def test_a_config_map_that_a_quota_refuses_keeps_no_machine(bench: Bench) -> None:
    bench.start()
    uid = bench.snapshot.batch_jobs[0].uid
    bench.api.refuse("create", CONFIG_MAPS, QUOTA)
    assert not bench.apply(actions=(EndAttempt("flowers-1", uid),))
    assert bench.api.find(BATCH_JOBS, "team", "flowers-1") is None


def test_somebody_elses_config_map_is_no_job_file(bench: Bench) -> None:
    body = job_objects.config_map(job_objects.Owner("team", "flowers", "earlier", "2026-11-23T09:00:00Z"), bench.text)
    bench.api.put(CONFIG_MAPS, body)
    assert bench.apply(actions=(ReadJobFile(),))
    assert (bench.lookups.job_text, bench.lookups.job_file_missing) == ("", True)


@pytest.mark.parametrize("size", ["small", "large"])
def test_an_attempt_on_an_alternative_keeps_the_frozen_job_and_runs_on_its_machine(
    bench: Bench, size: str, request: pytest.FixtureRequest
) -> None:
    if size == "large":
        request.getfixturevalue("large")
    job = bench.job
    names_of_machine = {name: getattr(job, name) for name in ResolvedMachine.model_fields}
    spot = ResolvedMachine(
        **names_of_machine | {"placement": Placement(node_selector={"pool": "spot"}, resources={}, tolerations=())}
    )
    frozen = job.model_copy(update={"alternatives": (spot,)})
    assert not bench.apply(actions=(StartAttempt(1, frozen),))
    assert not bench.apply(status=STARTED, actions=(StartAttempt(2, frozen, machine=1),))
    first, second = (bench.api.get(BATCH_JOBS, "team", f"flowers-{number}") for number in (1, 2))
    digest = job_objects.job_digest(frozen.to_json())
    assert [each["metadata"]["annotations"]["mptraining.dev/job-digest"] for each in (first, second)] == [digest] * 2
    assert [each.machine for each in bench.snapshot.batch_jobs] == [0, 1]
    pod = second["spec"]["template"]["spec"]
    assert pod["nodeSelector"] == {"pool": "spot"}
    assert {"name": "MPTRAINING_MACHINE", "value": "1"} in pod["containers"][0]["env"]
    assert bench.lookups.job_text == frozen.to_json()
    status = bench.snapshot.status
    assert status is not None
    assert status.job_digest == digest


def test_the_frozen_job_is_read_from_the_newest_job(bench: Bench, clock: Clock) -> None:
    assert not bench.start()
    again = Bench(bench.api, clock, bench.api.get(JOBS, "team", "flowers"))
    stored = bench.api.get(BATCH_JOBS, "team", "flowers-1")
    again.cache.put_batch_job(KEY, version_of(stored), seen_batch_job(stored))
    bench.api.calls.clear()
    assert again.apply(actions=(ReadJobFile(),))
    assert again.lookups.job_text == again.text
    assert bench.api.calls == [("get", "jobs", "flowers-1")]
