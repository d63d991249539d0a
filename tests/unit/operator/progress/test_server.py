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
from mptraining_operator.jobs.resources import names
from mptraining_operator.progress import server as progress_server
from mptraining_operator.progress.auth import LARGEST_BODY, JobForProgress, Refused, TokenReviewer, report_path
from mptraining_operator.progress.certificate import issue_certificate
from mptraining_operator.progress.server import ProgressServer
from mptraining_operator.progress.status import Report
from mptraining_operator.runtime import server_thread
from mptraining_operator.runtime.values import Key

KEY = Key("team-a", "flowers")
JOB = JobForProgress("uid-1", 2, {"pod-0": 0, "pod-1": 1}, Progress(attempt=1, step=3))
CERTIFICATE = issue_certificate(("localhost",), time.time())


def report(attempt: int = 2) -> events.Progress:
    metrics = {"loss": 0.5}
    return events.Progress(
        time=1.0, attempt=attempt, incarnation="pod-0", worker=0, step=5, epoch=1, metrics=metrics, total_steps=100
    )


LINE = report().to_json()
NOTICE = events.Notice(time=1.0, attempt=2, incarnation="p", worker=0, topic="T", message="m")
FINISHED = events.Finished(
    time=1.0, attempt=2, incarnation="pod-0", worker=0, reason="Succeeded", exit_code=0, message="done"
)


class Endpoint:
    """A running server with everything around it that a test may change; tokens are `pod/audience`."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.offered: list[tuple[Key, str, Report, Progress | None]] = []
        self.refused: list[int] = []
        self.reviews = 0
        # Of the API server, and of the cache.
        self.no_review: Exception | None = None
        self.no_lookup: Exception | None = None
        reviewer = TokenReviewer(self.review, lambda: 0.0, 60)
        given = {"host": "127.0.0.1", "count_refused": self.refused.append, **options}
        self.server = ProgressServer(0, self.lookup, reviewer, self.offer, CERTIFICATE, **given)
        self.trusted = folder / "certificate.pem"
        self.trusted.write_bytes(CERTIFICATE.cert_pem)
        self.session = requests.Session()
        self.session.trust_env = False

    def review(self, token: str, audiences: tuple[str, ...]) -> Mapping[str, Any]:
        self.reviews += 1
        if self.no_review is not None:
            raise self.no_review
        pod, _, audience = token.partition("/")
        if audience not in audiences:
            return {"authenticated": False, "error": "invalid bearer token"}
        user = {"username": "default", "extra": {"authentication.kubernetes.io/pod-uid": [pod]}}
        return {"authenticated": True, "audiences": [audience], "user": user}

    def lookup(self, key: Key) -> JobForProgress | None:
        if self.no_lookup is not None:
            raise self.no_lookup
        return JOB if key == KEY else None

    def offer(self, key: Key, uid: str, report: Report, previous: Progress | None) -> None:
        self.offered.append((key, uid, report, previous))

    @property
    def url(self) -> str:
        return f"https://localhost:{self.server.port}{report_path(KEY)}"

    def post(self, body: Any = LINE, *, authorization: str | None = "", url: str | None = None) -> requests.Response:
        authorization = f"Bearer {token()}" if authorization == "" else authorization
        headers = {} if authorization is None else {"Authorization": authorization}
        return self.session.post(url or self.url, data=body, headers=headers, verify=str(self.trusted), timeout=240)

    def tls(self) -> ssl.SSLSocket:
        """Return a plain connection."""
        context = ssl.create_default_context(cafile=str(self.trusted))
        connection = context.wrap_socket(self.tcp(), server_hostname="localhost")
        connection.settimeout(60)
        return connection

    def tcp(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.server.port), 60)

    def __enter__(self) -> Endpoint:
        self.server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.session.close()
        self.server.stop()


def token(pod: str = "pod-0") -> str:
    return f"{pod}/{names.audience('team-a', 'uid-1')}"


def head(length: int, token: str) -> bytes:
    """Return the head of a request."""
    headers = f"Host: x\r\nAuthorization: Bearer {token}\r\nContent-Length: {length}\r\n\r\n"
    return f"POST {report_path(KEY)} HTTP/1.1\r\n{headers}".encode()


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[Endpoint]:
    with Endpoint(tmp_path) as started:
        yield started


def error(response: requests.Response) -> str:
    """Return the error, which must be one line of JSON."""
    assert response.headers["Content-Type"].startswith("application/json")
    assert response.text.count("\n") == 1
    return str(response.json()["error"])


@pytest.mark.parametrize("event", [report(), FINISHED], ids=["Progress", "Finished"])
def test_a_worker_s_report_is_taken(endpoint: Endpoint, event: Report) -> None:
    response = endpoint.post(event.to_json())
    assert (response.status_code, response.json()) == (202, {})
    # No connection waits for the next report.
    assert response.headers["Connection"] == "close"
    assert (endpoint.offered, endpoint.refused) == ([(KEY, "uid-1", event, JOB.progress)], [])


NO_EVENT = "send one Event of kind Progress or Finished, as the trainer prints it"


@pytest.mark.parametrize(
    ("status", "words", "sent"),
    [
        (400, NO_EVENT, {"body": ""}),
        (400, NO_EVENT, {"body": "step 5"}),
        (400, NO_EVENT, {"body": "[" * 60_000}),
        (400, NO_EVENT, {"body": LINE.replace('"loss":0.5', '"loss":"low"')}),
        (400, NO_EVENT, {"body": LINE + "\n" + LINE}),
        (400, NO_EVENT, {"body": NOTICE.to_json()}),
        (401, "no token", {"authorization": None}),
        (401, "no token", {"authorization": "Basic dXNlcjpwYXNz"}),
        (401, "no token", {"authorization": "Bearer "}),
        (401, "expired, forged", {"authorization": "Bearer forged"}),
        # Not the live worker 0: worker 1, and a pod of an old attempt, or not seen yet.
        (403, "not the live worker 0 of attempt 2", {"authorization": f"Bearer {token('pod-1')}"}),
        (403, "not the live worker 0 of attempt 2", {"authorization": f"Bearer {token('pod-9')}"}),
        (409, "attempt 1 is not the current one, 2", {"body": report(attempt=1).to_json()}),
    ],
)
def test_a_report_that_is_not_accepted(endpoint: Endpoint, status: int, words: str, sent: dict[str, Any]) -> None:
    response = endpoint.post(**sent)
    assert (response.status_code, endpoint.refused, endpoint.offered) == (status, [status], [])
    assert words in error(response)
    assert response.headers.get("Retry-After") == ("5" if status == 403 or "forged" in words else None)


def test_401_does_not_tell_whether_there_is_such_a_job(endpoint: Endpoint) -> None:
    urls = (endpoint.url, endpoint.url.replace("flowers", "nothing"))
    here, nowhere = (endpoint.post(authorization="Bearer forged", url=url) for url in urls)
    assert (here.status_code, here.text, here.headers["Retry-After"]) == (401, nowhere.text, "5")
    assert (nowhere.status_code, nowhere.headers["Retry-After"]) == (401, "5")
    # Nor does the time that an answer takes.
    assert endpoint.reviews == 2


def test_without_a_valid_token_no_body_is_read(endpoint: Endpoint) -> None:
    with endpoint.tls() as connection:
        connection.sendall(head(10_000_000_000, "forged"))
        assert connection.recv(1000).startswith(b"HTTP/1.1 401 ")


def test_413_is_for_more_than_the_largest_body(endpoint: Endpoint) -> None:
    assert endpoint.post(LINE.ljust(LARGEST_BODY)).status_code == 202
    assert endpoint.post(LINE.ljust(LARGEST_BODY + 1)).status_code == 413
    assert endpoint.post(part for part in [b"x" * LARGEST_BODY, b"x"]).status_code == 413
    assert (len(endpoint.offered), endpoint.refused) == (1, [413, 413])


def test_plain_http_is_refused(endpoint: Endpoint) -> None:
    with pytest.raises(requests.ConnectionError):
        endpoint.post(url=endpoint.url.replace("https:", "http:"))


def test_failures_of_the_operator_and_of_the_api_server(endpoint: Endpoint, caplog: pytest.LogCaptureFixture) -> None:
    endpoint.no_review = ApiProblem(0, "NoAnswer", "the token is secret")
    away = endpoint.post()
    endpoint.no_review, endpoint.no_lookup = None, Refused(503, "the operator has just started: report again later", 10)
    starts = endpoint.post()
    assert [each.headers["Retry-After"] for each in (away, starts)] == ["10", "10"]
    assert "secret" not in error(away)
    endpoint.no_lookup = RuntimeError("inside")
    with caplog.at_level(logging.ERROR):
        fault = endpoint.post()
    assert "inside" in caplog.text
    assert not [word for word in ("inside", "Traceback") if word in fault.text]
    assert endpoint.refused == [503, 503, 500] == [each.status_code for each in (away, starts, fault)]
    endpoint.no_lookup = None
    assert endpoint.post().status_code == 202


def test_504_for_a_body_that_does_not_come(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_server, "_REQUEST_SECONDS", 0.2)
    with endpoint.tls() as connection:
        connection.sendall(head(10, token()))
        assert connection.recv(1000).startswith(b"HTTP/1.1 504 ")


@pytest.mark.parametrize("sent", [b"", b"POST / HT"])
def test_a_silent_connection_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    monkeypatch.setattr(server_thread, "_HEAD_SECONDS", 0.2)
    with Endpoint(tmp_path) as endpoint, endpoint.tls() as connection:
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
        connection.sendall(head(9, token()))
        until = time.monotonic() + 60
        while not endpoint.reviews and time.monotonic() < until:
            time.sleep(0.005)
    assert endpoint.post().status_code == 202
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.parametrize("handshake", [True, False])
def test_connections_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, handshake: bool) -> None:
    monkeypatch.setattr(progress_server, "_HANDSHAKE_SECONDS", 600.0)
    monkeypatch.setattr(server_thread, "_HEAD_SECONDS", 600.0)
    with Endpoint(tmp_path, most_connections=1) as endpoint:
        with endpoint.tls() if handshake else endpoint.tcp(), pytest.raises(requests.ConnectionError):
            endpoint.post()
        until = time.monotonic() + 60
        while True:
            with suppress(requests.ConnectionError):
                assert endpoint.post().status_code == 202
                break
            assert time.monotonic() < until


def test_all_addresses_are_listened_on(tmp_path: Path) -> None:
    with Endpoint(tmp_path, host="") as endpoint:
        assert endpoint.post().status_code == 202
        assert endpoint.server.alive
    assert not endpoint.server.alive
