"""Calls of the operator to the API server; `tests/unit/api/test_kubernetes_api.py` tests how they are sent."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from email.utils import formatdate
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mptraining_api.kubernetes_api import BATCH_JOBS, JOBS, JSON_PATCH, MERGE_PATCH, NODES, PODS, ApiProblem, Raw
from mptraining_operator import cluster
from mptraining_operator.cluster import Cluster, ServerTime, clock_offset, parse_http_date
from mptraining_operator.leader_election import NotLeading


class Server:
    """Replaces `kubernetes_api.send`; responses and errors are from a list."""

    def __init__(self) -> None:
        self.answers: list[Raw | Exception] = []
        self.headers: dict[str, str] = {}
        self.sent: list[tuple[str, str, dict[str, Any]]] = []

    def send(self, api: Any, method: str, path: str, **options: Any) -> tuple[Raw, int, Mapping[str, str]]:
        self.sent.append((method, path, options))
        answer = self.answers.pop(0) if self.answers else {}
        if isinstance(answer, Exception):
            raise answer
        return options["loads"](options["dumps"](answer)), 200, self.headers


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
        lambda: fenced.patch_status(JOBS, "team", "flowers", 1, {}),
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
        ([bytes(each) for each in items], at) for items, at in Cluster(None).pages(PODS, None, labelSelector="x=y")
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
    Cluster(None).patch_status(JOBS, "team", "flowers", 12, {"phase": "Running", "workers": None})
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


def test_responses_have_the_time(server: Server) -> None:
    time = ServerTime(lambda: 1_767_225_600.0)
    connected = Cluster(None, server_time=time)
    server.headers = {"Date": "Thu, 01 Jan 2026 00:01:00 GMT"}
    connected.get(JOBS, "team", "flowers")
    assert time() == 1_767_225_660.0
    server.headers = {}
    connected.get(JOBS, "team", "flowers")
    assert time() == 1_767_225_660.0


SKEWS = st.floats(-90_000, 90_000)
SECONDS = st.floats(0, 40)


@given(skew=SKEWS, calls=st.lists(st.tuples(SECONDS, SECONDS, SECONDS), min_size=1, max_size=20))
def test_the_estimate_is_possible_and_never_gets_worse(skew: float, calls: list[tuple[float, float, float]]) -> None:
    """Responses take any time in either direction; their date has whole seconds."""
    believed, own = 0.0, 1_767_225_600.0
    for there, back, pause in calls:
        sent, own = own, own + there
        date = float(int(own + skew))
        own += back
        after = clock_offset(believed, sent=sent, received=own, date=date)
        assert abs(after - skew) <= max(abs(believed - skew), 1e-6), "a slow answer takes nothing back"
        assert abs(after - skew) <= there + back + 1 + 1e-6
        believed, own = after, own + pause


@pytest.mark.parametrize("skew", [-60, 60])
def test_a_clock_that_is_a_minute_off_is_corrected_by_one_response(skew: int, caplog: pytest.LogCaptureFixture) -> None:
    true = 1_767_225_600.4
    time = ServerTime(lambda: true + skew)
    assert time() == true + skew
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            time.update(formatdate(int(true), usegmt=True), sent=time.local())
    assert abs(time() - true) <= 1
    assert len(caplog.messages) == 1, "said once"
    assert "60 s apart" in caplog.messages[0] or "59 s apart" in caplog.messages[0]


@pytest.mark.parametrize("date", [None, "", "yesterday", "Mon, 99 Jan 2026 00:00:00 GMT"])
def test_a_response_without_a_date_changes_nothing(date: str | None) -> None:
    time = ServerTime(lambda: 5.0)
    time.update(date, sent=4.0)
    assert time() == 5.0
    assert date is None or parse_http_date(date) is None
