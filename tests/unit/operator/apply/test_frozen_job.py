"""The resolved job of all attempts: its digest in the status, its text in one ConfigMap, and no other text."""

from __future__ import annotations

from typing import Any

import pytest

from mptraining_api.kubernetes_api import BATCH_JOBS, CONFIG_MAPS, JOBS
from mptraining_api.resolved_job import Placement, ResolvedMachine
from mptraining_api.status import format_time, parse_time
from mptraining_operator.jobs.children import NotCreated
from mptraining_operator.jobs.plan.actions import ReadJobFile
from mptraining_operator.jobs.resources.job_objects import Owner, config_map, job_digest
from mptraining_operator.jobs.watch import parse
from tests.fakes import Clock
from tests.unit.operator.api_objects import CREATED, raw_job, seen_batch_job, version_of
from tests.unit.operator.apply.applied_job import KEY, QUOTA, STARTED, Bench

REVIEWED = {"serviceAccountName": "reviewed", "env": [{"name": "LEVEL", "value": "reviewed"}]}
EDITED = {"serviceAccountName": "edited", "env": [{"name": "LEVEL", "value": "edited"}]}


def edit(bench: Bench, **spec: Any) -> None:
    raw = bench.api.get(JOBS, "team", "flowers")
    edited = {**raw, "metadata": {**raw["metadata"], "generation": 2}, "spec": {**raw["spec"], **spec}}
    bench.cache.put_job(parse.job(bench.api.put(JOBS, edited)))


def fail(bench: Bench, name: str) -> None:
    """End the attempt as its Job does when a pod fails, and let the backoff pass."""
    raw = bench.api.get(BATCH_JOBS, "team", name)
    failed = {"type": "Failed", "status": "True", "lastTransitionTime": format_time(bench.clock.now)}
    raw["metadata"]["resourceVersion"] = str(bench.api.version)
    stored = bench.api.put(BATCH_JOBS, {**raw, "status": {"conditions": [failed]}})
    bench.cache.put_batch_job(KEY, version_of(stored), seen_batch_job(stored))
    for _ in range(2):
        bench.clock.now += 100
        bench.reconcile()


def pods(bench: Bench, name: str) -> tuple[Any, ...]:
    spec = bench.api.get(BATCH_JOBS, "team", name)["spec"]
    pod = spec["template"]["spec"]
    (level,) = [each["value"] for each in pod["containers"][0]["env"] if each["name"] == "LEVEL"]
    return spec["parallelism"], pod["serviceAccountName"], level, pod.get("priorityClassName")


@pytest.mark.parametrize("restart", [False, True])
def test_a_spec_that_is_edited_a_second_after_it_was_applied_changes_no_attempt(
    api: Any, clock: Clock, restart: bool
) -> None:
    """The API server refuses most edits once the intent is written; these are all that could pass."""
    clock.now = parse_time(CREATED)
    bench = Bench(api, clock, raw_job(podTemplate=REVIEWED, scheduling={"priorityClassName": "low"}))
    bench.reconcile()
    clock.now += 1
    edit(bench, podTemplate=EDITED, workers=1, scheduling={"priorityClassName": "high"})
    if restart:
        bench = bench.restarted()
    bench.reconcile()
    fail(bench, "flowers-1")
    assert pods(bench, "flowers-1") == pods(bench, "flowers-2") == (2, "reviewed", "reviewed", "low")


@pytest.mark.parametrize("stopped_before", ["configmaps", "jobs"])
def test_a_spec_that_is_edited_while_the_operator_is_stopped_between_intent_and_children(
    api: Any, clock: Clock, stopped_before: str
) -> None:
    """Until the ConfigMap exists nothing runs: the status gets the digest of what is frozen then."""
    bench = Bench(api, clock, raw_job(podTemplate=REVIEWED))

    def stop(verb: str, plural: str, name: str) -> None:
        if (verb, plural) == ("create", stopped_before):
            raise ConnectionError

    api.before = stop
    with pytest.raises(ConnectionError):
        bench.reconcile()
    api.before = lambda verb, plural, name: None
    edit(bench, podTemplate=EDITED)
    bench = bench.restarted()
    bench.reconcile()
    expected = "edited" if stopped_before == "configmaps" else "reviewed"
    assert pods(bench, "flowers-1") == (2, expected, expected, None)
    text = api.get(CONFIG_MAPS, "team", "flowers-job")["data"]["job.json"]
    status = bench.snapshot.status
    assert status is not None
    assert (status.job_digest, status.current_attempt) == (job_digest(text), 1)


def test_a_forged_config_map_starts_nothing(bench: Bench) -> None:
    """A user who submits jobs may create ConfigMaps, and knows the job's uid."""
    forged = bench.job.model_copy(update={"image": "evil.org/miner:1", "workers": 64})
    bench.api.put(CONFIG_MAPS, config_map(bench.owner, forged.to_json()))
    for number in (1, 2):
        assert bench.start(number)
        assert bench.refused[:2] == ("NameTaken", "ConfigMap flowers-job")
        assert "does not match status.jobDigest. Delete the ConfigMap" in bench.refused[2]
        assert ("create", "jobs", f"flowers-{number}") not in bench.api.calls
        bench.clock.now += 1


def test_a_config_map_that_was_replaced_or_that_this_version_cannot_read_is_not_used(bench: Bench) -> None:
    for text, message in (("{}", "does not match"), ('{"version": 99}', "another version of the operator")):
        digest = job_digest(text if "version" in text else bench.text)
        bench.apply(status=STARTED.model_copy(update={"job_digest": digest}))
        bench.api.put(CONFIG_MAPS, config_map(bench.owner, text))
        with pytest.raises(NotCreated, match=rf"ConfigMap flowers-job: job\.json .*{message}"):
            bench.apply(actions=(ReadJobFile(),))


def test_after_a_restart_it_is_read_from_its_config_map(bench: Bench) -> None:
    bench.reconcile()
    again = bench.restarted()
    bench.api.calls.clear()
    assert again.apply(actions=(ReadJobFile(),))
    assert again.lookups.job_text == again.text
    assert bench.api.calls == [("get", "configmaps", "flowers-job")]


def test_the_config_map_is_immutable_and_is_created_again_for_the_next_attempt(bench: Bench) -> None:
    for number in (1, 2):
        assert not bench.start(number)
        kept = bench.api.objects.pop(("configmaps", "team", "flowers-job"))
        assert (kept["data"], kept["immutable"]) == ({"job.json": bench.text}, True)


def test_a_config_map_that_a_quota_refuses(bench: Bench) -> None:
    bench.api.refuse("create", CONFIG_MAPS, QUOTA)
    assert bench.start()
    assert bench.refused == ("Refused", "ConfigMap flowers-job", "exceeded quota: jobs")
    assert bench.api.find(BATCH_JOBS, "team", "flowers-1") is None


def test_somebody_elses_config_map_is_no_job_file(bench: Bench) -> None:
    bench.api.put(CONFIG_MAPS, config_map(Owner("team", "flowers", "earlier", "2026-11-23T09:00:00Z"), bench.text))
    assert bench.apply(actions=(ReadJobFile(),))
    assert bench.lookups.job_text == ""


def test_an_attempt_with_an_image_and_a_machine_of_its_own_mounts_the_same_job(bench: Bench) -> None:
    job = bench.job
    first = {name: getattr(job, name) for name in ResolvedMachine.model_fields}
    placement = Placement(node_selector={"pool": "spot"}, resources={}, tolerations=())
    frozen = job.model_copy(update={"alternatives": (ResolvedMachine(**first | {"placement": placement}),)})
    pinned = "registry.example/trainer@sha256:0123"
    assert not bench.start(job=frozen, image=pinned)
    assert not bench.start(2, frozen, machine=1)
    pods = [bench.api.get(BATCH_JOBS, "team", f"flowers-{n}")["spec"]["template"]["spec"] for n in (1, 2)]
    assert pods[0]["containers"][0]["image"] == pinned
    assert pods[1]["nodeSelector"] == {"pool": "spot"}
    assert {"name": "MPTRAINING_MACHINE", "value": "1"} in pods[1]["containers"][0]["env"]
    assert [each.machine for each in bench.snapshot.batch_jobs] == [0, 1]
    for pod in pods:
        assert {"name": "mptraining-job", "configMap": {"name": "flowers-job"}} in pod["volumes"]
    assert bench.api.get(CONFIG_MAPS, "team", "flowers-job")["data"] == {"job.json": frozen.to_json()}
