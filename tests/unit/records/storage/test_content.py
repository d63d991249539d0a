"""Reads from a server of Python's own library that answers as the cases script it."""

from __future__ import annotations

import http.server
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace
from urllib.parse import unquote

import pytest

from mptraining_api.problems import InvalidData, StorageUnavailable
from mptraining_records.storage import gcs_clients, storage
from mptraining_records.storage.http_connections import Connections
from mptraining_records.storage.pace import Pace
from mptraining_records.storage.ranges import Traffic, fetch
from mptraining_records.storage.retry import without_retries

CONTENT = bytes(range(256)) * 4096
URI = "gs://bucket/object"


class Service:
    """Serves one object; `fault(number, handler)` may answer request `number` and then returns True."""

    def __init__(self) -> None:
        self.fault: Callable[[int, http.server.BaseHTTPRequestHandler], bool] = lambda number, handler: False
        self.paths: list[str] = []
        self.tokens: list[str | None] = []
        self._lock = threading.Lock()
        service = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                with service._lock:
                    number = len(service.paths)
                    service.paths.append(self.path)
                    service.tokens.append(self.headers.get("Authorization"))
                if service.fault(number, self):
                    return
                first, last = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
                part = CONTENT[first : last + 1]
                answer(self, 206, part, {"Content-Range": f"bytes {first}-{first + len(part) - 1}/{len(CONTENT)}"})

            def log_message(self, *_: object) -> None: ...

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.address = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def answer(
    handler: http.server.BaseHTTPRequestHandler, status: int, body: bytes, headers: dict[str, str] | None = None
) -> bool:
    handler.send_response(status)
    for name, value in {"Content-Length": str(len(body)), "X-Goog-Generation": "7", **(headers or {})}.items():
        handler.send_header(name, value)
    handler.end_headers()
    handler.wfile.write(body)
    return True


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    started = Service()
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", started.address)
    monkeypatch.setenv("MPTRAINING_STORAGE_RETRY_SECONDS", "20")
    yield started
    started.close()


@pytest.fixture
def reported(service: Service) -> list[str]:
    lines: list[str] = []
    gcs_clients.endpoint().on_retry = lines.append
    return lines


def _read(start: int = 0, length: int = 5000, traffic: Traffic | None = None) -> bytes:
    return bytes(fetch(URI, start, length, version="7", traffic=traffic or Traffic()))


RATE_LIMIT = b'{"error": {"code": 403, "errors": [{"reason": "rateLimitExceeded"}], "message": "slow down"}}'


@pytest.mark.parametrize(("status", "body"), [(401, b"expired"), (403, RATE_LIMIT)], ids=["401", "rateLimitExceeded"])
def test_a_refusal_in_mid_epoch_that_may_pass_is_retried(
    service: Service, reported: list[str], status: int, body: bytes
) -> None:
    service.fault = lambda number, handler: number == 1 and answer(handler, status, body)
    traffic = Traffic()
    assert [_read(traffic=traffic) for _ in range(3)] == [CONTENT[:5000]] * 3
    assert traffic.figures.retries == 1
    assert f"HTTP {status}" in reported[0]


@pytest.mark.parametrize(("status", "body"), [(401, b"no"), (403, b"no")])
def test_a_refusal_of_the_first_request_is_reported_at_once(service: Service, status: int, body: bytes) -> None:
    service.fault = lambda number, handler: answer(handler, status, body)
    with pytest.raises(InvalidData, match="no permission"):
        _read()
    assert len(service.paths) == 1


def test_a_token_that_ends_early_is_requested_again(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    def refresh(request: object) -> None:
        credentials.token = f"token {len(service.paths)}"

    def before_request(request: object, method: str, url: str, headers: dict[str, str]) -> None:
        headers["authorization"] = f"Bearer {credentials.token}"

    credentials = SimpleNamespace(token="token 0", refresh=refresh, before_request=before_request)
    endpoint = gcs_clients.Endpoint(gcs_clients.Settings(emulator="", anonymous=False, retry_seconds=20))
    monkeypatch.setitem(endpoint.__dict__, "credentials", credentials)
    endpoint.connections = Connections(service.address, use_proxies=False, connect_timeout=4)
    monkeypatch.setattr(gcs_clients, "endpoint", lambda: endpoint)
    service.fault = lambda number, handler: number == 1 and answer(handler, 401, b"")
    assert [_read() for _ in range(2)] == [CONTENT[:5000]] * 2
    assert service.tokens == ["Bearer token 0", "Bearer token 0", "Bearer token 2"]


def test_a_retry_waits_as_long_as_the_service_asks(service: Service) -> None:
    service.fault = lambda number, handler: number == 0 and answer(handler, 429, b"", {"Retry-After": "1"})
    began = time.monotonic()
    assert _read() == CONTENT[:5000]
    assert time.monotonic() - began >= 1
    assert len(service.paths) == 2


def test_other_requests_wait_as_well(service: Service) -> None:
    one = {"Content-Range": "bytes 0-0/1"}

    def fault(number: int, handler: http.server.BaseHTTPRequestHandler) -> bool:
        return answer(handler, 429, b"", {"Retry-After": "1"}) if number == 0 else answer(handler, 206, b"x", one)

    service.fault = fault
    began = time.monotonic()
    assert storage.read(URI) == b"x"
    assert time.monotonic() - began >= 1
    assert len(service.paths) == 2


def test_but_not_longer_than_a_request_is_retried(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPTRAINING_STORAGE_RETRY_SECONDS", "1")
    service.fault = lambda number, handler: answer(handler, 503, b"", {"Retry-After": "3600"})
    with pytest.raises(StorageUnavailable, match="HTTP 503"):
        _read()
    assert len(service.paths) == 2


@pytest.mark.parametrize(
    "request_once",
    [partial(fetch, URI, 0, 50000, version="7", traffic=Traffic()), partial(storage.exists, URI)],
    ids=["data plane", "control plane"],
)
def test_the_end_of_a_run_ends_retries_in_all_threads(
    service: Service, request_once: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that failed would take up to two minutes more to exit."""
    monkeypatch.setenv("MPTRAINING_STORAGE_RETRY_SECONDS", "120")
    asked = threading.Event()

    def refuse(_number: int, handler: http.server.BaseHTTPRequestHandler) -> bool:
        asked.set()
        return answer(handler, 503, b"", {"Retry-After": "3600"})

    service.fault = refuse
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(request_once)
        assert asked.wait(60)
        with without_retries(), pytest.raises(StorageUnavailable, match="HTTP 503"):
            reading.result(60)


def test_the_bytes_that_a_slow_connection_lacks_are_requested_on_another_one(
    service: Service, reported: list[str]
) -> None:
    def drip(number: int, handler: http.server.BaseHTTPRequestHandler) -> bool:
        if number != 30:
            return False
        handler.send_response(206)
        handler.send_header("X-Goog-Generation", "7")
        handler.send_header("Content-Length", "50000")
        handler.send_header("Content-Range", f"bytes 0-49999/{len(CONTENT)}")
        handler.end_headers()
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
    assert traffic.figures.bytes == 40 * 50000
    assert any("the connection is slow" in line for line in reported)


class Test_the_limit_of_a_slow_request:
    def test_is_learnt_from_those_that_ended(self) -> None:
        pace = Pace()
        assert pace.limit(1 << 20) > 10
        for _ in range(20):
            pace.add(1.0, 1 << 20)
        assert pace.limit(1 << 20) == pytest.approx(2.0)

    def test_grows_while_all_are_slow(self) -> None:
        pace = Pace()
        for _ in range(100):
            pace.add(0.01, 1 << 20)
        first = pace.limit(1 << 20)
        for _ in range(20):
            pace.add(first, 1000)
        assert pace.limit(1 << 20) > 2 * first


def test_an_object_with_a_content_encoding_is_refused_at_once(service: Service) -> None:
    stored = {"X-Goog-Stored-Content-Encoding": "gzip"}
    service.fault = lambda number, handler: answer(handler, 200, CONTENT, stored)
    with pytest.raises(InvalidData, match="--clear-content-encoding gs://bucket/object"):
        _read()
    assert len(service.paths) == 1


def test_a_bucket_whose_requester_pays_names_the_variable(service: Service) -> None:
    body = b'{"error": {"message": "Bucket is a requester pays bucket but no user project provided."}}'
    service.fault = lambda number, handler: answer(handler, 400, body)
    with pytest.raises(InvalidData, match="GOOGLE_CLOUD_QUOTA_PROJECT"):
        _read()


def test_any_other_refusal_quotes_the_service(service: Service) -> None:
    service.fault = lambda number, handler: answer(handler, 412, b'{"error": {"message": "Not \\"so\\"."}}')
    with pytest.raises(InvalidData, match=r'refused the request \(HTTP 412: Not "so".\)'):
        _read()


@pytest.mark.parametrize("key", ["a\tb", "a/./b", "/a//b", "a?b#c%20"])
def test_a_key_of_any_characters_is_requested(service: Service, key: str) -> None:
    assert bytes(fetch(f"gs://bucket/{key}", 0, 4, version=None, traffic=Traffic())) == CONTENT[:4]
    assert unquote(service.paths[0].removesuffix("?alt=media")).endswith(f"/b/bucket/o/{key}")


def test_a_name_that_no_bucket_can_have_is_refused() -> None:
    for name in ("bad_-", "-bad"):
        with pytest.raises(InvalidData, match="no bucket can have the name"):
            storage.glob(f"gs://{name}/*.tfrecord")


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("gs://bucket/**.tfrecord", r"\*\* is not supported"),
        ("data/**/x", r"\*\* is not supported"),
        ("gs://bucket/data/", "this names a folder"),
        ("gs://bucket/data//*.tfrecord", "// and wildcards"),
    ],
)
def test_wildcards_of_other_tools_are_refused_by_name(pattern: str, message: str) -> None:
    with pytest.raises(InvalidData, match=message):
        storage.glob(pattern)
