"""Parsers of API objects: the fields that are kept, events without a change, and other containers than the trainer."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mptraining_api import events
from mptraining_api.kubernetes_api import BATCH_JOBS, PODS
from mptraining_operator.jobs.watch import api_objects, parse
from mptraining_operator.runtime.values import Key
from tests.unit.operator.api_objects import (
    decoded,
    raw_batch_job,
    raw_event,
    raw_job,
    raw_pod,
    seen_batch_job,
    seen_pod,
    version_of,
)

START = parse.optional_time("2026-01-01T00:00:00Z") or 0.0


def test_a_job_is_kept_as_bytes() -> None:
    status = {"phase": "Running", "currentAttempt": 2, "progress": {"step": 7}}
    stored = parse.job(raw_job(status=status, version=12345678901))
    assert stored.key == Key("team", "flowers")
    assert (stored.uid, stored.version, stored.generation, stored.created) == ("job-1", 12345678901, 1, START)
    assert (stored.phase, stored.attempt, stored.deleting) == ("Running", 2, False)
    assert json.loads(stored.spec)["workers"] == 2
    assert b" " not in stored.spec
    assert json.loads(stored.status) == {"phase": "Running", "currentAttempt": 2}
    assert json.loads(stored.progress) == {"step": 7}


@pytest.mark.parametrize(
    ("field", "readable"),
    [({"colour": 1}, True), ({"podTemplate": {"initContainers": [{"name": "a", "image": "a", "colour": 1}]}}, False)],
)
def test_a_job_with_an_unknown_field_is_read_where_the_resource_has_a_schema(field: Any, readable: bool) -> None:
    body = raw_job()
    job, problem = parse.read_job(parse.job(body | {"spec": body["spec"] | field}))
    assert (job is not None, "colour: unknown field" in problem) == (readable, True)


def test_a_change_of_progress_alone_is_ignored() -> None:
    before = parse.job(raw_job(status={"phase": "Running", "progress": {"step": 7}}))
    after = parse.job(raw_job(status={"phase": "Running", "progress": {"step": 8}}, version=11))
    assert before.work == after.work
    assert before.work != parse.job(raw_job(status={"phase": "Failed", "progress": {"step": 7}})).work
    assert before.work != parse.job(raw_job(status={"phase": "Running"}, generation=2)).work


def test_a_model_that_waits_to_be_fetched_is_planned() -> None:
    before = parse.job(raw_job(status={"phase": "Running", "progress": {"step": 7}}))
    kept = {"step": 7, "modelKeptUntil": "2026-01-01T00:10:00Z"}
    assert before.work != parse.job(raw_job(status={"phase": "Running", "progress": kept}, version=11)).work


def test_a_batch_job() -> None:
    raw = raw_batch_job(active=1, ready=1, succeeded=1, startTime="2026-01-01T00:00:11Z")
    seen = seen_batch_job(raw)
    assert (seen.name, seen.uid, seen.owner_uid, seen.attempt) == ("flowers-1", "batch-1", "job-1", 1)
    assert (seen.created, seen.started) == (START + 10, START + 11)
    assert (seen.parallelism, seen.active, seen.ready, seen.succeeded, seen.failed) == (2, 1, 1, 1, 0)
    assert parse.owner(decoded(BATCH_JOBS, raw).metadata) == Key("team", "flowers")


@pytest.mark.parametrize(
    ("conditions", "ended"),
    [
        ((), ""),
        ((("SuccessCriteriaMet", "True"),), ""),
        ((("FailureTarget", "True"),), ""),
        ((("Failed", "False"),), ""),
        ((("Suspended", "True"),), ""),
        ((("FailureTarget", "True"), ("Failed", "True")), "Failed"),
        ((("SuccessCriteriaMet", "True"), ("Complete", "True")), "Complete"),
    ],
)
def test_a_batch_job_ends_with_its_last_condition(conditions: tuple[tuple[str, str], ...], ended: str) -> None:
    seen = seen_batch_job(raw_batch_job(conditions=conditions))
    assert seen.ended == ended
    assert seen.ended_at == (START + 60 if ended else None)
    assert seen.end_message == ("words" if ended else "")


def test_when_the_status_of_a_batch_job_was_written() -> None:
    writers = [
        {"manager": "mptraining-operator", "time": "2026-01-01T00:09:00Z"},
        {"manager": "kube-controller-manager", "subresource": "status", "time": "2026-01-01T00:01:00Z"},
        {"manager": "kueue", "subresource": "status", "time": "2026-01-01T00:02:00Z"},
        {"manager": "unknown", "subresource": "status"},
    ]
    raw = raw_batch_job()
    assert seen_batch_job(raw).changed is None
    raw["metadata"]["managedFields"] = writers
    assert seen_batch_job(raw).changed == parse.optional_time("2026-01-01T00:02:00Z")


def test_a_batch_job_is_suspended_until_its_controller_has_seen_that_it_is_not() -> None:
    """Its startTime is older than that: a deadline would count the time in the queue."""
    assert seen_batch_job(raw_batch_job(conditions=(("Suspended", "True"),))).suspended
    assert not seen_batch_job(raw_batch_job(conditions=(("Suspended", "False"),))).suspended


def ended(code: int, *, at: str = "2026-01-01T00:00:40Z", **more: Any) -> dict[str, Any]:
    return {"terminated": {"exitCode": code, "finishedAt": at, **more}}


def test_the_end_of_the_trainer_is_that_of_the_pod() -> None:
    end = ended(1, message="first", reason="OOMKilled")
    raw = raw_pod(phase="Failed", init=(ended(0, at="2026-01-01T00:00:30Z", message="unpacked"),), containers=(end,))
    seen = seen_pod(raw)
    found = seen.exit_code, seen.exit_reason, seen.termination_message, seen.finished
    assert found == (1, "OOMKilled", "first", START + 40)
    assert seen.terminated


def test_a_failed_init_container_counts() -> None:
    seen = seen_pod(raw_pod(phase="Failed", init=(ended(2, message="no source"),)))
    assert (seen.exit_code, seen.termination_message) == (2, "no source")


def test_the_last_event_says_whether_the_model_was_fetched() -> None:
    event = events.Finished(
        time=1.0, attempt=1, incarnation="i", worker=0, reason="Succeeded", exit_code=0, message="", hand_over="Fetched"
    )
    for code, message, expected in ((0, event.to_json(), "Fetched"), (1, event.to_json(), ""), (0, "handOver", "")):
        assert seen_pod(raw_pod(phase="Succeeded", containers=(ended(code, message=message),))).hand_over == expected


@pytest.mark.parametrize(
    ("init", "main", "waiting"),
    [
        ((), ({"waiting": {"reason": "ContainerCreating"}},), ""),
        (({"running": {}},), ({"waiting": {"reason": "PodInitializing"}},), ""),
        ((), ({"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}},), "ImagePullBackOff"),
        (({"waiting": {"reason": "ErrImagePull"}},), ({"waiting": {"reason": "PodInitializing"}},), "ErrImagePull"),
        ((), ({"waiting": {}},), ""),
    ],
)
def test_why_a_container_waits(
    init: tuple[dict[str, Any], ...], main: tuple[dict[str, Any], ...], waiting: str
) -> None:
    assert seen_pod(raw_pod(phase="Pending", init=init, containers=main)).waiting == waiting


def test_conditions_of_a_pod() -> None:
    at = "2026-01-01T00:00:40Z"
    disruption = {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "EvictionByEvictionAPI",
        "message": "evicted",
        "lastTransitionTime": at,
    }
    seen = seen_pod(raw_pod(conditions=(disruption,)))
    assert (seen.disruption, seen.disrupted_at, seen.message) == ("EvictionByEvictionAPI", START + 40, "evicted")
    assert seen_pod(raw_pod(conditions=({**disruption, "status": "False"},))).disruption == ""


def test_a_pod_that_finds_no_node() -> None:
    words = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": words}
    raw = raw_pod(phase="Pending", conditions=(condition,))
    del raw["spec"]["nodeName"]
    seen = seen_pod(raw)
    assert (seen.unscheduled, seen.node, seen.scheduled) == (words, "", None)
    placed = {**condition, "status": "True", "lastTransitionTime": "2026-01-01T00:00:40Z"}
    seen = seen_pod(raw_pod(phase="Pending", conditions=(placed,)))
    assert (seen.unscheduled, seen.scheduled) == ("", START + 40)


def test_a_pod_that_is_being_deleted() -> None:
    seen = seen_pod(raw_pod(metadata={"deletionTimestamp": "2026-01-01T00:01:00Z"}, reason="Evicted", message="disk"))
    assert (seen.deletion, seen.reason, seen.message) == (START + 60, "Evicted", "disk")


def test_foreign_objects_lack_the_operators_labels() -> None:
    raw = raw_pod()
    raw["metadata"]["labels"] = {}
    raw["metadata"]["ownerReferences"] = [{"kind": "Job", "uid": "x"}]
    raw["status"] = {}
    seen = seen_pod(raw)
    assert (seen.owner_uid, seen.job_uid, seen.attempt, seen.index, seen.phase) == ("", "", -1, -1, "Unknown")
    assert parse.owner(decoded(PODS, raw).metadata) is None


@pytest.mark.parametrize("index", ["²", "٣", "9" * 5000, "1e3", "-1", ""])
def test_what_is_no_number_matches_nothing(index: str) -> None:
    raw = raw_pod()
    raw["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"] = index
    assert seen_pod(raw).index == -1


TEXT = (
    st.text()
    | st.text("0123456789²٣", max_size=6000)
    | st.sampled_from(["0000-01-01T00:00:00Z", "9999-12-31T23:59:60Z"])
)


@given(texts=st.lists(TEXT, min_size=14, max_size=14))
def test_no_object_of_a_user_stops_the_operator(texts: list[str]) -> None:
    draw = iter(texts * 2)
    labels = {
        "mptraining.dev/job": next(draw),
        "mptraining.dev/job-uid": next(draw),
        "mptraining.dev/attempt": next(draw),
        "batch.kubernetes.io/job-completion-index": next(draw),
    }
    metadata = {"labels": labels, "annotations": labels, "deletionTimestamp": next(draw)}
    end = ended(1, at=next(draw), message=next(draw))
    disruption = {"type": "DisruptionTarget", "status": "True", "lastTransitionTime": next(draw)}
    pod = raw_pod(containers=(end, end), conditions=(disruption,), metadata=metadata, phase=next(draw))
    seen_pod(pod)
    parse.owner(decoded(PODS, pod).metadata)
    version_of({"metadata": {"resourceVersion": next(draw)}})
    job = raw_batch_job(conditions=((next(draw), "True"),), startTime=next(draw))
    job["metadata"].update(metadata, creationTimestamp=next(draw))
    seen_batch_job(job)
    event = raw_event(name=next(draw), about=next(draw), firstTimestamp=next(draw), eventTime=next(draw))
    parse.last_seen(msgspec.convert(event, api_objects.Event))
    mine = raw_job(status={"phase": next(draw)})
    mine["metadata"].update(metadata, creationTimestamp=next(draw))
    parse.job(mine)


SIDECAR = {"name": "proxy", "restartPolicy": "Always"}
Json = dict[str, Any]


def with_containers(
    *,
    trainer: Json | None,
    init: dict[str, Json] | None = None,
    containers: tuple[Json, ...] = (SIDECAR,),
    injected: Json | None = None,
    phase: str = "Running",
) -> Any:
    status: Json = {"initContainerStatuses": [{"name": name, "state": state} for name, state in (init or {}).items()]}
    status["phase"] = phase
    if trainer is not None:
        status["containerStatuses"] = [{"name": "trainer", "state": trainer}]
    if injected is not None:
        # The API server orders them by name; a webhook may add its container before the trainer.
        status["containerStatuses"] = [{"name": "mesh", "state": injected}, *status.get("containerStatuses", ())]
    raw = {
        "metadata": {"name": "flowers-1-0", "namespace": "team-a", "uid": "u"},
        "spec": {"initContainers": list(containers)},
        "status": status,
    }
    return parse.pod(api_objects.convert(raw, api_objects.Pod))


RUNS: Json = {"running": {}}
WAITS: Json = {"waiting": {"reason": "PodInitializing"}}
CRASHES: Json = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}}


@pytest.mark.parametrize("code", [1, 2, 75, 143])
@pytest.mark.parametrize("trainer", [ended(0), RUNS, WAITS], ids=["ended", "runs", "waits"])
def test_the_exit_code_of_a_sidecar_does_not_count(trainer: Json, code: int) -> None:
    assert not with_containers(trainer=trainer, init={"proxy": ended(code)}).failed


def test_the_trainer_s_failure_counts_also_after_that_of_a_sidecar() -> None:
    sidecar = ended(143, at="2026-11-23T09:00:00Z")
    assert with_containers(trainer=ended(3), init={"proxy": sidecar}).exit_code == 3


def test_a_sidecar_that_cannot_start_explains_why_the_trainer_waits() -> None:
    assert with_containers(trainer=WAITS, init={"proxy": CRASHES}).waiting == "CrashLoopBackOff"
    assert with_containers(trainer=RUNS, init={"proxy": CRASHES}).waiting == ""
    assert with_containers(trainer=ended(0), init={"proxy": CRASHES}).waiting == ""


@pytest.mark.parametrize("code", [1, 2, 3, 75, 76])
def test_an_init_container_that_fails_is_a_failure_of_the_program(code: int) -> None:
    found = with_containers(
        trainer=WAITS, init={"fetch": ended(code, message="no route")}, containers=({"name": "fetch"},)
    )
    assert found.exit_code == 1
    assert found.termination_message == f"init container 'fetch' ended with exit code {code}. no route"


def test_the_container_that_prepares_the_source_is_the_trainer_s_own() -> None:
    assert with_containers(trainer=WAITS, init={"source": ended(2)}, containers=({"name": "source"},)).exit_code == 2


@pytest.mark.parametrize(
    ("trainer", "injected", "expected"),
    [
        (ended(0), RUNS, (0, False, "container 'mesh' runs on")),
        (ended(0), ended(2), (0, False, "container 'mesh' ended with exit code 2")),
        (ended(0), ended(0), (0, False, "")),
        (ended(1), RUNS, (1, True, "container 'mesh' runs on")),
        (ended(3), ended(0), (3, True, "")),
        (RUNS, RUNS, (None, False, "")),
        (RUNS, ended(1), (None, False, "container 'mesh' ended with exit code 1")),
        (RUNS, CRASHES, (None, False, "container 'mesh' does not run: CrashLoopBackOff: back-off 10s")),
        (WAITS, RUNS, (None, False, "")),
    ],
)
def test_a_container_that_a_webhook_adds_decides_nothing(
    trainer: Json, injected: Json, expected: tuple[int | None, bool, str]
) -> None:
    failed = injected.get("terminated", {}).get("exitCode") and "terminated" in trainer
    found = with_containers(trainer=trainer, injected=injected, phase="Failed" if failed else "Running")
    assert (found.exit_code, found.failed, found.other) == expected
    assert found.waiting == ""
    assert found.runs == (trainer is RUNS)
    assert found.starts_as_usual == (expected[0] is None and not expected[2])


def test_a_sidecar_that_crashes_while_the_trainer_runs_is_named() -> None:
    assert with_containers(trainer=RUNS, init={"proxy": CRASHES}).other.startswith("container 'proxy' does not run")
    assert with_containers(trainer=ended(0), init={"proxy": CRASHES}).other == ""


@pytest.mark.parametrize("name", ["proxy", "fetch"])
def test_the_init_container_that_the_trainer_waits_for_is_named(name: str) -> None:
    """A sidecar whose startup probe fails, and an init container that does not end."""
    raw = {
        "metadata": {"name": "flowers-1-0", "uid": "u"},
        "spec": {"initContainers": [SIDECAR, {"name": "fetch"}]},
        "status": {
            "phase": "Pending",
            "initContainerStatuses": [
                {"name": "proxy", "state": RUNS, "started": name != "proxy"},
                {"name": "fetch", "state": RUNS if name == "fetch" else WAITS},
            ],
            "containerStatuses": [{"name": "trainer", "state": WAITS}],
        },
    }
    assert parse.pod(api_objects.convert(raw, api_objects.Pod)).waits_for == name


@pytest.mark.parametrize(
    ("image_id", "image"),
    [("docker.io/own/trainer@sha256:01", "docker.io/own/trainer@sha256:01"), ("sha256:01", ""), ("", "")],
)
def test_the_image_with_its_digest_is_that_of_the_trainer(image_id: str, image: str) -> None:
    """An image that was loaded into the node, not pulled, has no name with a digest."""
    statuses = [{"name": "mesh", "imageID": "m@sha256:02"}, {"name": "trainer", "imageID": image_id}]
    raw = {"metadata": {"name": "p", "uid": "u"}, "status": {"containerStatuses": statuses}}
    assert parse.pod(api_objects.convert(raw, api_objects.Pod)).image == image
