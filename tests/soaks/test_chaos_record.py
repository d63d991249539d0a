"""What the record keeps of objects, and what it makes of a list after an outage."""

from __future__ import annotations

from typing import Any

from soaks import chaos_record
from soaks.chaos_record import Change, ChildSeen, JobSeen, PodSeen, told_by_list

LABELS = {"mptraining.dev/job": "flowers", "mptraining.dev/attempt": "2"}


def pod(uid: str, phase: str = "Running") -> PodSeen:
    return PodSeen(uid, f"pod-{uid}", "flowers", 1, 0, phase)


def test_objects_are_read() -> None:
    labels = {**LABELS, "batch.kubernetes.io/job-completion-index": "1"}
    raw: dict[str, Any] = {
        "metadata": {"uid": "p", "name": "flowers-2-1-x", "labels": labels, "deletionTimestamp": "now"},
        "spec": {"nodeName": "node"},
        "status": {"phase": "Failed"},
    }
    seen = chaos_record.pod(raw)
    assert seen == PodSeen("p", "flowers-2-1-x", "flowers", 2, 1, "Failed", "node", True)
    assert not seen.alive
    assert chaos_record.pod({"metadata": {"uid": "p", "name": "other"}, "spec": {}}) is None
    owned = [{"uid": "u", "controller": True}]
    raw = {"metadata": {"uid": "c", "name": "flowers-2", "labels": LABELS, "ownerReferences": owned}}
    assert chaos_record.child(raw) == ChildSeen("c", "flowers-2", "flowers", 2, "u")
    status = {
        "phase": "Failed",
        "currentAttempt": 2,
        "attempts": [{"number": 1, "outcome": "Preempted"}, {"number": 2}],
        "applicationFailures": 1,
        "infrastructureRestarts": 3,
        "conditions": [{"type": "Finished", "status": "True", "reason": "Diverged"}],
        "startTime": "2026-01-01T00:00:00Z",
    }
    assert chaos_record.job({"metadata": {"uid": "u", "name": "flowers"}, "status": status}) == JobSeen(
        "u", "flowers", "Failed", 2, ((1, "Preempted"), (2, "")), 1, 3, True, "Diverged", "2026-01-01T00:00:00Z", ""
    )
    assert chaos_record.job({"metadata": {"uid": "u", "name": "flowers"}}) == JobSeen("u", "flowers")


def test_a_list_tells_what_has_gone_what_is_new_and_what_is_another() -> None:
    same, other, gone = pod("same"), pod("other"), pod("gone")
    known = {each.uid: each for each in (same, other, gone)}
    ended, new = pod("other", "Failed"), pod("new")
    assert told_by_list(known, [same, ended, new]) == (Change(gone, gone=True), Change(ended), Change(new))
    assert told_by_list({}, []) == ()
