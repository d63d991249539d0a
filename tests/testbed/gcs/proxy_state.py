"""The state that the storage proxy's threads share: the shape, the counters, and the objects in memory."""

from __future__ import annotations

import http.client
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import quote

from tests.testbed.gcs.faults import Asked, Counters, Draw, Shape

_MOST_REMEMBERED = 100_000
# These headers belong to one connection, not to the request: the proxy has a connection of its own on either side.
_HOP = {"connection", "keep-alive", "transfer-encoding", "host", "content-length", "te", "trailer", "expect"}


class Kept(NamedTuple):
    """A whole object, and the headers that describe it."""

    headers: Mapping[str, str]
    body: memoryview

    @property
    def generation(self) -> str:
        return self.headers.get("X-Goog-Generation", "")


@dataclass
class Books:
    """The state of all threads: the shape, the requests, and the objects that are kept."""

    upstream: str
    keep: bool
    draw: Draw = field(default_factory=lambda: Draw(Shape()))
    requests: list[Asked] = field(default_factory=list)
    tally: Counter[tuple[str, str]] = field(default_factory=Counter)
    kept: dict[str, Kept] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    filling: threading.Lock = field(default_factory=threading.Lock)

    @property
    def shape(self) -> Shape:
        return self.draw.shape

    def count(self, what: str, name: str = "", amount: int = 1) -> None:
        with self.lock:
            self.tally[what, name] += amount

    def remember(self, request: Asked) -> None:
        with self.lock:
            self.requests.append(request)
            del self.requests[:-_MOST_REMEMBERED]

    def reset(self) -> None:
        with self.lock:
            self.tally.clear()
            self.requests.clear()

    def counters(self) -> Counters:
        with self.lock:
            tally = dict(self.tally)

        def by(what: str) -> dict[str, int]:
            return {name: count for (kind, name), count in tally.items() if kind == what}

        requests, sent = by("object requests"), by("object bytes")
        return Counters(
            requests=tally.get(("requests", ""), 0),
            media_requests=sum(requests.values()),
            media_bytes=sum(sent.values()),
            connections=tally.get(("connections", ""), 0),
            by_status={int(status): count for status, count in by("status").items()},
            faults=by("fault"),
            requests_by_object=requests,
            bytes_by_object=sent,
        )

    def drop(self, request: Asked) -> None:
        """Drop what a write may have changed: everything, when it names no object."""
        with self.filling:
            if request.object:
                self.kept.pop(request.object, None)
            else:
                self.kept.clear()

    def whole(self, name: str) -> Kept | None:
        """Return the object, fetched once; None if the server does not respond with 200."""
        with self.filling:
            if name not in self.kept:
                connection = http.client.HTTPConnection(self.upstream)
                connection.request("GET", "/" + quote(name))
                answer = connection.getresponse()
                if answer.status == 200:
                    self.kept[name] = Kept(dict(passed_on(answer.getheaders())), memoryview(answer.read()))
                connection.close()
            return self.kept.get(name)


def passed_on(headers: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Return the headers that are forwarded."""
    return ((name, value) for name, value in headers if name.lower() not in _HOP)
