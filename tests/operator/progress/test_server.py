"""The endpoint over real TLS: every answer it gives, to bare requests and to the trainer's own reporter."""

from __future__ import annotations

import base64
import json
import logging
import resource
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml

from mptraining_api import events
from mptraining_api.status import Progress
from mptraining_operator.plan.snapshot import Key
from mptraining_operator.progress import server as progress_server
from mptraining_operator.progress.auth import LARGEST_BODY, JobForProgress, TokenReviewer, report_path
from mptraining_operator.progress.certificate import Certificate, issue_certificate
from mptraining_operator.progress.server import NotReady, ProgressServer
from mptraining_operator.progress.status import Report
from mptraining_operator.progress.writer import ProgressWriter
from mptraining_operator.resources import names
from mptraining_operator.settings import ProgressSettings
from mptraining_trainer.reporting import progress_reporter
from mptraining_trainer.reporting.progress_reporter import Reporter

KEY = Key("team-a", "flowers")
JOB = JobForProgress("uid-1", 2, {"pod-0": 0, "pod-1": 1}, Progress(attempt=1, step=3))
NAMES = ("localhost",)


def jwt(audience: str, signature: str = "good") -> str:
    claims = base64.urlsafe_b64encode(json.dumps({"aud": [audience]}).encode()).decode().rstrip("=")
    return f"e30.{claims}.{signature}"


class ApiServer:
    """TokenReview: knows which tokens are good, and whose they are."""

    def __init__(self) -> None:
        self.users: dict[str, dict[str, Any]] = {}
        self.asked = 0
        self.problem: Exception | None = None

    def token(
        self,
        *,
        uid: str = "uid-1",
        namespace: str = "team-a",
        pod: tuple[str, str] | None = ("flowers-2-0-abcde", "pod-0"),
    ) -> str:
        made = jwt(names.audience(namespace, uid), f"good-{len(self.users)}")
        extra = {}
        if pod is not None:
            extra["authentication.kubernetes.io/pod-name"] = [pod[0]]
            extra["authentication.kubernetes.io/pod-uid"] = [pod[1]]
        self.users[made] = {"username": f"system:serviceaccount:{namespace}:default", "extra": extra}
        return made

    def review(self, token: str, audiences: tuple[str, ...]) -> Mapping[str, Any]:
        self.asked += 1
        if self.problem is not None:
            raise self.problem
        if token not in self.users:
            return {"authenticated": False, "error": "invalid bearer token"}
        return {"authenticated": True, "audiences": list(audiences), "user": self.users[token]}


class Writer:
    """Keeps what it is offered."""

    def __init__(self) -> None:
        self.offered: list[tuple[Key, str, Report, Progress | None]] = []
        self.heard = threading.Condition()
        self.problem: Exception | None = None

    def offer(self, key: Key, uid: str, report: Report, previous: Progress | None) -> None:
        if self.problem is not None:
            raise self.problem
        with self.heard:
            self.offered.append((key, uid, report, previous))
            self.heard.notify_all()

    def wait(self, number: int) -> None:
        with self.heard:
            assert self.heard.wait_for(lambda: len(self.offered) >= number, 60)


class Keeper:
    def __init__(self, certificate: Certificate) -> None:
        self.current = certificate
        self.next: Certificate | None = None
        self.looked = threading.Event()

    def refresh(self) -> bool:
        self.looked.set()
        if self.next is None:
            return False
        self.current, self.next = self.next, None
        return True


class Endpoint:
    """A running server with everything around it that a test may turn."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.api = ApiServer()
        self.writer = Writer()
        self.jobs: dict[Key, JobForProgress] = {KEY: JOB}
        self.problem: Exception | None = None
        self.keeper = Keeper(CERTIFICATE)
        self.server = ProgressServer(
            ProgressSettings(port=0),
            self.lookup,
            TokenReviewer(self.api.review, lambda: 0.0, 60),
            self.writer,
            self.keeper,
            **{"host": "127.0.0.1", **options},
        )
        self.authority = folder / "ca.pem"
        self.authority.write_bytes(self.keeper.current.ca_pem)
        self.session = requests.Session()
        self.session.trust_env = False

    def lookup(self, key: Key) -> JobForProgress | None:
        if self.problem is not None:
            raise self.problem
        return self.jobs.get(key)

    @property
    def address(self) -> str:
        return f"https://localhost:{self.server.port}"

    def post(
        self,
        body: Any = None,
        *,
        token: str | None = "",
        key: Key = KEY,
        method: str = "POST",
        url: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> requests.Response:
        token = self.api.token() if token == "" else token
        sent = {} if token is None else {"Authorization": f"Bearer {token}"}
        return self.session.request(
            method,
            url or f"{self.address}{report_path(key)}",
            data=report().to_json() if body is None else body,
            headers={**sent, **(headers or {})},
            verify=str(self.authority),
            timeout=240,
        )

    def tls(self) -> ssl.SSLSocket:
        """A bare connection."""
        bare = socket.create_connection(("127.0.0.1", self.server.port), 60)
        return ssl.create_default_context(cafile=str(self.authority)).wrap_socket(bare, server_hostname="localhost")

    def __enter__(self) -> Endpoint:
        self.server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.session.close()
        self.server.stop()


# Real clocks look at it.
CERTIFICATE = issue_certificate(NAMES, time.time())


def report(step: int = 5, *, attempt: int = 2, **more: Any) -> events.Progress:
    fields: dict[str, Any] = {"epoch": 1, "metrics": {"loss": 0.5}, "total_steps": 100, **more}
    return events.Progress(time=1.0, attempt=attempt, incarnation="pod-0", worker=0, step=step, **fields)


def finished(attempt: int = 2) -> events.Finished:
    return events.Finished(
        time=1.0, attempt=attempt, incarnation="pod-0", worker=0, reason="Succeeded", exit_code=0, message="done"
    )


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer on this machine comes at once, or the machine is busy: that is no trouble of the reports."""
    monkeypatch.setattr(progress_reporter, "_TIMEOUT", (60.0, 60.0))
    monkeypatch.setattr(progress_reporter, "_LAST_TIMEOUT", (60.0, 60.0))


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[Endpoint]:
    with Endpoint(tmp_path) as started:
        yield started


def said(response: requests.Response) -> str:
    """The error, checked to be one line of JSON."""
    assert response.headers["Content-Type"].startswith("application/json")
    assert response.text.count("\n") == 1
    assert "Traceback" not in response.text
    return str(response.json()["error"])


@pytest.mark.parametrize("event", [report(), finished()], ids=["Progress", "Finished"])
def test_a_worker_s_report_is_taken(endpoint: Endpoint, event: Report) -> None:
    response = endpoint.post(event.to_json())
    assert response.status_code == 202
    assert response.json() == {}
    assert endpoint.writer.offered == [(KEY, "uid-1", event, JOB.progress)]


def test_a_report_of_a_newer_version_is_taken(endpoint: Endpoint) -> None:
    assert endpoint.post(json.dumps({**json.loads(report().to_json()), "colour": "blue"})).status_code == 202


def test_a_token_is_reviewed_once(endpoint: Endpoint) -> None:
    token = endpoint.api.token()
    assert [endpoint.post(token=token).status_code for _ in range(3)] == [202] * 3
    assert endpoint.api.asked == 1


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_405(endpoint: Endpoint, method: str) -> None:
    response = endpoint.post(method=method, token=None)
    assert response.status_code == 405
    assert response.headers["Allow"] == "POST"
    assert said(response) == f"{method} is not known here: use POST"


def test_404_for_another_path(endpoint: Endpoint) -> None:
    response = endpoint.post(url=f"{endpoint.address}/metrics")
    assert response.status_code == 404
    assert "use POST /v1/namespaces/NAMESPACE/jobs/NAME/progress" in said(response)


def test_413_is_for_more_than_the_largest_body(endpoint: Endpoint) -> None:
    line = report().to_json()
    assert endpoint.post(line.ljust(LARGEST_BODY)).status_code == 202
    # Where its length is said, before anybody asks whose it is.
    response = endpoint.post(line.ljust(LARGEST_BODY + 1), token=None)
    assert response.status_code == 413
    assert said(response) == "a report may have 65536 bytes: send fewer metrics"
    assert endpoint.post(part for part in [b"x" * LARGEST_BODY, b"x"]).status_code == 413


def test_of_a_stranger_no_body_is_read(endpoint: Endpoint) -> None:
    with endpoint.tls() as connection:
        connection.settimeout(60)
        head = (
            f"POST {report_path(KEY)} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer x\r\nContent-Length: 60000\r\n\r\n"
        )
        connection.sendall(head.encode())
        assert connection.recv(1000).startswith(b"HTTP/1.1 401 ")


def test_413_comes_before_the_body(endpoint: Endpoint) -> None:
    with endpoint.tls() as connection:
        connection.settimeout(60)
        head = f"POST {report_path(KEY)} HTTP/1.1\r\nHost: x\r\nContent-Length: 10000000000\r\n\r\n"
        connection.sendall(head.encode())
        assert connection.recv(1000).startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize(
    ("headers", "why"),
    [
        ({}, "no token"),
        ({"Authorization": "Basic dXNlcjpwYXNz"}, "no token"),
        ({"Authorization": "Bearer "}, "no token"),
        ({"Authorization": "Bearer opaque"}, "expired, forged"),
        ({"Authorization": f"Bearer {jwt(names.audience('team-a', 'uid-1'), 'forged')}"}, "expired, forged"),
        ({"Authorization": f"Bearer {jwt('https://kubernetes.default.svc')}"}, "expired, forged"),
    ],
)
def test_401(endpoint: Endpoint, headers: dict[str, str], why: str) -> None:
    response = endpoint.post(token=None, headers=headers)
    assert response.status_code == 401
    assert why in said(response)


def test_401_does_not_tell_whether_there_is_such_a_job(endpoint: Endpoint) -> None:
    answers = [endpoint.post(token=jwt("x"), key=key) for key in (KEY, Key("team-a", "nothing"))]
    assert [answer.status_code for answer in answers] == [401, 401]
    assert answers[0].text == answers[1].text


@pytest.mark.parametrize(
    ("token", "why"),
    [
        ({"uid": "uid-2"}, "of another job than team-a/flowers"),
        ({"namespace": "team-b"}, "of namespace team-b"),
        ({"pod": None}, "not of a worker"),
        ({"pod": ("notebook", "pod-9")}, "not of a worker"),
        # A pod of the job `flowers-2`.
        ({"pod": ("flowers-2-1-0-abcde", "pod-9")}, "not of a worker"),
        ({"pod": ("flowers-2-1-abcde", "pod-1")}, "only worker 0 reports"),
    ],
)
def test_403(endpoint: Endpoint, token: dict[str, Any], why: str) -> None:
    response = endpoint.post(token=endpoint.api.token(**token))
    assert response.status_code == 403
    assert why in said(response)
    assert "Retry-After" not in response.headers
    assert endpoint.writer.offered == []


def test_404_may_be_a_matter_of_time(endpoint: Endpoint) -> None:
    response = endpoint.post(key=Key("team-a", "nothing"))
    assert response.status_code == 404
    assert said(response) == "no MPTrainingJob team-a/nothing is known here: report again later"
    assert response.headers["Retry-After"] == "5"


@pytest.mark.parametrize(
    ("pod", "again"),
    [
        pytest.param(("flowers-1-0-abcde", "pod-9"), False, id="of an old attempt"),
        pytest.param(("flowers-2-0-zzzzz", "pod-9"), True, id="replaced, or not seen yet"),
        pytest.param(("flowers-3-0-abcde", "pod-9"), True, id="of an attempt not seen yet"),
    ],
)
def test_409_for_a_pod_that_is_not_among_the_live(endpoint: Endpoint, pod: tuple[str, str], again: bool) -> None:
    response = endpoint.post(token=endpoint.api.token(pod=pod))
    assert response.status_code == 409
    assert said(response)
    assert ("Retry-After" in response.headers) is again


@pytest.mark.parametrize("attempt", [1, 3])
def test_409_for_another_attempt(endpoint: Endpoint, attempt: int) -> None:
    response = endpoint.post(report(attempt=attempt).to_json())
    assert response.status_code == 409
    assert f"attempt {attempt} is not the current one, 2" in said(response)


LINE = report().to_json()


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("", "not JSON"),
        ("step 5", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (LINE[:-1], "not JSON"),
        ("[" * 60_000, "not JSON"),
        ("[]", "not an Event"),
        ('{"step": 5}', "not an Event"),
        (LINE.replace('"loss":0.5', '"loss":NaN'), "not a valid Event of kind Progress"),
        (LINE.replace('"loss":0.5', '"loss":1e999'), "not a valid Event of kind Progress"),
        (LINE.replace('"loss":0.5', '"loss":"0.5"'), "not a valid Event of kind Progress"),
        (LINE.replace('"step":5', '"step":5.5'), "not a valid Event of kind Progress"),
        (LINE + "\n" + LINE, "not JSON"),
        (
            events.Notice(time=1.0, attempt=2, incarnation="p", worker=0, topic="T", message="m").to_json(),
            "not an Event",
        ),
    ],
)
def test_400(endpoint: Endpoint, body: str | bytes, why: str) -> None:
    response = endpoint.post(body)
    assert response.status_code == 400
    assert said(response).startswith(why)
    assert endpoint.writer.offered == []


def test_503_while_the_jobs_are_not_listed_yet(endpoint: Endpoint) -> None:
    endpoint.problem = NotReady()
    response = endpoint.post()
    assert (response.status_code, response.headers["Retry-After"]) == (503, "10")
    assert "just started" in said(response)


def test_503_while_the_api_server_is_away(endpoint: Endpoint) -> None:
    endpoint.api.problem = ConnectionError("the token is secret")
    response = endpoint.post()
    assert (response.status_code, response.headers["Retry-After"]) == (503, "10")
    assert "secret" not in said(response)
    endpoint.api.problem = None
    assert endpoint.post().status_code == 202


def test_500_tells_a_worker_nothing_of_the_inside(endpoint: Endpoint, caplog: pytest.LogCaptureFixture) -> None:
    endpoint.writer.problem = RuntimeError("inside")
    with caplog.at_level(logging.ERROR):
        response = endpoint.post()
    assert response.status_code == 500
    assert "inside" not in said(response)
    assert "inside" in caplog.text


def test_503_for_a_body_that_does_not_come(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_server, "_REQUEST_SECONDS", 0.2)
    with endpoint.tls() as connection:
        connection.settimeout(60)
        token = f"Authorization: Bearer {endpoint.api.token()}\r\n"
        connection.sendall(f"POST {report_path(KEY)} HTTP/1.1\r\nHost: x\r\n{token}Content-Length: 10\r\n\r\n".encode())
        assert connection.recv(1000).startswith(b"HTTP/1.1 503 ")


def test_who_says_nothing_is_sent_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_server, "_IDLE_SECONDS", 0.2)
    with Endpoint(tmp_path) as endpoint, endpoint.tls() as connection:
        connection.settimeout(60)
        answer = b""
        # On a busy machine it may have been sent away before it says this much.
        with suppress(ssl.SSLError, ConnectionError):
            connection.sendall(b"POST / HT")
            answer = connection.recv(1000)
        assert answer == b""


def test_a_client_that_goes_in_mid_report_leaves_no_traceback(
    endpoint: Endpoint, caplog: pytest.LogCaptureFixture
) -> None:
    token = endpoint.api.token()
    with endpoint.tls() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        head = (
            f"POST {report_path(KEY)} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\nContent-Length: 9\r\n\r\n"
        )
        connection.sendall(head.encode())
        until = time.monotonic() + 60
        while not endpoint.api.asked and time.monotonic() < until:
            time.sleep(0.005)
    assert endpoint.post().status_code == 202
    assert not [record for record in caplog.records if record.exc_info]


def test_connections_end_with_the_answer_when_half_of_them_are_taken(tmp_path: Path) -> None:
    with Endpoint(tmp_path, most_connections=2) as endpoint:
        assert "Connection" not in endpoint.post().headers
        with endpoint.tls() as second:
            second.settimeout(60)
            second.sendall(b"GET /x HTTP/1.1\r\nHost: x\r\n\r\n")
            assert b"Connection: close" in second.recv(1000)


HELD = """
import sys, time
from mptraining_operator.progress.certificate import issue_certificate
from mptraining_operator.progress.server import ProgressServer
from mptraining_operator.settings import ProgressSettings

class Keeper:
    current = issue_certificate(("localhost",), time.time())

server = ProgressServer(ProgressSettings(port=0), None, None, None, Keeper(), host="127.0.0.1")
server.start()
print(server.port, flush=True)
for _ in sys.stdin:
    print(open("/proc/self/statm").read().split()[1], flush=True)
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from /proc")
def test_all_connections_together_fit_into_half_of_the_pods_memory() -> None:
    bound, held = 64 * 1024, 200
    documents = yaml.safe_load_all((Path(__file__).parents[3] / "manifests" / "install.yaml").read_text())
    deployment = next(each for each in documents if each and each["kind"] == "Deployment")
    limit = deployment["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]["memory"]
    assert limit == "512Mi"
    assert progress_server.MOST_CONNECTIONS * bound <= 256 * 2**20
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with (
        subprocess.Popen(
            [sys.executable, "-c", HELD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as server,
        ExitStack() as connections,
    ):
        assert server.stdin is not None
        assert server.stdout is not None
        port = int(server.stdout.readline())

        def resident() -> int:
            assert server.stdin is not None
            assert server.stdout is not None
            print(file=server.stdin, flush=True)
            return int(server.stdout.readline()) * resource.getpagesize()

        def connect() -> None:
            bare = socket.create_connection(("127.0.0.1", port), 60)
            held = connections.enter_context(context.wrap_socket(bare, server_hostname="localhost"))
            # An answer: the connection is one that is kept.
            held.sendall(b"GET /x HTTP/1.1\r\nHost: x\r\n\r\n")
            assert held.recv(2000).startswith(b"HTTP/1.1 404 ")

        for _ in range(10):
            connect()
        before = resident()
        for _ in range(held):
            connect()
        growth = (resident() - before) / held
        server.stdin.close()
        server.terminate()
    assert growth < bound


def test_connections_are_bounded(tmp_path: Path) -> None:
    with Endpoint(tmp_path, most_connections=1) as endpoint, endpoint.tls() as first:
        # Held in mid-request.
        first.settimeout(60)
        first.sendall(f"POST {report_path(KEY)} HTTP/1.1\r\nHost: x\r\n".encode())
        answer = b""
        with suppress(ssl.SSLError, ConnectionError), endpoint.tls() as second:
            second.settimeout(60)
            second.sendall(b"POST / HTTP/1.1\r\n\r\n")
            answer = second.recv(1000)
        assert answer == b""
        # The first is served still.
        first.sendall(f"Authorization: Bearer {endpoint.api.token()}\r\nContent-Length: 1\r\n\r\n1".encode())
        assert first.recv(1000).startswith(b"HTTP/1.1 400 ")


def test_plain_http_is_not_spoken(endpoint: Endpoint) -> None:
    with pytest.raises(requests.ConnectionError):
        endpoint.post(url=f"http://localhost:{endpoint.server.port}{report_path(KEY)}")
    assert endpoint.post().status_code == 202


def test_a_new_certificate_is_served_without_a_restart(tmp_path: Path) -> None:
    with Endpoint(tmp_path, refresh_seconds=0.02) as endpoint:
        assert endpoint.post().status_code == 202
        renewed = issue_certificate(NAMES, time.time(), authority=CERTIFICATE)
        endpoint.keeper.next = renewed
        deadline = time.monotonic() + 60
        while True:
            with endpoint.tls() as connection:
                shown = connection.getpeercert(binary_form=True) or b""
            if ssl.DER_cert_to_PEM_cert(shown).split() == renewed.cert_pem.decode().split():
                break
            assert time.monotonic() < deadline
        # The connection that was open goes on.
        assert endpoint.post().status_code == 202


def test_all_addresses_are_listened_on(tmp_path: Path) -> None:
    with Endpoint(tmp_path, host=None) as endpoint:
        assert endpoint.post().status_code == 202
        assert endpoint.server.alive
    assert not endpoint.server.alive


def test_a_port_that_is_taken_is_said_at_the_start(tmp_path: Path) -> None:
    with Endpoint(tmp_path) as first:
        second = ProgressServer(
            ProgressSettings(port=first.server.port),
            first.lookup,
            TokenReviewer(first.api.review, lambda: 0.0, 60),
            first.writer,
            first.keeper,
            host="127.0.0.1",
        )
        with pytest.raises(OSError, match="in use"):
            second.start()
        second.stop()


class Notices:
    def __init__(self) -> None:
        self.said: list[str] = []

    def __call__(self, topic: str, message: str, *, level: str = "Info") -> None:
        self.said.append(f"{level} {topic}: {message}")


@pytest.fixture
def reporting(endpoint: Endpoint, tmp_path: Path) -> Callable[[str], tuple[Reporter, Notices]]:
    def start(token: str) -> tuple[Reporter, Notices]:
        notices, file = Notices(), tmp_path / "token"
        file.write_text(token + "\n")
        url = f"{endpoint.address}{report_path(KEY)}"
        return Reporter(url, file, CERTIFICATE.ca_pem.decode(), notices, interval=0.01), notices

    return start


def test_from_the_trainer_s_reporter_to_the_status(tmp_path: Path) -> None:
    written: list[tuple[Key, str, dict[str, Any]]] = []
    heard = threading.Event()

    def write(key: Key, uid: str, document: dict[str, Any]) -> None:
        written.append((key, uid, document))
        heard.set()

    writer = ProgressWriter(write, lambda: 1000.0, 15, 10)
    writer.start()
    endpoint = Endpoint(tmp_path)
    endpoint.server._writer = writer
    with endpoint:
        token = tmp_path / "token"
        token.write_text(endpoint.api.token())
        notices = Notices()
        url = f"{endpoint.address}{report_path(KEY)}"
        reporter = Reporter(url, token, CERTIFICATE.ca_pem.decode(), notices, interval=0.01)
        reporter.on_event(report(5))
        assert heard.wait(60)
        reporter.on_event(report(50))
        reporter.on_event(finished())
        reporter.close(60)
    writer.stop(60)
    assert notices.said == []
    assert [(key, uid) for key, uid, _ in written] == [(KEY, "uid-1")] * 2
    assert [document["step"] for _, _, document in written] in ([5, 50], [5, 5])
    assert written[-1][2]["estimatedRemainingSeconds"] == 0


def test_the_reporter_stops_where_it_is_refused(
    endpoint: Endpoint, reporting: Callable[[str], tuple[Reporter, Notices]]
) -> None:
    reporter, notices = reporting(endpoint.api.token(uid="uid-2"))
    reporter.on_event(report())
    deadline = time.monotonic() + 60
    while not notices.said:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    reporter.on_event(finished())
    reporter.close(60)
    assert "403: the token is of another job than team-a/flowers" in notices.said[0]
    assert endpoint.api.asked == 1
    assert endpoint.writer.offered == []


def test_the_reporter_comes_back_to_a_replica_that_has_just_started(
    endpoint: Endpoint, reporting: Callable[[str], tuple[Reporter, Notices]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress_server, "_BUSY_SECONDS", 0)
    endpoint.problem = NotReady()
    reporter, notices = reporting(endpoint.api.token())
    deadline = time.monotonic() + 60
    reporter.on_event(report(1))
    while not notices.said:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    endpoint.problem = None
    reporter.on_event(report(2))
    endpoint.writer.wait(1)
    reporter.close(60)
    assert "503: the operator has just started: report again later" in notices.said[0]
