"""Calls of the operator to the API server; `tests/unit/api/test_kubernetes_api.py` tests how they are sent."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from mptraining_api.kubernetes_api import BATCH_JOBS, JOBS, JSON_PATCH, MERGE_PATCH, NODES, PODS, ApiProblem, Raw
from mptraining_operator.runtime import cluster
from mptraining_operator.runtime.cluster import Cluster
from mptraining_operator.runtime.leader_election import NotLeading


class Server:
    """Replaces `kubernetes_api.send`; responses and errors are from a list."""

    def __init__(self) -> None:
        self.answers: list[Raw | Exception] = []
        self.sent: list[tuple[str, str, dict[str, Any]]] = []

    def send(self, api: Any, method: str, path: str, **options: Any) -> tuple[Raw, int, Mapping[str, str]]:
        self.sent.append((method, path, options))
        answer = self.answers.pop(0) if self.answers else {}
        if isinstance(answer, Exception):
            raise answer
        return options["loads"](options["dumps"](answer)), 200, {}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    server = Server()
    monkeypatch.setattr(cluster, "send", server.send)
    return server


def test_the_fence_is_asked_right_before_each_call_and_nothing_is_sent_after_it(server: Server) -> None:
    over = False
    asked: list[int] = []

    def fence() -> None:
        asked.append(len(server.sent))
        if over:
            raise NotLeading("term 1 is over")

    client = Cluster(None)
    fenced = client.fenced(fence)
    calls: list[Callable[[], object]] = [
        lambda: fenced.create(PODS, "team", {}),
        lambda: fenced.replace(PODS, "team", "a", {}),
        lambda: fenced.patch(PODS, "team", "a", {}),
        lambda: fenced.delete(PODS, "team", "a", uid="1", propagation="Background"),
        lambda: fenced.patch_status_or_read(JOBS, "team", "flowers", 1, {}),
        lambda: fenced.write_progress("team", "flowers", "1", {}),
        lambda: fenced.get(PODS, "team", "a"),
    ]
    for call in calls:
        call()
    assert asked == list(range(7))
    over = True
    for call in calls:
        with pytest.raises(NotLeading):
            call()
    client.create(PODS, "team", {})
    assert len(server.sent) == 8, "the client without the fence goes on"


def test_lists_have_the_version_of_each_page(server: Server) -> None:
    first = {"items": [{"a": 1}], "metadata": {"resourceVersion": "7", "continue": "more"}}
    server.answers = [first, {"items": None, "metadata": {"resourceVersion": "7"}}]
    pages = [
        ([bytes(item) for item in items], at) for items, at in Cluster(None).pages(PODS, None, labelSelector="x=y")
    ]
    assert pages == [([b'{"a":1}'], 7), ([], 7)]
    assert [path for _, path, _ in server.sent] == ["/api/v1/pods"] * 2
    assert server.sent[1][2]["query"] == {"limit": "500", "labelSelector": "x=y", "continue": "more"}


def test_a_watch_begins_after_a_version_and_is_counted_with_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, Mapping[str, str]]] = []
    counted: list[tuple[str, str, int]] = []

    def lines(api: Any, path: str, *, query: Mapping[str, str], read_seconds: float) -> Iterator[bytes]:
        asked.append((path, query))
        yield b"1"
        raise ApiProblem(410, "Expired", "too old")

    monkeypatch.setattr(cluster, "lines", lines)
    watch = Cluster(None, count=lambda *call: counted.append(call)).watch(PODS, "team", "12", labelSelector="x")
    assert next(watch) == b"1"
    with pytest.raises(ApiProblem, match="too old"):
        next(watch)
    ((path, query),) = asked
    assert path == "/api/v1/namespaces/team/pods"
    expected = {"watch": "true", "resourceVersion": "12", "allowWatchBookmarks": "true", "labelSelector": "x"}
    assert expected.items() <= query.items()
    assert counted == [("watch", "pods", 410)]


GROUPS = {"groups": [{"name": "apps"}, {"name": "mptraining.dev"}]}
RESOURCES = {"resources": [{"name": "mptrainingjobs"}, {"name": "mptrainingjobs/status"}]}


@pytest.mark.parametrize(
    ("answers", "served"),
    [
        ((GROUPS, RESOURCES), True),
        ((GROUPS, {"resources": [{"name": "others"}]}), False),
        ((GROUPS, ApiProblem(404, "Unknown", "404 page not found")), False),
        # Its objects can be read before it appears in a list.
        (({"groups": [{"name": "apps"}]},), False),
        ((ApiProblem(503, "Unknown", "no message"),), None),
    ],
)
def test_what_discovery_names_is_served(server: Server, answers: tuple[Any, ...], served: bool | None) -> None:
    """Discovery that does not answer says nothing."""
    server.answers = list(answers)
    if served is None:
        with pytest.raises(ApiProblem):
            Cluster(None).serves(JOBS)
    else:
        assert Cluster(None).serves(JOBS) is served
    assert [path for _, path, _ in server.sent] == ["/apis", "/apis/mptraining.dev/v1alpha1"][: len(answers)]


def test_the_status_is_patched_over_the_version_that_was_seen(server: Server) -> None:
    Cluster(None).patch_status_or_read(JOBS, "team", "flowers", 12, {"phase": "Running", "workers": None})
    method, path, options = server.sent[0]
    assert (method, options["content_type"]) == ("PATCH", MERGE_PATCH)
    assert path.endswith("/mptrainingjobs/flowers/status")
    expected = {"metadata": {"resourceVersion": "12"}, "status": {"phase": "Running", "workers": None}}
    assert options["body"] == expected


def test_progress_is_written_by_its_own_manager_into_this_very_job(server: Server) -> None:
    Cluster(None).write_progress("team", "flowers", "u-1", {"step": 3})
    _, path, options = server.sent[0]
    assert path.endswith("/flowers/status")
    assert (options["query"], options["content_type"]) == ({"fieldManager": "mptraining-progress"}, JSON_PATCH)
    assert options["body"] == [
        {"op": "test", "path": "/metadata/uid", "value": "u-1"},
        {"op": "add", "path": "/status/progress", "value": {"step": 3}},
    ]


def test_a_deletion_names_uid_and_propagation(server: Server) -> None:
    Cluster(None).delete(BATCH_JOBS, "team", "flowers-1", uid="u", propagation="Foreground")
    assert server.sent[0][2]["body"] == {"preconditions": {"uid": "u"}, "propagationPolicy": "Foreground"}


@pytest.mark.parametrize("status", [200, 404, 0])
def test_every_response_is_counted(server: Server, status: int) -> None:
    counted: list[tuple[str, str, int]] = []
    connected = Cluster(None, count=lambda *call: counted.append(call))

    def call() -> None:
        connected.patch(NODES, "", "n", {}, subresource="status")

    if status == 200:
        call()
    else:
        server.answers = [ApiProblem(status, "Reason", "message")]
        with pytest.raises(ApiProblem):
            call()
    assert counted == [("patch", "nodes/status", status)]
