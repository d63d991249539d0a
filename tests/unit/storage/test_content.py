"""Reads from a server of Python's own library that answers as the cases script it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace
from urllib.parse import unquote

import pytest

from mptraining_api.problems import InvalidData, Problem, StorageUnavailable
from mptraining_storage import gcs_clients, storage
from mptraining_storage.http_connections import Connections
from mptraining_storage.pace import Pace
from mptraining_storage.ranges import Traffic, fetch
from mptraining_storage.retry import without_retries
from tests.testbed.http_stub import Handler, HttpStub

CONTENT = bytes(range(256)) * 4096
URI = "gs://bucket/object"
STORED = {"X-Goog-Generation": "7"}


class Service(HttpStub):
    """Serves one object; `fault(number, handler)` may answer request `number` and then returns True."""

    def __init__(self) -> None:
        super().__init__(self._respond)
        self.fault: Callable[[int, Handler], bool] = lambda number, handler: False

    def _respond(self, number: int, handler: Handler) -> None:
        if self.fault(number, handler):
            return
        first, last = map(int, handler.headers["Range"].removeprefix("bytes=").split("-"))
        part = CONTENT[first : last + 1]
        place = {"Content-Range": f"bytes {first}-{first + len(part) - 1}/{len(CONTENT)}"}
        handler.answer(206, part, STORED | place)


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    with Service() as started:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", started.address)
        monkeypatch.setenv("MPTRAINING_STORAGE_RETRY_SECONDS", "20")
        yield started


@pytest.fixture
def reported(service: Service) -> list[str]:
    lines: list[str] = []
    gcs_clients.endpoint().on_retry = lines.append
    return lines


def _read(start: int = 0, length: int = 5000, traffic: Traffic | None = None) -> bytes:
    return bytes(fetch(URI, start, length, version="7", traffic=traffic or Traffic()))


RATE_LIMIT = b'{"error": {"code": 403, "errors": [{"reason": "rateLimitExceeded"}], "message": "slow down"}}'


@pytest.mark.parametrize(("status", "body"), [(401, b"expired"), (403, RATE_LIMIT)], ids=["401", "rateLimitExceeded"])
def test_a_refusal_that_may_pass_is_retried(service: Service, reported: list[str], status: int, body: bytes) -> None:
    service.fault = lambda number, handler: number == 1 and handler.answer(status, body)
    traffic = Traffic()
    assert [_read(traffic=traffic) for _ in range(3)] == [CONTENT[:5000]] * 3
    assert traffic.figures.retries == 1
    assert f"HTTP {status}" in reported[0]


@pytest.mark.parametrize(
    ("status", "body", "headers", "message"),
    [
        (401, b"no", {}, "no permission"),
        (403, b"no", {}, "no permission"),
        (200, CONTENT, {"X-Goog-Stored-Content-Encoding": "gzip"}, "--clear-content-encoding gs://bucket/object"),
        (400, b'{"error": {"message": "requester pays bucket but no user project."}}', {}, "CLOUD_QUOTA_PROJECT"),
        (412, b'{"error": {"message": "Not \\"so\\"."}}', {}, r'refused the request \(HTTP 412: Not "so".\)'),
    ],
)
def test_a_refusal_of_the_first_request_is_reported_at_once(
    service: Service, status: int, body: bytes, headers: dict[str, str], message: str
) -> None:
    service.fault = lambda number, handler: handler.answer(status, body, headers)
    with pytest.raises(InvalidData, match=message):
        _read()
    assert len(service.requests) == 1


def test_a_token_that_ends_early_is_requested_again(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    def refresh(request: object) -> None:
        credentials.token = f"token {len(service.requests)}"

    def before_request(request: object, method: str, url: str, headers: dict[str, str]) -> None:
        headers["authorization"] = f"Bearer {credentials.token}"

    credentials = SimpleNamespace(token="token 0", refresh=refresh, before_request=before_request)
    endpoint = gcs_clients.Endpoint(gcs_clients.Settings(emulator="", anonymous=False, retry_seconds=20))
    monkeypatch.setitem(endpoint.__dict__, "credentials", credentials)
    endpoint.connections = Connections(service.address, use_proxies=False, connect_timeout=4)
    monkeypatch.setattr(gcs_clients, "endpoint", lambda: endpoint)
    service.fault = lambda number, handler: number == 1 and handler.answer(401)
    assert [_read() for _ in range(2)] == [CONTENT[:5000]] * 2
    tokens = [request.headers["Authorization"] for request in service.requests]
    assert tokens == ["Bearer token 0", "Bearer token 0", "Bearer token 2"]


@pytest.mark.parametrize("request_once", [_read, partial(storage.read, URI)], ids=["data plane", "control plane"])
@pytest.mark.parametrize(("status", "after", "limit"), [(429, 1, 20), (503, 3600, 1)])
def test_a_retry_waits_as_long_as_the_service_asks_within_the_time_of_all_retries(
    service: Service,
    monkeypatch: pytest.MonkeyPatch,
    request_once: Callable[[], bytes],
    status: int,
    after: int,
    limit: int,
) -> None:
    monkeypatch.setenv("MPTRAINING_STORAGE_RETRY_SECONDS", str(limit))

    def fault(number: int, handler: Handler) -> bool:
        if number == 0 or after > limit:
            return handler.answer(status, b"", {"Retry-After": str(after)})
        return handler.answer(206, CONTENT[:5000], STORED | {"Content-Range": "bytes 0-4999/5000"})

    service.fault = fault
    began = time.monotonic()
    if after > limit:
        with pytest.raises(StorageUnavailable, match="HTTP 503"):
            request_once()
    else:
        assert request_once() == CONTENT[:5000]
    assert 1 <= time.monotonic() - began < 20
    assert len(service.requests) <= 2


@pytest.mark.parametrize(
    "request_once", [partial(_read, 0, 50000), partial(storage.exists, URI)], ids=["data plane", "control plane"]
)
def test_the_end_of_a_run_ends_retries_in_all_threads(
    service: Service, request_once: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that failed would take up to two minutes more to exit."""
    monkeypatch.setenv("MPTRAINING_STORAGE_RETRY_SECONDS", "120")
    asked = threading.Event()
    service.fault = lambda number, handler: asked.set() or handler.answer(503, b"", {"Retry-After": "3600"})
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(request_once)
        assert asked.wait(60)
        with without_retries(), pytest.raises(StorageUnavailable, match="HTTP 503"):
            reading.result(60)


def test_the_bytes_that_a_slow_connection_lacks_are_requested_on_another(service: Service, reported: list[str]) -> None:
    def drip(number: int, handler: Handler) -> bool:
        if number != 30:
            return False
        place = {"Content-Length": "50000", "Content-Range": f"bytes 0-49999/{len(CONTENT)}"}
        handler.answer(206, b"", STORED | place)
        try:
            for at in range(0, 50000, 100):
                handler.wfile.write(CONTENT[at : at + 100])
                time.sleep(0.05)
        except OSError:
            handler.close_connection = True
        return True

    service.fault = drip
    traffic = Traffic()
    began = time.monotonic()
    assert [_read(0, 50000, traffic) for _ in range(40)] == [CONTENT[:50000]] * 40
    assert time.monotonic() - began < 20, "25 s by this connection alone"
    assert traffic.figures.received == 40 * 50000
    assert any("the connection is slow" in line for line in reported)


def test_the_limit_of_a_slow_request_is_learnt_and_grows_while_all_are_slow() -> None:
    pace = Pace()
    assert pace.limit(1 << 20) > 10
    for _ in range(128):
        pace.add(1.0, 1 << 20)
    assert pace.limit(1 << 20) == pytest.approx(2.0)
    for _ in range(20):
        pace.add(2.0, 1000)
    assert pace.limit(1 << 20) > 4.0


@pytest.mark.parametrize("key", ["a\tb", "a/./b", "/a//b", "a?b#c%20"])
def test_a_key_of_any_characters_is_requested(service: Service, key: str) -> None:
    assert bytes(fetch(f"gs://bucket/{key}", 0, 4, version=None, traffic=Traffic())) == CONTENT[:4]
    assert unquote(service.requests[0].path.removesuffix("?alt=media")).endswith(f"/b/bucket/o/{key}")


def test_a_whole_object_that_arrives_damaged_is_requested_again(service: Service, reported: list[str]) -> None:
    # Google sends a line for each kind of hash.
    hashes = {"X-Goog-Hash": "crc32c=rth90Q==", "x-goog-hash": "md5=jXd/OF1d0iUI5FMO8ijq+w=="}
    service.fault = lambda number, handler: handler.answer(200, (b"dota", b"data")[number], STORED | hashes)
    assert storage.read(URI) == b"data"
    assert "(CRC32C)" in reported[0]


TRAINER = "trainer@project.iam.gserviceaccount.com"
DENIED = b'{"error": {"code": 403, "message": "%b does not have storage.objects.get access"}}' % TRAINER.encode()
GRANT = r"no permission \(HTTP 403\). Grant roles/storage.ROLE on gs://bucket"
REQUESTS: tuple[tuple[Callable[[str], object], str], ...] = (
    (storage.read, "objectViewer"),
    (storage.list_objects, "objectViewer"),
    (lambda uri: storage.write(uri, b"x"), "objectUser"),
)


@pytest.mark.parametrize(
    ("status", "body", "problem", "message"),
    [
        (403, b"", InvalidData, "no permission"),
        (400, b"", InvalidData, "refused the request"),
        (500, b"", StorageUnavailable, "HTTP 500"),
        (429, b"", StorageUnavailable, "HTTP 429"),
        (403, DENIED, InvalidData, rf"^{URI}: {TRAINER} has {GRANT} to {TRAINER}$"),
    ],
)
def test_every_error_of_a_bucket_becomes_one_line(
    service: Service, monkeypatch: pytest.MonkeyPatch, status: int, body: bytes, problem: type[Problem], message: str
) -> None:
    monkeypatch.setenv("MPTRAINING_STORAGE_RETRY_SECONDS", "0.2")
    service.fault = lambda number, handler: handler.answer(status, body, {"Content-Type": "application/json"})
    for request, role in REQUESTS:
        with pytest.raises(problem, match=message.replace("ROLE", role)) as caught:
            request(URI)
        assert "\n" not in str(caught.value)
    assert gcs_clients.endpoint().has_responded


def test_every_retry_is_reported(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPTRAINING_STORAGE_RETRY_SECONDS", "3")
    lines: list[str] = []
    gcs_clients.endpoint().on_retry = lines.append
    service.fault = lambda number, handler: handler.answer(503)
    with pytest.raises(StorageUnavailable, match="HTTP 503 Service Unavailable"):
        storage.read(URI)
    assert len(lines) > 1
    assert set(lines) == {f"{URI}: the bucket answered HTTP 503 Service Unavailable; trying again"}
