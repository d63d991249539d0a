"""The fields that are kept of the API server's objects, and events without a change."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mptraining_api import events
from mptraining_api.kubernetes_api import BATCH_JOBS, PODS
from mptraining_operator.plan.snapshot import Key
from mptraining_operator.watch import api_objects, parse
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
    assert json.loads(stored.spec)["nodes"] == 2
    assert b" " not in stored.spec
    assert json.loads(stored.status) == {"phase": "Running", "currentAttempt": 2}
    assert json.loads(stored.progress) == {"step": 7}


def test_a_change_of_progress_alone_is_ignored() -> None:
    before = parse.job(raw_job(status={"phase": "Running", "progress": {"step": 7}}))
    after = parse.job(raw_job(status={"phase": "Running", "progress": {"step": 8}}, version=11))
    assert before.same_work(after)
    assert not before.same_work(parse.job(raw_job(status={"phase": "Failed", "progress": {"step": 7}})))
    assert not before.same_work(parse.job(raw_job(status={"phase": "Running"}, generation=2)))


def test_a_model_that_waits_to_be_fetched_is_planned() -> None:
    before = parse.job(raw_job(status={"phase": "Running", "progress": {"step": 7}}))
    kept = {"step": 7, "modelKeptUntil": "2026-01-01T00:10:00Z"}
    assert not before.same_work(parse.job(raw_job(status={"phase": "Running", "progress": kept}, version=11)))


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


def terminated(code: int, at: str, message: str = "", reason: str = "Error") -> dict[str, Any]:
    return {"terminated": {"exitCode": code, "finishedAt": at, "message": message, "reason": reason}}


def test_the_end_of_the_trainer_is_that_of_the_pod() -> None:
    end = terminated(1, "2026-01-01T00:00:40Z", "first", "OOMKilled")
    raw = raw_pod(phase="Failed", init=(terminated(0, "2026-01-01T00:00:30Z", "unpacked"),), containers=(end,))
    seen = seen_pod(raw)
    found = seen.exit_code, seen.exit_reason, seen.termination_message, seen.finished
    assert found == (1, "OOMKilled", "first", START + 40)
    assert seen.terminated


def test_a_failed_init_container_counts() -> None:
    seen = seen_pod(raw_pod(phase="Failed", init=(terminated(2, "2026-01-01T00:00:40Z", "no source"),)))
    assert (seen.exit_code, seen.termination_message) == (2, "no source")


def test_the_last_event_says_whether_the_model_was_fetched() -> None:
    event = events.Finished(
        time=1.0, attempt=1, incarnation="i", worker=0, reason="Succeeded", exit_code=0, message="", hand_over="Fetched"
    )
    for code, message, expected in ((0, event.to_json(), "Fetched"), (1, event.to_json(), ""), (0, "handOver", "")):
        ended = terminated(code, "2026-01-01T00:00:40Z", message)
        assert seen_pod(raw_pod(phase="Succeeded", containers=(ended,))).hand_over == expected


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
    seen = seen_pod(raw_pod(conditions=(disruption, {"type": "Ready", "status": "True"})))
    assert (seen.disruption, seen.disrupted_at, seen.message) == ("EvictionByEvictionAPI", START + 40, "evicted")
    assert seen.ready
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
    ended = {"terminated": {"exitCode": 1, "finishedAt": next(draw), "message": next(draw)}}
    disruption = {"type": "DisruptionTarget", "status": "True", "lastTransitionTime": next(draw)}
    pod = raw_pod(containers=(ended, ended), conditions=(disruption,), metadata=metadata, phase=next(draw))
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
