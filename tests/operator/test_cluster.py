"""Calls as they go over the wire, and answers that are no."""

from __future__ import annotations

import json
from collections.abc import Mapping
from io import BytesIO
from typing import Any
from urllib.parse import urlencode

import pytest
import urllib3
from kubernetes import client

from mptraining_operator import cluster as api
from mptraining_operator.cluster import ApiProblem, Cluster, ServerTime


class Wire:
    """What the client's connections are to the client; answers from a list."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.sent: list[tuple[str, str, Any, dict[str, str]]] = []

    def request(self, method: str, url: str, *, headers: dict[str, str], **rest: Any) -> Any:
        body, fields = rest.get("body"), rest.get("fields")
        if fields:
            url = f"{url}?{urlencode(fields)}"
        self.sent.append((method, url, json.loads(body) if body else None, headers))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def connected(wire: Wire, **options: Any) -> Cluster:
    """The official client, on that wire."""
    configuration = client.Configuration(host="https://server", api_key={"authorization": "Bearer t"})
    one = client.ApiClient(configuration)
    one.user_agent = "mptraining-operator/1"
    one.rest_client.pool_manager = wire
    return Cluster(one, **options)


def answer(body: Any = None, status: int = 200, headers: Mapping[str, str] | None = None) -> Any:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return urllib3.HTTPResponse(body=BytesIO(data), status=status, headers=headers or {})


def test_an_object_is_read() -> None:
    wire = Wire(answer({"kind": "MPTrainingJob"}))
    assert connected(wire).get(api.JOBS, "team", "flowers") == {"kind": "MPTrainingJob"}
    method, url, body, headers = wire.sent[0]
    assert (method, body) == ("GET", None)
    assert url == "https://server/apis/mptraining.dev/v1alpha1/namespaces/team/mptrainingjobs/flowers"
    assert headers["authorization"] == "Bearer t"
    assert headers["User-Agent"] == "mptraining-operator/1"


def test_lists_go_on_where_a_page_ends() -> None:
    first = {"items": [{"a": 1}], "metadata": {"resourceVersion": "7", "continue": "more/+"}}
    last = {"items": None, "metadata": {"resourceVersion": "7"}}
    wire = Wire(answer(first), answer(last))
    assert list(connected(wire).pages(api.PODS, None, labelSelector="x=y")) == [([{"a": 1}], 7), ([], 7)]
    assert wire.sent[0][1] == "https://server/api/v1/pods?limit=500&labelSelector=x%3Dy"
    assert wire.sent[1][1].endswith("&continue=more%2F%2B")


GROUPS = {"groups": [{"name": "apps"}, {"name": "mptraining.dev"}]}
RESOURCES = {"resources": [{"name": "mptrainingjobs"}, {"name": "mptrainingjobs/status"}]}


@pytest.mark.parametrize(
    ("answers", "served"),
    [
        ((answer(GROUPS), answer(RESOURCES)), True),
        ((answer(GROUPS), answer({"resources": [{"name": "others"}]})), False),
        ((answer(GROUPS), answer(b"404 page not found", 404)), False),
        # Its objects can be had before it is named.
        ((answer({"groups": [{"name": "apps"}]}),), False),
    ],
)
def test_what_discovery_names_is_served(answers: tuple[Any, ...], served: bool) -> None:
    wire = Wire(*answers)
    assert connected(wire).serves(api.JOBS) is served
    assert [sent[1] for sent in wire.sent] == ["https://server/apis", "https://server/apis/mptraining.dev/v1alpha1"][
        : len(answers)
    ]


def test_discovery_that_does_not_answer_says_nothing() -> None:
    counted: list[dict[str, Any]] = []
    wire = Wire(answer({}, 503))
    with pytest.raises(ApiProblem):
        connected(wire, count=lambda **call: counted.append(call)).serves(api.PODS)
    assert wire.sent[0][1] == "https://server/api/v1"
    assert counted == [{"verb": "get", "resource": "", "code": 503}]


def test_the_status_is_patched_over_the_version_that_was_seen() -> None:
    wire = Wire(answer({}))
    connected(wire).patch_job_status("team", "flowers", 12, {"phase": "Running", "workers": None})
    method, url, body, headers = wire.sent[0]
    assert (method, headers["Content-Type"]) == ("PATCH", "application/merge-patch+json")
    assert url.endswith("/mptrainingjobs/flowers/status")
    assert body == {"metadata": {"resourceVersion": "12"}, "status": {"phase": "Running", "workers": None}}


def test_progress_is_written_by_its_own_manager_into_this_very_job() -> None:
    wire = Wire(answer({}))
    connected(wire).write_progress("team", "flowers", "u-1", {"step": 3})
    _, url, body, headers = wire.sent[0]
    assert url.endswith("/flowers/status?fieldManager=mptraining-progress")
    assert headers["Content-Type"] == "application/json-patch+json"
    assert body == [
        {"op": "test", "path": "/metadata/uid", "value": "u-1"},
        {"op": "add", "path": "/status/progress", "value": {"step": 3}},
    ]


def test_a_deletion_names_uid_and_propagation() -> None:
    wire = Wire(answer({}))
    connected(wire).delete(api.BATCH_JOBS, "team", "flowers-1", uid="u", propagation="Foreground")
    assert wire.sent[0][2] == {"preconditions": {"uid": "u"}, "propagationPolicy": "Foreground"}


def test_a_token_review() -> None:
    wire = Wire(answer({"status": {"authenticated": True}}, 201))
    assert connected(wire).review_token("secret", ("a", "b")) == {"authenticated": True}
    assert wire.sent[0][1].endswith("/apis/authentication.k8s.io/v1/tokenreviews")
    assert wire.sent[0][2]["spec"] == {"token": "secret", "audiences": ["a", "b"]}


@pytest.mark.parametrize(
    ("no", "status", "reason", "message", "pause"),
    [
        (answer({"reason": "Conflict", "message": "modified"}, 409), 409, "Conflict", "modified", None),
        (answer({"reason": "TooMany", "message": "x"}, 429, {"Retry-After": "3"}), 429, "TooMany", "x", 3),
        (answer(b"<html>bad gateway</html>", 502), 502, "Unknown", "<html>bad gateway</html>", None),
        (answer(b"", 503), 503, "Unknown", "no message", None),
        (answer([1], 500), 500, "Unknown", "[1]", None),
        (urllib3.exceptions.ReadTimeoutError(None, "/", "timed out"), 0, "NoAnswer", "timed out", None),  # type: ignore[arg-type]
        (OSError("reset"), 0, "NoAnswer", "reset", None),
    ],
)  # fmt: skip
def test_every_no_is_one_kind_of_problem(no: Any, status: int, reason: str, message: str, pause: float | None) -> None:
    counted: list[tuple[str, str, int]] = []

    def count(*, verb: str, resource: str, code: int) -> None:
        counted.append((verb, resource, code))

    with pytest.raises(ApiProblem) as caught:
        connected(Wire(no), count=count).get(api.NODES, None, "n")
    problem = caught.value
    assert (problem.status, problem.reason, problem.retry_after) == (status, reason, pause)
    assert message in problem.message
    assert counted == [("get", "nodes", status)]


def test_a_namespace_that_goes_is_told_from_a_quota() -> None:
    causes = {"causes": [{"reason": "NamespaceTerminating", "field": "metadata.namespace"}]}
    body = {"reason": "Forbidden", "message": "unable to create new content", "details": causes}
    with pytest.raises(ApiProblem) as caught:
        connected(Wire(answer(body, 403))).create(api.SERVICES, "team", {})
    assert caught.value.namespace_is_going
    assert not ApiProblem(403, "Forbidden", "exceeded quota: q").namespace_is_going


def test_names_cannot_leave_their_place_in_the_path() -> None:
    wire = Wire(answer({}))
    connected(wire).get(api.NODES, None, "../secrets")
    assert wire.sent[0][1] == "https://server/api/v1/nodes/..%2Fsecrets"


def test_answers_tell_the_time() -> None:
    time = ServerTime(lambda: 1_767_225_600.0)
    wire = Wire(answer({}, headers={"Date": "Thu, 01 Jan 2026 00:01:00 GMT"}), answer({}))
    cluster = connected(wire, server_time=time)
    cluster.get(api.JOBS, "team", "flowers")
    assert time() == 1_767_225_660.0
    cluster.get(api.JOBS, "team", "flowers")
    assert time() == 1_767_225_660.0, "an answer without a date is no news"
