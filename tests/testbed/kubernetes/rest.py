"""A client for the API server's JSON over HTTP: fast enough for thousands of pods, where model classes are not.

Tests use the official client (`ControlPlane.client`); this one is for the simulated kubelet and the benchmark.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlencode

import urllib3

MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"
JSON_PATCH = "application/json-patch+json"

Object = dict[str, Any]


class Refused(Exception):
    """The API server refused the request: its code, reason and message."""

    def __init__(self, code: int, answer: Object) -> None:
        super().__init__(f"{code} {answer.get('reason', '')}: {answer.get('message', '')}")
        self.code = code
        self.reason = str(answer.get("reason", ""))
        self.message = str(answer.get("message", ""))
        self.answer = answer


class Rest:
    """A client with a connection pool; threads may share it."""

    def __init__(
        self, server: str, *, token: str, authority: Path, agent: str = "testbed", connections: int = 16
    ) -> None:
        self.server = server
        self.token = token
        self._headers = {"Authorization": f"Bearer {token}", "User-Agent": agent, "Accept": "application/json"}
        # Without `retries=False` a lost connection would repeat a POST without the caller's knowledge.
        self._pool = urllib3.PoolManager(maxsize=connections, retries=False, ca_certs=str(authority))

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
        seconds: float = 30,
    ) -> Any:
        """Return the response, parsed when it is JSON, else as text. Raises Refused, or OSError without a response."""
        try:
            answer = self._pool.request(
                method,
                self._url(path, query),
                body=None if body is None else json.dumps(body).encode(),
                headers={**self._headers, "Content-Type": content_type},
                timeout=seconds,
            )
        except urllib3.exceptions.HTTPError as error:
            raise ConnectionError(str(error)) from error
        parsed = _parsed(answer.data)
        if answer.status >= 400:
            raise Refused(answer.status, parsed if isinstance(parsed, dict) else {"message": parsed})
        return parsed

    def get(self, path: str, query: Mapping[str, str] | None = None) -> Any:
        return self.request("GET", path, query=query)

    def post(self, path: str, body: Object, query: Mapping[str, str] | None = None) -> Any:
        return self.request("POST", path, body, query=query)

    def put(self, path: str, body: Object) -> Any:
        return self.request("PUT", path, body)

    def patch(self, path: str, body: Any, *, kind: str = MERGE, query: Mapping[str, str] | None = None) -> Any:
        return self.request("PATCH", path, body, content_type=kind, query=query)

    def delete(self, path: str, body: Object | None = None) -> Any:
        return self.request("DELETE", path, body)

    def open_watch(self, path: str, query: Mapping[str, str]) -> urllib3.BaseHTTPResponse:
        """Return the open stream of a watch, for `Watch`."""
        return self._pool.request(
            "GET",
            self._url(path, query),
            headers=self._headers,
            preload_content=False,
            timeout=urllib3.Timeout(connect=10, read=None),
        )

    def close(self) -> None:
        self._pool.clear()

    def _url(self, path: str, query: Mapping[str, str] | None) -> str:
        return f"{self.server}{path}" + (f"?{urlencode(query)}" if query else "")


def _parsed(data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError:
        return data.decode(errors="replace")


def changes(stream: urllib3.BaseHTTPResponse, stopping: threading.Event) -> Iterator[tuple[str, Any]]:
    """Yield (type, object) of each event of an open watch, until it ends or `stopping` is set."""
    rest = b""
    while not stopping.is_set():
        some = stream.read1()
        if not some:
            return
        *lines, rest = (rest + some).split(b"\n")
        for line in lines:
            event = json.loads(line)
            yield event["type"], event["object"]


class Watch:
    """Follows a collection in a thread: LIST, then WATCH, and both again when the stream breaks.

    `seen` is called in that thread with ADDED, MODIFIED or DELETED and the object; objects of a LIST come as ADDED.
    A context manager; the first LIST has been handed over when `start` returns.
    """

    def __init__(
        self, rest: Rest, path: str, seen: Callable[[str, Object], None], query: Mapping[str, str] | None = None
    ) -> None:
        self._rest = rest
        self._path = path
        self._seen = seen
        self._query = dict(query or {})
        self._stopping = threading.Event()
        self._listed = threading.Event()
        self._stream: urllib3.BaseHTTPResponse | None = None
        self._thread = threading.Thread(target=self._follow, name=f"watch {path}", daemon=True)

    def start(self) -> Self:
        self._thread.start()
        if not self._listed.wait(120):
            raise TimeoutError(f"no answer to LIST {self._path}")
        return self

    def stop(self) -> None:
        self._stopping.set()
        stream = self._stream
        if isinstance(stream, urllib3.HTTPResponse):
            with contextlib.suppress(OSError, RuntimeError, ValueError):  # it may have ended by itself
                stream.shutdown()
        self._thread.join(10)

    def _follow(self) -> None:
        while not self._stopping.is_set():
            try:
                self._once()
            except (OSError, ValueError, Refused, urllib3.exceptions.HTTPError):
                self._stopping.wait(0.2)

    def _once(self) -> None:
        listed = self._rest.get(self._path, self._query)
        for item in listed.get("items", ()):
            self._seen("ADDED", item)
        self._listed.set()
        query = self._query | {"watch": "true", "resourceVersion": listed["metadata"]["resourceVersion"]}
        with self._rest.open_watch(self._path, query) as stream:
            self._stream = stream
            for kind, changed in changes(stream, self._stopping):
                if kind == "ERROR":
                    return
                self._seen(kind, changed)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
