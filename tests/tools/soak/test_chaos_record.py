"""What the record keeps of objects, and what it makes of a list after an outage."""

from __future__ import annotations

import json
import threading
from typing import Any, cast

from tests.soak.chaos import record
from tests.soak.chaos.record import Change, ChildSeen, JobSeen, PodSeen, Recorder, changes_from_list

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
    seen = record.pod(raw)
    assert seen == PodSeen("p", "flowers-2-1-x", "flowers", 2, 1, "Failed", "node", True)
    assert not seen.alive
    assert record.pod({"metadata": {"uid": "p", "name": "other"}, "spec": {}}) is None
    owned = [{"uid": "u", "controller": True}]
    raw = {"metadata": {"uid": "c", "name": "flowers-2", "labels": LABELS, "ownerReferences": owned}}
    assert record.child(raw) == ChildSeen("c", "flowers-2", "flowers", 2, "u")
    status = {
        "phase": "Failed",
        "currentAttempt": 2,
        "attempts": [{"number": 1, "outcome": "Preempted"}, {"number": 2}],
        "applicationFailures": 1,
        "infrastructureRestarts": 3,
        "conditions": [{"type": "Finished", "status": "True", "reason": "Diverged"}],
        "startTime": "2026-01-01T00:00:00Z",
    }
    assert record.job({"metadata": {"uid": "u", "name": "flowers"}, "status": status}) == JobSeen(
        "u", "flowers", "Failed", 2, ((1, "Preempted"), (2, "")), 1, 3, True, "Diverged", "2026-01-01T00:00:00Z", ""
    )
    assert record.job({"metadata": {"uid": "u", "name": "flowers"}}) == JobSeen("u", "flowers")


def test_a_list_tells_what_has_gone_what_is_new_and_what_is_another() -> None:
    same, other, gone = pod("same"), pod("other"), pod("gone")
    known = {each.uid: each for each in (same, other, gone)}
    ended, new = pod("other", "Failed"), pod("new")
    assert changes_from_list(known, [same, ended, new]) == (Change(gone, gone=True), Change(ended), Change(new))
    assert changes_from_list({}, []) == ()


class Stream:
    """The open stream of a watch: chunks, then its end, as a connection that breaks or politely."""

    def __init__(self, *events: dict[str, Any], status: int = 200, broken: bool = False) -> None:
        self.status = status
        self.data = b"gone"
        self._chunks = [json.dumps(event).encode() + b"\n" for event in events]
        self._broken = broken

    def read1(self) -> bytes:
        if self._chunks:
            # Cut in the middle of a line, as networks do.
            first = self._chunks.pop(0)
            self._chunks[:0] = [first[7:]] if len(first) > 7 else []
            return first[:7]
        if self._broken:
            raise ConnectionError("cut")
        return b""

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class Server:
    """Answers lists and watches of pods as told, and those of other collections with nothing."""

    def __init__(self, lists: list[dict[str, Any]], streams: list[Stream]) -> None:
        self.lists, self.streams = lists, streams
        self.watched: list[str] = []
        self.over = threading.Event()

    def get(self, path: str) -> dict[str, Any]:
        return self.lists.pop(0) if path.endswith("/pods") else {"metadata": {"resourceVersion": "1"}}

    def open_watch(self, path: str, query: dict[str, str]) -> Stream:
        # What comes after the end is no part of the story.
        if not path.endswith("/pods") or self.over.is_set():
            raise ConnectionError("nothing")
        self.watched.append(query["resourceVersion"])
        if not self.streams:
            self.over.set()
            raise ConnectionError("down")
        return self.streams.pop(0)


def raw_pod(name: str, version: int, phase: str = "Running") -> dict[str, Any]:
    labels = {**LABELS, "batch.kubernetes.io/job-completion-index": "0"}
    metadata = {"uid": name, "name": name, "labels": labels, "resourceVersion": str(version)}
    return {"metadata": metadata, "spec": {}, "status": {"phase": phase}}


def test_a_watch_resumes_where_it_was_cut_and_lists_where_it_cannot() -> None:
    def event(kind: str, name: str, version: int, phase: str = "Running") -> dict[str, Any]:
        return {"type": kind, "object": raw_pod(name, version, phase)}

    lists = [
        {"metadata": {"resourceVersion": "5"}, "items": [raw_pod("a", 3)]},
        {"metadata": {"resourceVersion": "20"}, "items": [raw_pod("c", 19)]},
    ]
    bookmark = {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "9"}}}
    expired = {"type": "ERROR", "object": {"code": 410}}
    server = Server(
        lists,
        [
            Stream(event("MODIFIED", "a", 6, "Failed"), broken=True),
            Stream(event("ADDED", "b", 7), bookmark),
            Stream(expired),
            Stream(event("DELETED", "c", 21)),
        ],
    )
    with Recorder(cast(Any, server), "chaos", clock=lambda: 7.0) as recorder:
        assert server.over.wait(60)
    told = [[(change.seen.name, change.gone) for change in step.changes] for step in recorder.steps]
    assert told == [
        [("a", False)],
        [("a", False)],
        [("b", False)],
        [("a", True), ("b", True), ("c", False)],
        [("c", True)],
    ]
    assert server.watched == ["5", "6", "9", "20", "21"]
    assert recorder.gaps == 1
