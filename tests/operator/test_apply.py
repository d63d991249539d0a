"""Plans applied to an API server in memory: the status first, children exactly once, refusals as messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from mptraining_api import outcomes
from mptraining_api.kubernetes_api import (
    BATCH_JOBS,
    CONFIG_MAPS,
    EVENTS,
    JOBS,
    NETWORK_POLICIES,
    NODES,
    PODS,
    SERVICES,
    ApiProblem,
)
from mptraining_api.resolve.resolve import ClusterSettings, resolve
from mptraining_api.resolved_job import ResolvedJob
from mptraining_api.status import JobStatus, Phase, Progress
from mptraining_operator.apply import Applier, status_changes
from mptraining_operator.children import NotCreated
from mptraining_operator.namespace_objects import NamespaceObjects
from mptraining_operator.plan import conditions
from mptraining_operator.plan.actions import (
    AllowPeers,
    DeleteJob,
    DeletePod,
    EndAttempt,
    EventRecord,
    ForgetAttempt,
    Plan,
    ReadEvents,
    ReadJobFile,
    ReadNode,
    StartAttempt,
)
from mptraining_operator.plan.snapshot import Key, Limits, Lookups, SeenWarning, Snapshot
from mptraining_operator.resources import job_objects
from mptraining_operator.resources.environment import PodSettings
from mptraining_operator.watch import parse
from mptraining_operator.watch.cache import Cache, VersionedSnapshot
from tests.fakes import Clock
from tests.operator.api_objects import seen_batch_job, seen_pod, version_of

Make = Callable[..., dict[str, Any]]
KEY = Key("team", "flowers")
QUOTA = ApiProblem(403, "Forbidden", "exceeded quota: jobs")


class Bench:
    """One job in the API server and in the cache, and the result of applying a plan."""

    def __init__(self, api: Any, clock: Clock, raw: dict[str, Any]) -> None:
        self.api = api
        self.clock = clock
        self.cache = Cache(clock)
        self.said: list[str] = []
        self.counted: list[Plan] = []
        self.started: list[tuple[str, int]] = []
        self.cache.put_job(parse.job(api.put(JOBS, raw)))
        self.applier = Applier(
            api,
            self.cache,
            pod_settings=lambda owner: PodSettings(),
            record_event=lambda snapshot, announcement: self.said.append(announcement.reason),
            written=self.counted.append,
            clock=clock,
            namespace_objects=NamespaceObjects(api, clock),
            started=lambda snapshot, batch_job: self.started.append((snapshot.uid, batch_job.attempt)),
        )

    @property
    def seen(self) -> VersionedSnapshot:
        found = self.cache.versioned_snapshot(KEY, Limits())
        assert found is not None
        return found

    @property
    def snapshot(self) -> Snapshot:
        return self.seen.snapshot

    @property
    def lookups(self) -> Lookups:
        return self.snapshot.lookups

    @property
    def job(self) -> ResolvedJob:
        job = self.snapshot.job
        assert job is not None
        return resolve(job, ClusterSettings(default_image="trainer:1"))

    @property
    def text(self) -> str:
        return self.job.to_json()

    @property
    def owner(self) -> job_objects.Owner:
        return job_objects.Owner("team", "flowers", "job-1", "2026-11-23T10:00:00Z")

    def apply(self, **plan: Any) -> bool:
        return self.applier.apply(Plan(**plan), self.seen)

    def start(self, number: int = 1) -> bool:
        return self.apply(actions=(StartAttempt(number, self.job),))


@pytest.fixture
def bench(api: Any, clock: Clock, raw_job: Make) -> Bench:
    return Bench(api, clock, raw_job())


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """No job fits into a pod template."""
    monkeypatch.setattr(job_objects, "_LARGEST_ANNOTATION", 0)


STARTED = JobStatus(phase=Phase.PENDING, current_attempt=1)
SHARED = [("create", "services", "mptraining-workers"), ("create", "networkpolicies", "mptraining-deny-ingress")]


def test_the_status_is_written_before_anything_is_created(bench: Bench) -> None:
    said = (EventRecord("Started", "attempt 1"),)
    assert not bench.apply(status=STARTED, actions=(StartAttempt(1, bench.job),), event_records=said)
    assert bench.api.calls == [("patch", "mptrainingjobs", "flowers"), *SHARED, ("create", "jobs", "flowers-1")]
    assert bench.said == ["Started"]
    assert len(bench.counted) == 1
    assert bench.started == [("job-1", 1)]
    # The cache has the operator's own writes at once; the frozen job's digest is in the status before the ConfigMap
    # exists.
    assert bench.snapshot.status == STARTED.model_copy(
        update={"job_digest": job_objects.job_digest(bench.job.to_json())}
    )
    assert [job.name for job in bench.snapshot.batch_jobs] == ["flowers-1"]
    assert bench.lookups.job_text == bench.text


def test_a_conflict_on_the_status_stops_the_plan(bench: Bench) -> None:
    seen = bench.seen
    raw = bench.api.get(JOBS, "team", "flowers")
    bench.api.put(JOBS, {**raw, "status": {"phase": "Suspended"}})
    bench.api.calls.clear()
    plan = Plan(status=STARTED, actions=(StartAttempt(1, bench.job),), event_records=(EventRecord("Started", ""),))
    assert bench.applier.apply(plan, seen)
    assert bench.api.calls == [("patch", "mptrainingjobs", "flowers"), ("get", "mptrainingjobs", "flowers")]
    assert (bench.said, bench.counted) == ([], [])
    assert bench.snapshot.status == JobStatus(phase=Phase.SUSPENDED)


@pytest.mark.parametrize("gone_at", ["patch", "get"])
def test_a_job_that_is_gone_is_forgotten(bench: Bench, gone_at: str) -> None:
    seen = bench.seen
    if gone_at == "get":
        bench.api.refuse("patch", JOBS, ApiProblem(409, "Conflict", "modified"))
    del bench.api.objects[("mptrainingjobs", "team", "flowers")]
    assert bench.applier.apply(Plan(status=STARTED), seen)
    assert bench.cache.versioned_snapshot(KEY, Limits()) is None


def test_other_refusals_of_the_status_come_through(bench: Bench) -> None:
    bench.api.refuse("patch", JOBS, ApiProblem(429, "TooManyRequests", "slow down", 7.0))
    with pytest.raises(ApiProblem) as caught:
        bench.apply(status=STARTED, actions=(StartAttempt(1, bench.job),))
    assert caught.value.retry_after == 7.0
    assert bench.api.written() == [("patch", "mptrainingjobs", "flowers")]


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


def test_a_second_start_creates_nothing_twice(bench: Bench) -> None:
    bench.start()
    bench.api.calls.clear()
    assert not bench.start()
    assert bench.api.written() == [("create", "jobs", "flowers-1")]
    # An object that is known to be the job's own is not read again; the Indexed Job is.
    assert [call for call in bench.api.calls if call[0] == "get"] == [("get", "jobs", "flowers-1")]
    assert bench.lookups.refusal is None
    assert len([key for key in bench.api.objects if key[0] == "jobs"]) == 1


def test_after_a_restart_the_children_are_looked_at(bench: Bench, clock: Clock) -> None:
    bench.start()
    raw = bench.api.get(JOBS, "team", "flowers")
    again = Bench(bench.api, clock, raw)
    bench.api.calls.clear()
    assert not again.start()
    assert [call[1] for call in bench.api.calls if call[0] == "get"] == [
        "services",
        "networkpolicies",
        "jobs",
    ]
    assert again.lookups.job_text == again.text


def test_the_frozen_job_of_a_config_map_goes_before_the_planned_one(bench: Bench, large: None) -> None:
    bench.apply(status=JobStatus(current_attempt=1))
    frozen = bench.job.model_copy(update={"image": "trainer:0"})
    bench.api.put(CONFIG_MAPS, job_objects.config_map(bench.owner, frozen.to_json()))
    assert bench.start()
    assert bench.lookups.job_text == frozen.to_json()
    assert ("create", "jobs", "flowers-1") not in bench.api.calls
    assert not bench.apply(actions=(StartAttempt(1, frozen),))
    assert ("create", "jobs", "flowers-1") in bench.api.calls


def test_a_service_of_another_client_with_the_shared_name(bench: Bench) -> None:
    bench.api.put(SERVICES, {"metadata": {"name": "mptraining-workers", "namespace": "team"}, "spec": {}})
    assert bench.start()
    refusal = bench.lookups.refusal
    assert refusal is not None
    assert (refusal.kind, refusal.child) == ("NameTaken", "namespace team")
    assert "Service mptraining-workers exists already and is not the operator's" in refusal.message


def test_workers_of_a_job_reach_each_other(bench: Bench) -> None:
    assert not bench.apply(actions=(AllowPeers(),))
    assert bench.lookups.peers_allowed
    assert bench.api.find(NETWORK_POLICIES, "team", "flowers-workers") is not None
    bench.api.calls.clear()
    assert not bench.apply(actions=(AllowPeers(),))
    assert bench.api.calls == [], "it is known to exist"


def test_the_rule_of_a_deleted_job_stays_until_its_workers_have_ended(bench: Bench, raw_pod: Make) -> None:
    bench.apply(actions=(AllowPeers(),))
    bench.cache.put_pod(KEY, 30, seen_pod(raw_pod()))
    bench.cache.remove_job(KEY, "job-1", 99)
    bench.applier.clean_up(KEY)
    assert bench.api.find(NETWORK_POLICIES, "team", "flowers-workers") is not None
    bench.cache.put_pod(KEY, 31, seen_pod(raw_pod(phase="Succeeded")))
    bench.applier.clean_up(KEY)
    assert bench.api.find(NETWORK_POLICIES, "team", "flowers-workers") is None


def test_a_frozen_job_that_cannot_be_read(bench: Bench, large: None) -> None:
    bench.apply(status=JobStatus(current_attempt=1))
    body = job_objects.config_map(bench.owner, bench.text)
    body["data"]["job.json"] = '{"version": 99}'
    bench.api.put(CONFIG_MAPS, body)
    assert bench.start()
    refusal = bench.lookups.refusal
    assert refusal is not None
    assert refusal.kind == "Refused"
    assert "another version" in refusal.message


@pytest.mark.parametrize(
    ("controller", "words"),
    [
        ({"kind": "MPTrainingJob", "name": "flowers", "uid": "earlier", "controller": True}, "being deleted"),
        ({"kind": "Deployment", "name": "web", "uid": "x", "controller": True}, "Deployment 'web'"),
        ({"kind": "MPTrainingJob", "name": "flowers", "uid": "job-1"}, "without a controller"),
    ],
)
def test_a_name_that_is_taken(bench: Bench, large: None, controller: dict[str, Any], words: str) -> None:
    body = job_objects.config_map(bench.owner, bench.text)
    body["metadata"]["ownerReferences"] = [controller]
    bench.api.put(CONFIG_MAPS, body)
    assert bench.start()
    refusal = bench.lookups.refusal
    assert refusal is not None
    assert (refusal.kind, refusal.child, refusal.at) == ("NameTaken", "ConfigMap flowers-job", bench.clock.now)
    assert words in refusal.message
    assert bench.api.find(BATCH_JOBS, "team", "flowers-1") is None


def test_our_own_child_that_is_being_deleted_is_waited_for(bench: Bench, large: None) -> None:
    body = job_objects.config_map(bench.owner, bench.text)
    body["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    bench.api.put(CONFIG_MAPS, body)
    assert bench.start()
    assert bench.lookups.refusal is not None
    assert "being deleted" in bench.lookups.refusal.message


def test_a_quota_that_refuses_a_child(bench: Bench) -> None:
    bench.api.refuse("create", BATCH_JOBS, QUOTA, times=2)
    assert bench.start()
    refusal = bench.lookups.refusal
    assert refusal is not None
    assert (refusal.kind, refusal.child, refusal.message) == ("Refused", "Job flowers-1", "exceeded quota: jobs")
    bench.clock.now += 10
    assert bench.start()
    assert bench.lookups.refusal is not None
    assert bench.lookups.refusal.at == bench.clock.now
    assert not bench.start()
    assert bench.lookups.refusal is None


def test_a_quota_that_is_full_of_the_very_child(bench: Bench) -> None:
    bench.start()
    bench.api.refuse("create", BATCH_JOBS, QUOTA)
    assert not bench.start()
    assert bench.lookups.refusal is None


@pytest.mark.parametrize(
    ("problem", "kind"),
    [
        (ApiProblem(422, "Invalid", "spec.template", causes=("FieldValueInvalid", "FieldValueRequired")), "Invalid"),
        (ApiProblem(400, "BadRequest", "quantities must match"), "Invalid"),
        (ApiProblem(413, "RequestEntityTooLarge", "limit is 3145728"), "Invalid"),
        # Of an admission webhook, which gives no reason, and of a ValidatingAdmissionPolicy, whose cause has none.
        (ApiProblem(400, "Unknown", 'admission webhook "policy" denied the request'), "Refused"),
        (ApiProblem(422, "Invalid", "denied request: failed expression", causes=("",)), "Refused"),
        (ApiProblem(422, "Unknown", "denied"), "Refused"),
    ],
)
def test_another_refusal_of_a_child(bench: Bench, problem: ApiProblem, kind: str) -> None:
    bench.api.refuse("create", BATCH_JOBS, problem)
    assert bench.start()
    assert bench.lookups.refusal is not None
    assert bench.lookups.refusal.kind == kind


@pytest.mark.parametrize(
    "problem",
    [
        ApiProblem(403, "Forbidden", "unable to create new content", causes=("NamespaceTerminating",)),
        ApiProblem(404, "NotFound", 'namespaces "team" not found'),
    ],
)
def test_a_namespace_that_is_being_deleted_ends_the_job(bench: Bench, problem: ApiProblem) -> None:
    bench.api.refuse("create", SERVICES, problem)
    assert not bench.start()
    assert bench.lookups.refusal is None
    assert bench.api.calls[-1] == ("create", "services", "mptraining-workers")


def test_an_error_of_the_api_server_is_left_to_the_queue(bench: Bench) -> None:
    for status in (0, 429, 500, 503):
        bench.api.refuse("create", SERVICES, ApiProblem(status, "Trouble", "later"))
        with pytest.raises(ApiProblem):
            bench.start()
    assert bench.lookups.refusal is None


def test_a_pod_that_cannot_be_leaves_nothing_behind(bench: Bench) -> None:
    job = bench.job.model_copy(update={"image": None})
    assert bench.apply(actions=(StartAttempt(1, job),))
    refusal = bench.lookups.refusal
    assert refusal is not None
    assert refusal.kind == "Invalid"
    assert "image" in refusal.message
    assert bench.api.calls == []


def test_deletions_are_of_the_uid_that_was_seen(bench: Bench) -> None:
    bench.start()
    uid = bench.snapshot.batch_jobs[0].uid
    assert not bench.apply(actions=(EndAttempt("flowers-1", "another"), ForgetAttempt("flowers-9", "gone")))
    assert bench.api.find(BATCH_JOBS, "team", "flowers-1")
    assert not bench.apply(actions=(EndAttempt("flowers-1", uid),))
    assert bench.api.find(BATCH_JOBS, "team", "flowers-1") is None
    assert not bench.apply(actions=(DeletePod("nobody", "x", "flowers-1", uid), DeleteJob("job-1")))
    assert bench.api.find(JOBS, "team", "flowers") is None


def test_a_pod_whose_job_is_there_after_all_is_left_alone(bench: Bench) -> None:
    """Events of pods may arrive before the event of their Job."""
    bench.start()
    uid = bench.snapshot.batch_jobs[0].uid
    calls = len(bench.api.calls)
    assert bench.apply(actions=(DeletePod("flowers-1-0", "x", "flowers-1", uid),))
    assert [call[0] for call in bench.api.calls[calls:]] == ["get"]


@pytest.mark.parametrize("lost", ["label", "owner"])
def test_a_job_whose_label_or_owner_was_removed_is_ended(bench: Bench, lost: str) -> None:
    """Its pods are the job's, and no controller manages them: they are ended once, not in a loop."""
    bench.start()
    stored = bench.api.get(BATCH_JOBS, "team", "flowers-1")
    uid = stored["metadata"]["uid"]
    del stored["metadata"]["labels" if lost == "label" else "ownerReferences"]
    stored = bench.api.put(BATCH_JOBS, stored)
    if lost == "label":
        # A stream with a selector reports it as deleted; its status continues to change.
        bench.cache.remove_child(KEY, uid, version_of(stored))
        bench.api.put(BATCH_JOBS, stored)
    else:
        bench.cache.put_batch_job(KEY, version_of(stored), seen_batch_job(stored))
    assert bench.snapshot.batch_jobs == ()
    bench.api.calls.clear()
    assert not bench.apply(actions=(DeletePod("flowers-1-0", "x", "flowers-1", uid),))
    assert bench.api.calls == [("get", "jobs", "flowers-1"), ("delete", "jobs", "flowers-1")]


def test_a_job_without_label_that_is_going_is_left_to_go(bench: Bench) -> None:
    bench.start()
    stored = bench.api.get(BATCH_JOBS, "team", "flowers-1")
    del stored["metadata"]["ownerReferences"]
    stored["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    stored = bench.api.put(BATCH_JOBS, stored)
    bench.api.calls.clear()
    assert not bench.apply(actions=(DeletePod("flowers-1-0", "x", "flowers-1", stored["metadata"]["uid"]),))
    assert bench.api.calls == [("get", "jobs", "flowers-1")]


def test_a_deletion_that_is_refused_comes_through(bench: Bench) -> None:
    bench.api.refuse("delete", BATCH_JOBS, ApiProblem(500, "InternalError", "etcd"))
    with pytest.raises(ApiProblem):
        bench.apply(actions=(EndAttempt("flowers-1", "x"),))


@pytest.mark.parametrize("other", [False, True])
def test_a_deletion_without_an_event_is_learnt_from_the_response(
    bench: Bench, raw_pod: Make, raw_batch_job: Make, other: bool
) -> None:
    """Otherwise the next attempt would wait until the next list for a pod that is gone."""
    pod, job = raw_pod(), raw_batch_job()
    bench.cache.put_pod(KEY, 30, seen_pod(pod))
    bench.cache.put_batch_job(KEY, 20, seen_batch_job(job))
    if other:
        bench.api.put(PODS, raw_pod(uid="pod-9"))
        bench.api.put(BATCH_JOBS, raw_batch_job(uid="batch-9"))
    assert bench.apply(actions=(DeletePod("flowers-1-0-abcde", "pod-0", "flowers-7", "batch-7"),))
    assert bench.snapshot.pods == ()
    assert bench.apply(actions=(EndAttempt("flowers-1", "batch-1"),))
    assert bench.snapshot.batch_jobs == ()
    # A late event of the stream is recognized as late.
    assert not bench.cache.put_pod(KEY, 30, seen_pod(pod))
    bench.cache.put_pod(KEY, 31, seen_pod(raw_pod(uid="pod-1")))
    assert bench.apply(actions=(DeletePod("flowers-1-0-abcde", "pod-1", "flowers-1", "batch-1"),))
    assert bench.snapshot.pods == ()
    del bench.api.objects[("mptrainingjobs", "team", "flowers")]
    assert bench.apply(actions=(DeleteJob("job-1"),))
    assert bench.cache.versioned_snapshot(KEY, Limits()) is None


@pytest.mark.parametrize("status", [409, 422])
def test_another_conflict_is_no_deletion(bench: Bench, raw_batch_job: Make, status: int) -> None:
    """The object is read and its uid compared: the words of the message decide nothing."""
    raw = raw_batch_job()
    bench.api.put(BATCH_JOBS, raw)
    bench.cache.put_batch_job(KEY, 20, seen_batch_job(raw))
    bench.api.calls.clear()
    bench.api.refuse("delete", BATCH_JOBS, ApiProblem(status, "Conflict", "Precondition failed: UID in precondition"))
    if status == 409:
        assert not bench.apply(actions=(ForgetAttempt("flowers-1", "batch-1"),))
        assert bench.api.calls == [("delete", "jobs", "flowers-1"), ("get", "jobs", "flowers-1")]
    else:
        with pytest.raises(ApiProblem):
            bench.apply(actions=(ForgetAttempt("flowers-1", "batch-1"),))
    assert [each.uid for each in bench.snapshot.batch_jobs] == ["batch-1"]


def test_a_deletion_that_succeeds_reads_nothing(bench: Bench, raw_batch_job: Make) -> None:
    bench.api.put(BATCH_JOBS, raw_batch_job())
    bench.api.calls.clear()
    assert not bench.apply(actions=(ForgetAttempt("flowers-1", "batch-1"),))
    assert bench.api.calls == [("delete", "jobs", "flowers-1")]


def test_reading_the_job_file(bench: Bench) -> None:
    assert bench.apply(actions=(ReadJobFile(),))
    assert bench.lookups.job_file_missing
    bench.api.put(CONFIG_MAPS, job_objects.config_map(bench.owner, bench.text))
    assert bench.apply(actions=(ReadJobFile(),))
    assert (bench.lookups.job_text, bench.lookups.job_file_missing) == (bench.text, False)


def test_a_forged_config_map_before_the_first_attempt_starts_nothing(bench: Bench, large: None) -> None:
    """A user who submits jobs may create ConfigMaps, and knows the job's uid: a suspended job leaves time for it."""
    forged = bench.job.model_copy(update={"image": "evil.org/miner:1", "processes": 64})
    bench.api.put(CONFIG_MAPS, job_objects.config_map(bench.owner, forged.to_json()))
    assert bench.start()
    assert bench.lookups.job_text == ""
    refusal = bench.lookups.refusal
    assert refusal is not None
    assert (refusal.child, refusal.kind) == ("ConfigMap flowers-job", "NameTaken")
    assert "does not match status.jobDigest. Delete the ConfigMap" in refusal.message
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


def test_a_config_map_that_was_replaced_between_two_attempts_is_not_used(bench: Bench, large: None) -> None:
    assert not bench.apply(status=STARTED, actions=(StartAttempt(1, bench.job),))
    forged = bench.job.model_copy(update={"image": "evil.org/miner:1"})
    bench.api.put(CONFIG_MAPS, job_objects.config_map(bench.owner, forged.to_json()))
    with pytest.raises(NotCreated, match=r"ConfigMap flowers-job: job\.json does not match"):
        bench.apply(actions=(ReadJobFile(),))
    assert bench.lookups.job_text == bench.text


def test_the_frozen_job_is_read_from_the_newest_job(bench: Bench, clock: Clock) -> None:
    assert not bench.start()
    again = Bench(bench.api, clock, bench.api.get(JOBS, "team", "flowers"))
    stored = bench.api.get(BATCH_JOBS, "team", "flowers-1")
    again.cache.put_batch_job(KEY, version_of(stored), seen_batch_job(stored))
    bench.api.calls.clear()
    assert again.apply(actions=(ReadJobFile(),))
    assert again.lookups.job_text == again.text
    assert bench.api.calls == [("get", "jobs", "flowers-1")]


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
def test_the_frozen_job_is_kept_when_its_last_job_is_deleted_before_the_end(
    bench: Bench, raw_batch_job: Make, ended: str
) -> None:
    bench.start()
    uid = bench.snapshot.batch_jobs[0].uid
    status = STARTED
    if ended == "one more Job":
        bench.cache.put_batch_job(KEY, 999, seen_batch_job(raw_batch_job("flowers-0", uid="other", attempt=0)))
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


def test_a_job_frozen_by_another_version_keeps_its_digest(bench: Bench) -> None:
    assert not bench.apply(status=STARTED, actions=(StartAttempt(1, bench.job),))
    before = bench.snapshot.status
    assert before is not None
    after = before.model_copy(update={"current_attempt": 2})
    assert not bench.apply(status=after, actions=(StartAttempt(2, bench.job),))
    assert bench.snapshot.status == after


def test_somebody_elses_config_map_is_no_job_file(bench: Bench) -> None:
    body = job_objects.config_map(job_objects.Owner("team", "flowers", "earlier", "2026-11-23T09:00:00Z"), bench.text)
    bench.api.put(CONFIG_MAPS, body)
    assert bench.apply(actions=(ReadJobFile(),))
    assert (bench.lookups.job_text, bench.lookups.job_file_missing) == ("", True)


def test_asking_for_nodes(bench: Bench) -> None:
    def node(name: str, ready: str, *taints: str) -> None:
        conditions = [{"type": "MemoryPressure", "status": "True"}, {"type": "Ready", "status": ready}]
        spec = {"taints": [{"key": key, "effect": "NoExecute"} for key in taints]}
        bench.api.put(NODES, {"metadata": {"name": name}, "spec": spec, "status": {"conditions": conditions}})

    node("well", "True")
    node("silent", "Unknown", "node.kubernetes.io/unreachable")
    node("declared-gone", "Unknown", "node.kubernetes.io/unreachable", "node.kubernetes.io/out-of-service")
    assert bench.apply(actions=tuple(ReadNode(name) for name in ("well", "silent", "declared-gone", "deleted")))
    # The pod garbage collector ends the pods of the last two.
    expected = {"well": False, "silent": True, "declared-gone": False, "deleted": False}
    assert dict(bench.lookups.unready_nodes) == expected


def test_when_the_uid_is_reused_nothing_is_learnt_of_the_old_job(bench: Bench, raw_job: Make) -> None:
    seen = bench.seen
    bench.cache.put_job(parse.job(raw_job(uid="job-2", version=10_000)))
    assert bench.applier.apply(Plan(actions=(ReadNode("gone"),)), seen)
    assert dict(bench.lookups.unready_nodes) == {}


def test_the_newest_warning_about_a_pod_is_read(bench: Bench, raw_event: Make) -> None:
    event = raw_event(message='configmap "code" not found', involvedObject={"uid": "pod-0"}, reason="FailedMount")
    bench.api.put(EVENTS, event)
    bench.api.calls.clear()
    assert bench.apply(actions=(ReadEvents("pod-0"),))
    assert bench.api.calls == [("list", "events", "")]
    assert dict(bench.lookups.warnings) == {
        "pod-0": SeenWarning("FailedMount", 'configmap "code" not found', bench.clock.now)
    }


def test_events_that_may_not_be_read_stop_no_job(bench: Bench) -> None:
    bench.api.refuse("list", EVENTS, ApiProblem(403, "Forbidden", "no"))
    assert bench.apply(actions=(ReadEvents("pod-0"),))
    assert dict(bench.lookups.warnings) == {"pod-0": SeenWarning("", "", bench.clock.now)}
