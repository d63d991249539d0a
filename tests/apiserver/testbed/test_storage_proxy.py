"""The storage proxy has the configured speed and injects the configured faults, over http and https."""

from __future__ import annotations

import http.client
import os
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import pytest

from tests.testbed.gcs.faults import (
    Cut,
    Delay,
    Draw,
    Drop,
    Fault,
    Flip,
    Refuse,
    Rule,
    Shape,
    Stall,
    WholeObject,
    WrongRange,
    asked,
    byte_range,
)
from tests.testbed.gcs.object_server import ObjectServer
from tests.testbed.gcs.proxy import StorageProxy

UNSHAPED = Shape(latency=0, stream_rate=0)
CONTENT = bytes(range(256)) * 4096
SIZE = len(CONTENT)


@pytest.fixture(scope="module")
def proxied_bucket(object_server: ObjectServer) -> None:
    object_server.create_bucket("proxied")


@pytest.fixture(scope="module", params=["passes on", "keeps objects"])
def module_proxy(
    request: pytest.FixtureRequest, object_server: ObjectServer, proxied_bucket: None
) -> Iterator[StorageProxy]:
    with StorageProxy(object_server.address, UNSHAPED, keep_objects=request.param == "keeps objects") as started:
        yield started


@pytest.fixture
def proxy(module_proxy: StorageProxy, object_server: ObjectServer) -> StorageProxy:
    """A fast proxy without faults, its counters at zero, one object `proxied/x` behind it."""
    module_proxy.set(UNSHAPED)
    put(module_proxy, "x", CONTENT)
    module_proxy.reset()
    return module_proxy


Answer = tuple[int, dict[str, str], bytes]


def connect(proxy: StorageProxy, *, secure: bool = False) -> http.client.HTTPConnection:
    if not secure:
        return http.client.HTTPConnection(urlsplit(proxy.http).netloc, timeout=60)
    trust = ssl.create_default_context(cafile=str(proxy.authority))
    return http.client.HTTPSConnection(urlsplit(proxy.https).netloc, timeout=60, context=trust)


def ask(connection: http.client.HTTPConnection, method: str, target: str, body: bytes = b"", **headers: str) -> Answer:
    connection.request(method, target, body=body or None, headers=headers)
    answer = connection.getresponse()
    return answer.status, dict(answer.getheaders()), answer.read()


def get(proxy: StorageProxy, target: str = "/proxied/x", *, secure: bool = False, **headers: str) -> Answer:
    connection = connect(proxy, secure=secure)
    try:
        return ask(connection, "GET", target, **headers)
    finally:
        connection.close()


def put(proxy: StorageProxy, key: str, content: bytes) -> None:
    connection = connect(proxy)
    target = f"/upload/storage/v1/b/proxied/o?uploadType=media&name={key}"
    assert ask(connection, "POST", target, content)[0] == 200
    connection.close()


def inject(proxy: StorageProxy, fault: Fault) -> None:
    proxy.change(rules=[Rule(fault=fault, times=1)])


class TestWithoutFaults:
    @pytest.mark.parametrize("secure", [False, True], ids=["http", "https"])
    @pytest.mark.parametrize(
        "target",
        ["/proxied/x", "/download/storage/v1/b/proxied/o/x?alt=media", "/storage/v1/b/proxied/o/x?alt=media"],
    )
    def test_objects_come_as_they_are_whole_and_in_part(self, proxy: StorageProxy, secure: bool, target: str) -> None:
        assert get(proxy, target, secure=secure)[2] == CONTENT
        status, headers, body = get(proxy, target, secure=secure, Range="bytes=1000-1999")
        assert (status, body) == (206, CONTENT[1000:2000])
        assert headers["Content-Range"] == f"bytes 1000-1999/{SIZE}"
        assert get(proxy, target, Range=f"bytes={SIZE}-")[0] == 416

    def test_one_connection_serves_many_requests(self, proxy: StorageProxy) -> None:
        connection = connect(proxy, secure=True)
        for start in range(0, 500, 100):
            assert (
                ask(connection, "GET", "/proxied/x", Range=f"bytes={start}-{start + 99}")[2]
                == CONTENT[:256][start % 256 :][:100] + CONTENT[: max(0, start % 256 + 100 - 256)]
            )
        connection.close()
        assert proxy.counters().connections == 1

    def test_what_is_written_is_what_is_read_then(self, proxy: StorageProxy) -> None:
        before = get(proxy)[1]
        put(proxy, "x", b"changed")
        _, headers, body = get(proxy)
        assert body == b"changed"
        assert headers["X-Goog-Generation"] != before["X-Goog-Generation"]
        assert get(proxy, f"/proxied/x?generation={before['X-Goog-Generation']}")[0] == 404

    def test_an_object_that_is_not_there(self, proxy: StorageProxy) -> None:
        assert get(proxy, "/proxied/none")[0] == 404
        assert proxy.counters().media_bytes == 0

    def test_links_lead_back_to_the_proxy(self, proxy: StorageProxy) -> None:
        body = get(proxy, "/storage/v1/b/proxied/o/x", secure=True)[2]
        assert f'"mediaLink":"{proxy.https}/'.encode() in body
        connection = connect(proxy)
        target = "/upload/storage/v1/b/proxied/o?uploadType=resumable&name=y"
        headers = ask(connection, "POST", target, b'{"name":"y"}', **{"Content-Type": "application/json"})[1]
        connection.close()
        assert headers["Location"].startswith(proxy.http)

    def test_it_counts(self, proxy: StorageProxy) -> None:
        get(proxy)
        get(proxy, Range="bytes=0-99")
        get(proxy, "/storage/v1/b/proxied/o")
        get(proxy, "/proxied/none")
        counted = proxy.counters()
        assert (counted.requests, counted.media_requests, counted.media_bytes) == (4, 3, SIZE + 100)
        assert (counted.connections, counted.by_status) == (4, {200: 2, 206: 1, 404: 1})
        assert counted.requests_by_object == {"proxied/x": 2, "proxied/none": 1}
        assert counted.bytes_by_object == {"proxied/x": SIZE + 100}
        assert [(each.object, each.range, each.sent) for each in proxy.requests()[:2]] == [
            ("proxied/x", "", SIZE),
            ("proxied/x", "bytes=0-99", 100),
        ]

    def test_an_object_server_that_is_down_is_a_bad_gateway(self) -> None:
        with StorageProxy("http://127.0.0.1:1", UNSHAPED) as nowhere:
            assert get(nowhere)[0] == 502


def takes(least: float, most: float, action: Callable[[], object]) -> None:
    """Check the time that it takes: never less than `least` seconds, and in one of ten tries at most `most`."""
    for _ in range(10):
        began = time.monotonic()
        action()
        took = time.monotonic() - began
        assert took >= least
        if took < most:
            return
    pytest.fail(f"ten times more than {most:g} s")


class TestShape:
    def test_every_request_waits(self, proxy: StorageProxy) -> None:
        proxy.change(latency=0.1)

        def two() -> None:
            get(proxy, Range="bytes=0-0")
            get(proxy, "/storage/v1/b/proxied/o")

        takes(0.2, 1, two)

    def test_a_stream_has_its_rate_and_many_have_theirs(self, proxy: StorageProxy) -> None:
        proxy.change(stream_rate=SIZE * 4)

        def by(streams: int) -> None:
            with ThreadPoolExecutor(streams) as pool:
                bodies = list(pool.map(lambda _: get(proxy)[2], range(streams)))
            assert bodies == [CONTENT] * streams

        for streams in (1, 8):
            # At one shared rate, eight streams would take 2 s.
            takes(0.25, 1.9, lambda streams=streams: by(streams))  # type: ignore[misc]

    def test_an_upload_has_its_rate_too(self, proxy: StorageProxy) -> None:
        proxy.change(stream_rate=SIZE * 4)
        takes(0.25, 2, lambda: put(proxy, "written", CONTENT))

    def test_who_is_refused_connections_gets_them_later(self, proxy: StorageProxy) -> None:
        held = connect(proxy)
        assert ask(held, "GET", "/proxied/x")[0] == 200
        proxy.change(refusing=True)
        with pytest.raises((http.client.HTTPException, ConnectionError)):
            ask(held, "GET", "/proxied/x")
        for secure in (False, True):
            with pytest.raises(ConnectionRefusedError):
                get(proxy, secure=secure)
        proxy.change(refusing=False)
        assert get(proxy, secure=True)[0] == 200
        held.close()


@pytest.mark.parametrize("secure", [False, True], ids=["http", "https"])
class TestFaults:
    @pytest.mark.parametrize("status", [429, 500, 503])
    def test_refusals(self, proxy: StorageProxy, status: int, secure: bool) -> None:
        inject(proxy, Refuse(status=status, retry_after=7))
        got, headers, _ = get(proxy, secure=secure)
        assert (got, headers["Retry-After"]) == (status, "7")
        assert get(proxy, secure=secure)[0] == 200
        assert proxy.counters().faults == {"Refuse": 1}

    @pytest.mark.parametrize(("after", "arrives"), [(0, 0), (300_001, 300_001), (None, SIZE // 2)])
    def test_a_body_is_cut(self, proxy: StorageProxy, after: int | None, arrives: int, secure: bool) -> None:
        inject(proxy, Cut(after=after))
        connection = connect(proxy, secure=secure)
        connection.request("GET", "/proxied/x")
        answer = connection.getresponse()
        try:
            part = answer.read()
        except http.client.IncompleteRead as error:
            part = error.partial
        except ssl.SSLEOFError:
            part = b""
        connection.close()
        if not secure:  # OpenSSL keeps back what arrived before an end without close_notify
            assert part == CONTENT[:arrives]
        assert len(part) <= arrives
        assert proxy.counters().media_bytes == arrives
        assert get(proxy, secure=secure)[2] == CONTENT

    def test_a_stall(self, proxy: StorageProxy, secure: bool) -> None:
        inject(proxy, Stall(seconds=1.5, after=1000))
        connection = connect(proxy, secure=secure)
        began = time.monotonic()
        connection.request("GET", "/proxied/x")
        answer = connection.getresponse()
        assert answer.read(1000) == CONTENT[:1000]
        at = time.monotonic()
        assert answer.read() == CONTENT[1000:]
        connection.close()
        assert at - began < 1.5 <= time.monotonic() - began

    def test_a_delay(self, proxy: StorageProxy, secure: bool) -> None:
        inject(proxy, Delay(seconds=0.3))
        began = time.monotonic()
        assert get(proxy, secure=secure)[2] == CONTENT
        assert time.monotonic() - began >= 0.3

    @pytest.mark.parametrize("name", ["Range", "range"])
    def test_another_range_than_was_asked_for(self, proxy: StorageProxy, secure: bool, name: str) -> None:
        inject(proxy, WrongRange(shift=10))
        status, headers, body = get(proxy, secure=secure, **{name: "bytes=100-199"})
        assert (status, headers["Content-Range"]) == (206, f"bytes 110-209/{SIZE}")
        assert body == CONTENT[110:210]

    @pytest.mark.parametrize("name", ["Range", "range"])
    def test_the_whole_object_instead_of_a_range(self, proxy: StorageProxy, secure: bool, name: str) -> None:
        inject(proxy, WholeObject())
        status, headers, body = get(proxy, secure=secure, **{name: "bytes=100-199"})
        assert (status, "Content-Range" in headers, body) == (200, False, CONTENT)

    def test_a_flipped_byte(self, proxy: StorageProxy, secure: bool) -> None:
        inject(proxy, Flip(at=300_000))
        body = get(proxy, secure=secure)[2]
        assert [at for at in range(SIZE) if body[at] != CONTENT[at]] == [300_000]

    @pytest.mark.parametrize("forwarded", [False, True])
    def test_an_answer_that_never_comes(self, proxy: StorageProxy, forwarded: bool, secure: bool) -> None:
        proxy.change(rules=[Rule(fault=Drop(forwarded=forwarded), what="write", times=1)])
        connection = connect(proxy, secure=secure)
        target = "/upload/storage/v1/b/proxied/o?uploadType=media&name=x"
        with pytest.raises((http.client.HTTPException, ConnectionError, ssl.SSLEOFError)):
            ask(connection, "POST", target, b"new")
        connection.close()
        assert get(proxy)[2] == (b"new" if forwarded else CONTENT)

    def test_an_upload_that_is_cut_is_none(self, proxy: StorageProxy, secure: bool) -> None:
        proxy.change(rules=[Rule(fault=Cut(after=1000), what="write", times=1)])
        connection = connect(proxy, secure=secure)
        target = "/upload/storage/v1/b/proxied/o?uploadType=media&name=x"
        with pytest.raises((http.client.HTTPException, OSError)):
            ask(connection, "POST", target, b"n" * 100_000)
        connection.close()
        assert get(proxy)[2] == CONTENT


class TestRules:
    def test_count_what_they_match(self) -> None:
        draw = Draw(Shape(rules=(Rule(fault=Refuse(), objects="b/x.*", skip=1, times=2),)))
        names = ["b/x1", "b/y", "b/x1", "b/x2", "b/x2"]
        hit = [draw.fault(asked("GET", f"/{name}")) is not None for name in names]
        assert hit == [False, False, True, True, False]

    def test_a_share_is_the_same_in_any_order_and_another_for_another_seed(self) -> None:
        def hits(seed: int, order: int) -> set[int]:
            draw = Draw(Shape(seed=seed, rules=(Rule(fault=Refuse(), share=0.1),)))
            requests = [asked("GET", "/b/x", f"bytes={at}-{at}") for at in range(2000)][::order]
            return {int(each.range[6:].split("-")[0]) for each in requests if draw.fault(each)}

        assert hits(1, 1) == hits(1, -1) != hits(2, 1)
        assert 150 < len(hits(1, 1)) < 250

    def test_who_asks_again_gets_another_draw(self) -> None:
        draw = Draw(Shape(rules=(Rule(fault=Refuse(), share=0.5),)))
        assert {draw.fault(asked("GET", "/b/x")) is None for _ in range(20)} == {True, False}

    @pytest.mark.parametrize(
        ("method", "target", "what", "name"),
        [
            ("GET", "/b/d/x%20y", "media", "b/d/x y"),
            ("HEAD", "/b/d/x", "metadata", "b/d/x"),
            ("GET", "/b?prefix=d", "metadata", ""),
            ("GET", "/storage/v1/b/b/o/d%2Fx", "metadata", "b/d/x"),
            ("GET", "/storage/v1/b/b/o/d%2Fx?alt=media", "media", "b/d/x"),
            ("GET", "/download/storage/v1/b/b/o/d%2Fx?alt=media", "media", "b/d/x"),
            ("GET", "/storage/v1/b/b/o?prefix=d", "metadata", ""),
            ("POST", "/upload/storage/v1/b/b/o?uploadType=media&name=d%2Fx", "write", "b/d/x"),
            ("DELETE", "/storage/v1/b/b/o/d%2Fx", "write", "b/d/x"),
        ],
    )
    def test_requests_in_the_storage_s_terms(self, method: str, target: str, what: str, name: str) -> None:
        request = asked(method, target)
        assert (request.what, request.object) == (what, name)

    @pytest.mark.parametrize(
        ("header", "expected"),
        [
            ("bytes=0-0", (0, 1)),
            ("bytes=5-", (5, 10)),
            ("bytes=5-99", (5, 10)),
            ("bytes=-3", (7, 10)),
            ("bytes=-99", (0, 10)),
            ("bytes=10-", None),
            ("bytes=5-4", None),
            ("bytes=-", None),
            ("bytes=0-1,3-4", None),
            ("lines=0-1", None),
        ],
    )
    def test_ranges(self, header: str, expected: tuple[int, int] | None) -> None:
        assert byte_range(header, 10) == expected


def test_obstore_reads_through_tls_by_many_streams(proxy: StorageProxy) -> None:
    program = """
from concurrent.futures import ThreadPoolExecutor
import obstore, os
from obstore.store import GCSStore
store = GCSStore("proxied", config={"base_url": os.environ["STORAGE_EMULATOR_HOST"], "skip_signature": True})
with ThreadPoolExecutor(4) as pool:
    ranges = list(pool.map(lambda at: obstore.get_range(store, "x", start=at, end=at + 65536).to_bytes(),
                           range(0, 1048576, 65536)))
assert b"".join(ranges) == bytes(range(256)) * 4096
"""
    environment = {**os.environ, **proxy.environment()}
    subprocess.run([sys.executable, "-c", program], check=True, timeout=240, env=environment)
    assert proxy.counters().media_bytes == SIZE


def test_google_s_client_reads_and_writes_through_tls(proxy: StorageProxy) -> None:
    program = """
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage
bucket = storage.Client(project="test", credentials=AnonymousCredentials()).bucket("proxied")
blob = bucket.blob("by-google", chunk_size=262144)
blob.upload_from_string(bytes(range(256)) * 4096)
assert bucket.get_blob("by-google").download_as_bytes() == bytes(range(256)) * 4096
"""
    environment = {**os.environ, **proxy.environment()}
    subprocess.run([sys.executable, "-c", program], check=True, timeout=240, env=environment)
    assert proxy.counters().bytes_by_object["proxied/by-google"] == SIZE


def test_counters_are_read_while_requests_are_under_way(proxy: StorageProxy) -> None:
    inject(proxy, Stall(seconds=2, after=1000))
    reading = threading.Thread(target=get, args=(proxy,))
    reading.start()
    deadline = time.monotonic() + 60
    while proxy.counters().media_bytes < 1000 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert proxy.counters().media_bytes == 1000
    reading.join()
