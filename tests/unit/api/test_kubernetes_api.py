"""Requests as the `kubernetes` package sends them, and errors of every kind."""

from __future__ import annotations

import json
from collections.abc import Mapping
from io import BytesIO
from typing import Any

import pytest
import urllib3
from kubernetes import client

from mptraining_api import kubernetes_api as api
from mptraining_api.kubernetes_api import ApiProblem


class Wire:
    """Connections of the package's client; the responses are from a list."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.sent: list[tuple[str, str, Any, dict[str, str]]] = []

    proxy = None

    def connection_from_url(self, url: str) -> Wire:
        self.host = url
        return self

    def urlopen(self, method: str, target: str, *, headers: dict[str, str], **rest: Any) -> Any:
        body, url = rest.get("body"), f"https://server{target}"
        self.sent.append((method, url, json.loads(body) if body else None, headers))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def connected(wire: Wire) -> client.ApiClient:
    one = client.ApiClient(client.Configuration(host="https://server", api_key={"authorization": "Bearer t"}))
    one.rest_client.pool_manager = wire
    return one


def answer(body: Any = None, status: int = 200, headers: Mapping[str, str] | None = None) -> Any:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return urllib3.HTTPResponse(body=BytesIO(data), status=status, headers=headers or {})


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (api.JOBS.path("team", "flowers"), "/apis/mptraining.dev/v1alpha1/namespaces/team/mptrainingjobs/flowers"),
        (api.JOBS.path(None), "/apis/mptraining.dev/v1alpha1/mptrainingjobs"),
        (api.PODS.path("team", "flowers-1-0-x", "log"), "/api/v1/namespaces/team/pods/flowers-1-0-x/log"),
        (api.NODES.path("team"), "/api/v1/nodes"),
        (api.NODES.path(None, "../secrets"), "/api/v1/nodes/..%2Fsecrets"),
    ],
)
def test_paths(path: str, expected: str) -> None:
    assert path == expected


def test_a_request_and_its_response() -> None:
    wire = Wire(answer({"kind": "Pod"}, 201, {"Date": "today"}))
    body, status, headers = api.send(
        connected(wire), "PATCH", "/pods", query={"a": "b/+"}, body={"x": 1}, content_type=api.MERGE_PATCH
    )
    assert (body, status, headers["Date"]) == ({"kind": "Pod"}, 201, "today")
    method, url, sent, sent_headers = wire.sent[0]
    assert (method, url, sent) == ("PATCH", "https://server/pods?a=b%2F%2B", {"x": 1})
    assert sent_headers["authorization"] == "Bearer t"
    assert sent_headers["Content-Type"] == "application/merge-patch+json"


def test_pages_of_a_list() -> None:
    first, last = {"items": [1], "metadata": {"continue": "more"}}, {"items": None, "metadata": {}}
    answers, queries = [first, last], []

    def get(query: Mapping[str, str]) -> dict[str, Any]:
        queries.append(dict(query))
        return answers.pop(0)

    assert list(api.pages(get, {"labelSelector": "x=y"})) == [first, last]
    asked = {"limit": "500", "labelSelector": "x=y"}
    assert queries == [asked, asked | {"continue": "more"}]


@pytest.mark.parametrize(
    ("no", "status", "reason", "message", "pause"),
    [
        (answer({"reason": "Conflict", "message": "modified"}, 409), 409, "Conflict", "modified", None),
        (answer({"reason": "TooMany", "message": "x"}, 429, {"Retry-After": "3"}), 429, "TooMany", "x", 3),
        (answer(b"<html>bad gateway</html>", 502), 502, "Unknown", "<html>bad gateway</html>", None),
        (answer(b"", 503), 503, "Unknown", "no message", None),
        (answer([1], 500), 500, "Unknown", "[1]", None),
        (urllib3.exceptions.ReadTimeoutError(None, "/", "timed out"), 0, "NoAnswer", "timed out", None),  # type: ignore[arg-type]
        (urllib3.exceptions.SSLError("self-signed"), 0, "NoAnswer", "self-signed", None),
        (OSError("reset"), 0, "NoAnswer", "reset", None),
    ],
)  # fmt: skip
def test_errors(no: Any, status: int, reason: str, message: str, pause: float | None) -> None:
    with pytest.raises(ApiProblem) as caught:
        api.send(connected(Wire(no)), "GET", "/nodes")
    problem = caught.value
    assert (problem.status, problem.reason, problem.retry_after) == (status, reason, pause)
    assert message in problem.message
    assert ("GET /nodes" in str(problem)) is (status == 0)


def test_the_innermost_cause_of_a_failed_connection() -> None:
    cause = urllib3.exceptions.NewConnectionError(None, "Connection refused")  # type: ignore[arg-type]
    error = urllib3.exceptions.MaxRetryError(None, "/nodes", cause)  # type: ignore[arg-type]
    with pytest.raises(ApiProblem, match=r"Connection refused$") as caught:
        api.send(connected(Wire(error)), "GET", "/nodes")
    assert "Max retries" not in str(caught.value)
    # An error in the program is not an answer.
    with pytest.raises(AttributeError, match="no attribute"):
        api.send(connected(Wire(AttributeError("no attribute"))), "GET", "/nodes")


def test_the_details_of_a_status() -> None:
    causes = [{"reason": "NamespaceTerminating", "field": "metadata.namespace"}]
    body = {"reason": "Forbidden", "message": "unable to create", "details": {"causes": causes}}
    problem = api.api_problem(403, json.dumps(body))
    assert (problem.kind, problem.causes, problem.namespace_terminating) == ("", ("NamespaceTerminating",), True)
    # The cause counts, not the words.
    assert not ApiProblem(403, "Forbidden", "exceeded quota: because it is being terminated").namespace_terminating
    body = {"reason": "NotFound", "message": "no", "details": {"name": "team", "kind": "namespaces"}}
    assert api.api_problem(404, json.dumps(body).encode()).kind == "namespaces"
