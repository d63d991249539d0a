"""Worker 0's reports to the operator: their content and rate, and that no error reaches the training."""

from __future__ import annotations

import io
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mptraining_api import events, launch, outcomes
from mptraining_api.launch import WorkerIdentity
from mptraining_api.problems import InvalidData
from mptraining_operator.progress.certificate import issue_certificate
from mptraining_trainer import run
from mptraining_trainer.devices.preemption import Preemption
from mptraining_trainer.report import progress_reporter
from mptraining_trainer.report.progress_reporter import TOPIC, Reporter
from mptraining_trainer.report.telemetry import Telemetry
from mptraining_trainer.worker import Worker
from tests.fakes import Notices
from tests.jobs import resolved_job
from tests.testbed.http_stub import Handler, HttpStub

CERTIFICATE = issue_certificate(("localhost",), time.time())
SEAT = WorkerIdentity(index=0, hosts=("a:1",), attempt=1, incarnation="pod")


class Operator(HttpStub):
    """Responds 202, or first what `answers` has: status, headers, body. Keeps the events that it accepts."""

    def __init__(self, folder: Path) -> None:
        (folder / "chain.pem").write_bytes(CERTIFICATE.key_pem + CERTIFICATE.cert_pem)
        super().__init__(self._respond, folder / "chain.pem")
        self.url = f"{self.address}/v1/namespaces/n/jobs/j/progress"
        self.answers: list[tuple[int, dict[str, str], str]] = []
        self.events: list[events.Event] = []
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.answered = threading.Semaphore(0)

    def _respond(self, number: int, handler: Handler) -> None:
        self.may_answer.wait(60)
        status, headers, text = self.answers.pop(0) if self.answers else (202, {}, "{}")
        event = events.parse(self.requests[number].body.decode())
        if event is not None and status == 202:
            self.events.append(event)
        self.answered.release()
        handler.answer(status, text.encode(), headers)

    @property
    def tokens(self) -> list[str]:
        return [request.headers["Authorization"] for request in self.requests]

    @property
    def steps(self) -> list[int | str]:
        return [event.step if isinstance(event, events.Progress) else event.kind for event in self.events]

    def wait(self) -> None:
        """Wait for one more response."""
        assert self.answered.acquire(timeout=60)


@pytest.fixture
def operator(tmp_path: Path) -> Iterator[Operator]:
    with Operator(tmp_path) as server:
        yield server


class Heard(Notices):
    """Notices that another thread adds."""

    def __init__(self) -> None:
        super().__init__()
        self._heard = threading.Condition()

    def __call__(self, topic: str, message: str, *, level: str = "Info") -> None:
        with self._heard:
            super().__call__(topic, message, level=level)
            self._heard.notify_all()

    def wait(self) -> str:
        """Return the first notice."""
        with self._heard:
            assert self._heard.wait_for(lambda: self, 60)
        assert self[0].startswith(f"Warning {TOPIC}: ")
        return self[0]


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A longer time limit for the responses of a busy machine: delays are no errors of the reports."""
    monkeypatch.setattr(progress_reporter, "_TIMEOUT", (60.0, 60.0))
    monkeypatch.setattr(progress_reporter, "_LAST_TIMEOUT", (60.0, 60.0))


Start = Callable[..., Reporter]


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    file = tmp_path / "token"
    file.write_text("first\n")
    return file


@pytest.fixture
def notices() -> Heard:
    return Heard()


@pytest.fixture
def start(operator: Operator, token_file: Path, notices: Heard) -> Iterator[Start]:
    started: list[Reporter] = []

    def make(*, interval: float = 0.01, **options: Any) -> Reporter:
        given = {"url": operator.url, "token_file": token_file, "certificate": CERTIFICATE.cert_pem.decode(), **options}
        started.append(Reporter(notice=notices, interval=interval, **given))
        return started[-1]

    yield make
    for each in started:
        each.close()


def progress_event(step: int, total: int | None = 100) -> events.Progress:
    return events.Progress(
        time=1.0, attempt=1, incarnation="pod", worker=0, step=step, total_steps=total, epoch=1, metrics={"loss": 0.5}
    )


def finished() -> events.Finished:
    return events.Finished(
        time=2.0, attempt=1, incarnation="pod", worker=0, reason="Succeeded", exit_code=0, message="", step=100
    )


def test_the_event_is_sent_with_the_token_of_the_moment(operator: Operator, start: Start, token_file: Path) -> None:
    reporter = start()
    reporter.on_event(progress_event(1))
    operator.wait()
    # As the kubelet does: the file exists at every moment.
    renewed = token_file.with_suffix(".new")
    renewed.write_text("second")
    renewed.rename(token_file)
    reporter.on_event(progress_event(2))
    operator.wait()
    assert operator.events == [progress_event(1), progress_event(2)]
    assert operator.tokens == ["Bearer first", "Bearer second"]
    assert operator.requests[0].path == "/v1/namespaces/n/jobs/j/progress"


@pytest.mark.parametrize(
    ("first", "later", "ends", "sent"),
    [
        # Between two reports the newest wins; the last step, and the end, are sent at once.
        (1, [2, 3, 4, 100], True, [1, 100, "Finished"]),
        (1, [7], True, [1, "Finished"]),
        (100, [], False, [100]),
        (1, [7, 100], False, [1, 100]),
    ],
)
def test_steps_that_are_sent(
    operator: Operator, start: Start, first: int, later: list[int], ends: bool, sent: list[int | str]
) -> None:
    reporter = start(interval=60)
    reporter.on_event(progress_event(first))
    operator.wait()
    for step in later:
        reporter.on_event(progress_event(step))
    if ends:
        reporter.on_event(finished())
    reporter.close(60)
    assert operator.steps == sent


def test_reports_keep_their_distance(operator: Operator, start: Start) -> None:
    clock = [0.0]
    reporter = start(interval=5, clock=lambda: clock[0])
    reporter.on_event(progress_event(1))
    operator.wait()
    reporter.on_event(progress_event(2))
    reporter.on_event(progress_event(3))
    clock[0] = 5
    # Wakes the thread, which does not see this clock move.
    reporter.on_event(progress_event(3))
    operator.wait()
    assert operator.steps == [1, 3]


@pytest.mark.parametrize("status", [400, 409, 413])
def test_after_a_final_refusal_none_are_sent(operator: Operator, start: Start, notices: Heard, status: int) -> None:
    operator.answers = [(status, {}, json.dumps({"error": "the next step"}))]
    reporter = start()
    reporter.on_event(progress_event(1))
    assert f"{status}: the next step); no more are sent" in notices.wait()
    reporter.on_event(progress_event(2))
    reporter.on_event(finished())
    reporter.close(60)
    assert len(operator.tokens) == 1
    assert len(notices) == 1


@pytest.mark.parametrize(
    ("status", "headers"),
    [
        (401, {}),
        (403, {"Retry-After": "0"}),
        (409, {"Retry-After": "0"}),
        (500, {}),
        (503, {"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}),
        # The token follows no redirection.
        (302, {"Location": "https://localhost:1/"}),
        (307, {"Location": "/elsewhere"}),
    ],
)
def test_temporary_errors_are_reported_once_and_retried(
    operator: Operator, start: Start, notices: Heard, status: int, headers: dict[str, str]
) -> None:
    operator.answers = [(status, headers, "{}"), (status, headers, "{}")]
    reporter = start()
    for step in range(1, 4):
        reporter.on_event(progress_event(step))
        operator.wait()
    reporter.close(60)
    assert operator.steps == [3]
    assert {request.path for request in operator.requests} == {"/v1/namespaces/n/jobs/j/progress"}
    assert f"({status}" in notices.wait()
    assert "tried again later" in notices[0]
    assert len(notices) == 1


def test_retry_after_is_honoured(operator: Operator, start: Start, notices: Heard) -> None:
    clock = [0.0]
    operator.answers = [(503, {"Retry-After": "30"}, "{}")]
    reporter = start(interval=5, clock=lambda: clock[0])
    reporter.on_event(progress_event(1))
    notices.wait()
    operator.wait()
    assert reporter._next == 30
    reporter.on_event(progress_event(100))
    clock[0] = 30
    reporter.on_event(progress_event(100))
    operator.wait()
    assert operator.steps == [100]


EXPIRED = issue_certificate(("localhost",), 0.0).cert_pem.decode()


@pytest.mark.parametrize(
    ("options", "token", "message"),
    [
        ({"url": "https://localhost:1/v1"}, "first", ""),
        ({"certificate": ""}, "first", ""),
        ({"certificate": "no PEM"}, "first", ""),
        ({"certificate": EXPIRED}, "first", ""),
        ({}, None, "No such file"),
        ({}, "", "is empty"),
    ],
    ids=["no server", "no certificate", "no PEM", "another certificate", "no token", "an empty token"],
)
def test_what_keeps_reports_from_being_sent_is_reported_once(
    operator: Operator,
    start: Start,
    notices: Heard,
    token_file: Path,
    options: dict[str, str],
    token: str | None,
    message: str,
) -> None:
    token_file.unlink() if token is None else token_file.write_text(token)
    reporter = start(**options)
    reporter.on_event(progress_event(1))
    assert "progress cannot be reported to the operator (" in notices.wait()
    assert message in notices[0]
    reporter.on_event(finished())
    reporter.close(60)
    assert (len(notices), operator.requests) == (1, [])


def test_the_end_is_tried_twice_and_the_certificate_s_file_deleted(operator: Operator, start: Start) -> None:
    operator.answers = [(503, {"Retry-After": "60"}, "{}")]
    reporter = start()
    file = reporter._trusted
    reporter.on_event(finished())
    reporter.close(60)
    assert (operator.steps, len(operator.requests)) == (["Finished"], 2)
    assert not file.exists()


def test_an_operator_that_never_responds_delays_nothing(operator: Operator, start: Start) -> None:
    operator.may_answer.clear()
    reporter = start()
    reporter.on_event(finished())
    began = time.monotonic()
    reporter.close(0.05)
    assert time.monotonic() - began < 20
    operator.may_answer.set()


def test_proxies_of_the_program_are_not_ours(operator: Operator, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("https_proxy", "HTTPS_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://localhost:1")
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", "/nothing")
    start().on_event(progress_event(1))
    operator.wait()
    assert operator.steps == [1]


def environment(operator: Operator, token_file: Path) -> dict[str, str]:
    return {
        launch.PROGRESS_URL: operator.url,
        launch.PROGRESS_TOKEN_FILE: str(token_file),
        launch.PROGRESS_CERTIFICATE: CERTIFICATE.cert_pem.decode(),
    }


def test_worker_0s_events_are_sent(operator: Operator, token_file: Path) -> None:
    voice = Telemetry(SEAT, None, stream=io.StringIO())
    reporter = run._reporter(SEAT, voice, environment(operator, token_file))
    assert reporter is not None
    voice.emit(events.Progress, step=100, total_steps=100, epoch=1, metrics={})
    operator.wait()
    voice.notice("Topic", "not for the operator")
    voice.emit(events.Finished, reason="Succeeded", exit_code=0, message="")
    reporter.close(60)
    assert operator.steps == [100, "Finished"]


def test_a_run_ends_when_the_operator_knows(
    operator: Operator, token_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(worker: Worker, environment: object) -> None:
        worker.telemetry.emit(events.Progress, step=1, total_steps=1, epoch=1, metrics={"loss": 0.5})
        raise InvalidData("data.train", "gone")

    monkeypatch.setattr(run, "train", fails)
    variables = environment(operator, token_file)
    outcome = run.run(resolved_job(), SEAT, f"{tmp_path}/run", Preemption(lambda: None), variables)
    assert outcome == outcomes.INVALID_DATA
    assert operator.steps == [1, "Finished"]
    last = operator.events[-1]
    assert isinstance(last, events.Finished)
    assert (last.reason, last.exit_code) == ("InvalidData", 2)


@pytest.mark.parametrize("index", [0, 1])
def test_other_workers_and_local_runs_are_silent(index: int, operator: Operator, token_file: Path) -> None:
    identity = WorkerIdentity(index=index, hosts=("a:1", "b:1"), attempt=1, incarnation="pod")
    voice = Telemetry(identity, None, stream=io.StringIO())
    variables = {} if index == 0 else environment(operator, token_file)
    assert run._reporter(identity, voice, variables) is None
    assert voice.listeners == []
