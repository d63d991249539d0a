"""Speed and faults of the storage proxy, and the selection of requests. Pure: no sockets, no clock.

A share of requests is drawn from the seed, the request's target and range, and the number of its retries: neither
threads nor timing change the selection, and a retried request gets another draw.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import parse_qs, unquote, urlsplit


@dataclass(frozen=True)
class Refuse:
    """Responds itself; the server gets no request. `retry_after`, in seconds, is the header beside 429 and 503."""

    status: int = 503
    retry_after: int | None = None


@dataclass(frozen=True)
class Cut:
    """The connection ends after so many bytes of the response's or the upload's body; None: after half of it."""

    after: int | None = None

    def length(self, whole: int) -> int:
        """Return how many of so many bytes pass."""
        return whole // 2 if self.after is None else min(whole, self.after)


@dataclass(frozen=True)
class Stall:
    """The response pauses for so many seconds after so many bytes of its body, then continues."""

    seconds: float
    after: int = 0


@dataclass(frozen=True)
class WrongRange:
    """206, with the range that begins one byte further on; its Content-Range says so."""


@dataclass(frozen=True)
class WholeObject:
    """200 with the whole object, whatever range was requested."""


@dataclass(frozen=True)
class Flip:
    """One byte of the response's body has its bits inverted on the way."""

    at: int = 0


@dataclass(frozen=True)
class Drop:
    """The connection ends without a response, and the server gets no request."""


Fault = Refuse | Cut | Stall | WrongRange | WholeObject | Flip | Drop


@dataclass(frozen=True)
class Rule:
    """A fault for some requests: those of kind `what`, whose "bucket/key" `objects` matches as a whole.

    Of these not the first `skip`, then a `share` of them, `times` times (None: always).
    """

    fault: Fault
    what: Literal["media", "any"] = "media"
    objects: str = ".*"
    share: float = 1.0
    skip: int = 0
    times: int | None = None


@dataclass(frozen=True)
class Shape:
    """The network's properties. `latency`, in seconds, precedes every response; `stream_rate`, in bytes a second, holds
    for each body in either direction, 0 being as fast as it goes. `refusing` closes the ports. The first rule that
    matches decides.
    """

    latency: float = 0.05
    stream_rate: float = 20e6
    rules: tuple[Rule, ...] = ()
    seed: int = 0
    refusing: bool = False


@dataclass(frozen=True)
class Request:
    """One request: `object` is "bucket/key" or "", `range` the header as it came or ""."""

    method: str
    target: str
    range: str
    what: Literal["media", "metadata", "write"]
    object: str


# The JSON API's paths, and the XML API's; keys of the former are escaped, slashes too.
_JSON = re.compile(r"^/(?:(?P<verb>download|upload)/)?storage/v1/b/(?P<bucket>[^/]+)(?:/o(?:/(?P<key>[^/]+))?)?$")
_XML = re.compile(r"^/(?!(?:storage|download|upload)/)(?P<bucket>[^/]+)/(?P<key>.+)$")


def read(method: str, target: str, range_header: str) -> Request:
    """Return the request in the storage's terms."""
    parts = urlsplit(target)
    query = parse_qs(parts.query)
    match = _JSON.match(parts.path) or _XML.match(parts.path)
    key = unquote(match["key"] or query.get("name", [""])[0]) if match else ""
    name = f"{unquote(match['bucket'])}/{key}" if match and key else ""
    json_api = parts.path.startswith(("/storage/", "/download/", "/upload/"))
    what: Literal["media", "metadata", "write"] = "metadata"
    if method not in ("GET", "HEAD"):
        what = "write"
    elif method == "GET" and name and (not json_api or query.get("alt") == ["media"]):
        what = "media"
    return Request(method, target, range_header, what, name)


@dataclass
class Draw:
    """Selects the fault of each request; only one thread at a time may ask."""

    shape: Shape
    _seen: Counter[int] = field(default_factory=Counter)
    _hits: Counter[int] = field(default_factory=Counter)
    _times: Counter[Request] = field(default_factory=Counter)

    def fault(self, request: Request) -> Fault | None:
        """Return the fault of the first rule that matches."""
        self._times[request] += 1
        matching = (rule.fault for number, rule in enumerate(self.shape.rules) if self._selected(number, rule, request))
        return next(matching, None)

    def _selected(self, number: int, rule: Rule, request: Request) -> bool:
        if rule.what not in ("any", request.what) or not re.fullmatch(rule.objects, request.object):
            return False
        self._seen[number] += 1
        if self._seen[number] <= rule.skip or (rule.times is not None and self._hits[number] >= rule.times):
            return False
        text = f"{self.shape.seed} {number} {self._times[request]} {request.method} {request.target} {request.range}"
        uniform = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") / 2**64
        selected = uniform < rule.share
        self._hits[number] += selected
        return selected


def byte_range(header: str, size: int) -> tuple[int, int] | None:
    """Return the first byte and the one after the last of `bytes=…` in an object of `size` bytes; None when it has none
    of them, or the header is not one single range.
    """
    match = re.fullmatch(r"bytes=(\d*)-(\d*)", header.strip())
    if not match or match.groups() == ("", ""):
        return None
    first, last = match.groups()
    if not first:
        start, end = max(0, size - int(last)), size
    else:
        start, end = int(first), min(size, int(last) + 1) if last else size
    return (start, end) if start < end else None
