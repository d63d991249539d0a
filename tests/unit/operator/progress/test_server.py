"""The endpoint over real TLS: its answers and its limits."""

from __future__ import annotations

import logging
import socket
import ssl
import struct
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import requests

from mptraining_api import events
from mptraining_api.kubernetes_api import ApiProblem
from mptraining_api.status import Progress
from mptraining_operator.plan.snapshot import Key
from mptraining_operator.progress import server as progress_server
from mptraining_operator.progress.auth import LARGEST_BODY, JobForProgress, Refused, TokenReviewer, report_path
from mptraining_operator.progress.certificate import issue_certificate
from mptraining_operator.progress.server import ProgressServer
from mptraining_operator.progress.status import Report
from mptraining_operator.resources import names

KEY = Key("team-a", "flowers")
JOB = JobForProgress("uid-1", 2, {"pod-0": 0, "pod-1": 1}, Progress(attempt=1, step=3))
CERTIFICATE = issue_certificate(("localhost",), time.time())


class ApiServer:
    """TokenReview: accepts the tokens that it has issued."""

    def __init__(self) -> None:
        self.users: dict[str, tuple[str, dict[str, Any]]] = {}
        self.reviews = 0
        self.problem: Exception | None = None

    def token(self, pod: str | None = "pod-0", *, audience: str = names.audience("team-a", "uid-1")) -> str:
        token = f"token-{len(self.users)}"
        extra = {"authentication.kubernetes.io/pod-uid": [pod]} if pod else {}
        self.users[token] = audience, {"username": "system:serviceaccount:team-a:default", "extra": extra}
        return token

    def review(self, token: str, audiences: tuple[str, ...]) -> Mapping[str, Any]:
        self.reviews += 1
        if self.problem is not None:
            raise self.problem
        audience, user = self.users.get(token, ("", {}))
        if audience not in audiences:
            return {"authenticated": False, "error": "invalid bearer token"}
        return {"authenticated": True, "audiences": [audience], "user": user}


class Endpoint:
    """A running server with everything around it that a test may change."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.api = ApiServer()
        self.jobs: dict[Key, JobForProgress] = {KEY: JOB}
        self.offered: list[tuple[Key, str, Report, Progress | None]] = []
        self.problem: Exception | None = None
        self.refused: list[int] = []
        reviewer = TokenReviewer(self.api.review, lambda: 0.0, 60)
        given = {"host": "127.0.0.1", "offer": self.offer, "count_refused": self.refused.append, **options}
        self.server = ProgressServer(0, self.lookup, reviewer, certificate=CERTIFICATE, **given)
        self.trusted = folder / "certificate.pem"
        self.trusted.write_bytes(CERTIFICATE.cert_pem)
        self.session = requests.Session()
        self.session.trust_env = False

    def lookup(self, key: Key) -> JobForProgress | None:
        if self.problem is not None:
            raise self.problem
        return self.jobs.get(key)

    def offer(self, key: Key, uid: str, report: Report, previous: Progress | None) -> None:
        self.offered.append((key, uid, report, previous))

    @property
    def url(self) -> str:
        return f"https://localhost:{self.server.port}{report_path(KEY)}"

    def post(
        self, body: Any = None, *, token: str | None = "", url: str | None = None, method: str = "POST"
    ) -> requests.Response:
        token = self.api.token() if token == "" else token
        return self.session.request(
            method,
            url or self.url,
            data=report().to_json() if body is None else body,
            headers={} if token is None else {"Authorization": token if " " in token else f"Bearer {token}"},
            verify=str(self.trusted),
            timeout=240,
        )

    def tls(self) -> ssl.SSLSocket:
        """Return a plain connection."""
        context = ssl.create_default_context(cafile=str(self.trusted))
        return context.wrap_socket(self.tcp(), server_hostname="localhost")

    def tcp(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.server.port), 60)

    def head(self, length: int, token: str) -> bytes:
        """Return the head of a request."""
        authorization = f"Authorization: Bearer {token}\r\n"
        return (
            f"POST {report_path(KEY)} HTTP/1.1\r\nHost: x\r\n{authorization}Content-Length: {length}\r\n\r\n".encode()
        )

    def __enter__(self) -> Endpoint:
        self.server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.session.close()
        self.server.stop()


def report(step: int = 5, *, attempt: int = 2, **more: Any) -> events.Progress:
    fields: dict[str, Any] = {"epoch": 1, "metrics": {"loss": 0.5}, "total_steps": 100, **more}
    return events.Progress(time=1.0, attempt=attempt, incarnation="pod-0", worker=0, step=step, **fields)


def finished() -> events.Finished:
    return events.Finished(
        time=1.0, attempt=2, incarnation="pod-0", worker=0, reason="Succeeded", exit_code=0, message="done"
    )


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[Endpoint]:
    with Endpoint(tmp_path) as started:
        yield started


def error(response: requests.Response) -> str:
    """Return the error, which must be one line of JSON."""
    assert response.headers["Content-Type"].startswith("application/json")
    assert response.text.count("\n") == 1
    return str(response.json()["error"])


# Reports of worker 0.


@pytest.mark.parametrize("event", [report(), finished()], ids=["Progress", "Finished"])
def test_a_worker_s_report_is_taken(endpoint: Endpoint, event: Report) -> None:
    response = endpoint.post(event.to_json())
    assert (response.status_code, response.json()) == (202, {})
    # No connection waits for the next report.
    assert response.headers["Connection"] == "close"
    assert endpoint.offered == [(KEY, "uid-1", event, JOB.progress)]


def test_reports_that_are_not_accepted_are_counted_by_their_status(endpoint: Endpoint) -> None:
    assert endpoint.post().status_code == 202
    answers = [
        endpoint.post("step 5"),
        endpoint.post(token=None),
        endpoint.post("x" * (LARGEST_BODY + 1)),
        endpoint.post(report(attempt=1).to_json()),
    ]
    assert error(answers[-1]) == "attempt 1 is not the current one, 2"
    endpoint.problem = Refused(503, "the operator has just started: report again later", 10)
    answers.append(endpoint.post())
    assert answers[-1].headers["Retry-After"] == "10"
    assert [answer.status_code for answer in answers] == [400, 401, 413, 409, 503]
    assert endpoint.refused == [400, 401, 413, 409, 503]


LINE = report().to_json()


@pytest.mark.parametrize(
    "body",
    [
        "",
        "step 5",
        "[" * 60_000,
        LINE.replace('"loss":0.5', '"loss":"low"'),
        LINE + "\n" + LINE,
        events.Notice(time=1.0, attempt=2, incarnation="p", worker=0, topic="T", message="m").to_json(),
    ],
)
def test_400(endpoint: Endpoint, body: str | bytes) -> None:
    response = endpoint.post(body)
    assert response.status_code == 400
    assert error(response) == "send one Event of kind Progress or Finished, as the trainer prints it"
    assert endpoint.offered == []


# Other clients.


@pytest.mark.parametrize("token", [None, "Basic dXNlcjpwYXNz", "Bearer ", "forged"])
def test_401(endpoint: Endpoint, token: str | None) -> None:
    response = endpoint.post(token=token)
    assert response.status_code == 401
    assert ("expired, forged" if token == "forged" else "no token") in error(response)


def test_401_does_not_tell_whether_there_is_such_a_job(endpoint: Endpoint) -> None:
    other = endpoint.url.replace("flowers", "nothing")
    answers = [endpoint.post(token="forged", url=url) for url in (endpoint.url, other)]
    assert [answer.status_code for answer in answers] == [401, 401]
    assert answers[0].text == answers[1].text
    assert answers[0].headers["Retry-After"] == answers[1].headers["Retry-After"] == "5"
    # Nor does the time that an answer takes.
    assert endpoint.api.reviews == 2


@pytest.mark.parametrize("pod", ["pod-1", "pod-9"], ids=["worker 1", "of an old attempt, or not seen yet"])
def test_403_for_a_pod_that_is_not_the_live_worker_0(endpoint: Endpoint, pod: str) -> None:
    response = endpoint.post(token=endpoint.api.token(pod))
    assert (response.status_code, response.headers["Retry-After"]) == (403, "5")
    assert "not the live worker 0 of attempt 2" in error(response)
    assert endpoint.offered == []


def test_without_a_valid_token_no_body_is_read(endpoint: Endpoint) -> None:
    with endpoint.tls() as connection:
        connection.settimeout(60)
        connection.sendall(endpoint.head(10_000_000_000, "forged"))
        assert connection.recv(1000).startswith(b"HTTP/1.1 401 ")


def test_413_is_for_more_than_the_largest_body(endpoint: Endpoint) -> None:
    assert endpoint.post(LINE.ljust(LARGEST_BODY)).status_code == 202
    assert endpoint.post(LINE.ljust(LARGEST_BODY + 1)).status_code == 413
    assert endpoint.post(part for part in [b"x" * LARGEST_BODY, b"x"]).status_code == 413
    assert len(endpoint.offered) == 1


def test_plain_http_is_refused(endpoint: Endpoint) -> None:
    with pytest.raises(requests.ConnectionError):
        endpoint.post(url=endpoint.url.replace("https:", "http:"))
    assert endpoint.post().status_code == 202


# Failures of the operator and of the API server.


def test_503_while_the_api_server_is_away(endpoint: Endpoint) -> None:
    endpoint.api.problem = ApiProblem(0, "NoAnswer", "the token is secret")
    response = endpoint.post()
    assert (response.status_code, response.headers["Retry-After"]) == (503, "10")
    assert "secret" not in error(response)
    endpoint.api.problem = None
    assert endpoint.post().status_code == 202


def test_500_contains_no_internal_details(endpoint: Endpoint, caplog: pytest.LogCaptureFixture) -> None:
    endpoint.problem = RuntimeError("inside")
    with caplog.at_level(logging.ERROR):
        response = endpoint.post()
    assert response.status_code == 500
    assert "inside" not in response.text
    assert "Traceback" not in response.text
    assert "inside" in caplog.text


# Connections.


def test_504_for_a_body_that_does_not_come(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_server, "_REQUEST_SECONDS", 0.2)
    with endpoint.tls() as connection:
        connection.settimeout(60)
        connection.sendall(endpoint.head(10, endpoint.api.token()))
        assert connection.recv(1000).startswith(b"HTTP/1.1 504 ")


@pytest.mark.parametrize("sent", [b"", b"POST / HT"])
def test_a_silent_connection_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    monkeypatch.setattr(progress_server, "_HEAD_SECONDS", 0.2)
    with Endpoint(tmp_path) as endpoint, endpoint.tls() as connection:
        connection.settimeout(60)
        answer = b""
        # On a busy machine it may have been closed before it sends this much.
        with suppress(ssl.SSLError, ConnectionError):
            connection.sendall(sent)
            answer = connection.recv(1000)
        assert answer == b""


def test_a_client_that_disconnects_in_mid_report_leaves_no_traceback(
    endpoint: Endpoint, caplog: pytest.LogCaptureFixture
) -> None:
    with endpoint.tls() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.sendall(endpoint.head(9, endpoint.api.token()))
        until = time.monotonic() + 60
        while not endpoint.api.reviews and time.monotonic() < until:
            time.sleep(0.005)
    assert endpoint.post().status_code == 202
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.parametrize("handshake", [True, False])
def test_connections_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, handshake: bool) -> None:
    monkeypatch.setattr(progress_server, "_HANDSHAKE_SECONDS", 600.0)
    monkeypatch.setattr(progress_server, "_HEAD_SECONDS", 600.0)
    with Endpoint(tmp_path, most_connections=1) as endpoint:
        with endpoint.tls() if handshake else endpoint.tcp(), pytest.raises(requests.ConnectionError):
            endpoint.post()
        until = time.monotonic() + 60
        while True:
            with suppress(requests.ConnectionError):
                assert endpoint.post().status_code == 202
                break
            assert time.monotonic() < until


# Start and stop.


def test_all_addresses_are_listened_on(tmp_path: Path) -> None:
    with Endpoint(tmp_path, host=None) as endpoint:
        assert endpoint.post().status_code == 202
        assert endpoint.server.alive
    assert not endpoint.server.alive
