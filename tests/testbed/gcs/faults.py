"""Speed and faults of the storage proxy, and the selection of requests. Pure: no sockets, no clock.

A share of requests is drawn from the seed, the request's target and range, and the number of its retries: neither
threads nor timing change the selection, and a retried request gets another draw.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections import Counter
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from typing import Annotated, Literal
from urllib.parse import parse_qs, unquote, urlsplit

from pydantic import BaseModel, ConfigDict, Field

What = Literal["media", "metadata", "write", "any"]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Refuse(_Frozen):
    """Responds itself; the server gets no request. `retry_after`, in seconds, is the header beside 429 and 503."""

    kind: Literal["Refuse"] = "Refuse"
    status: int = 503
    retry_after: int | None = None


class Cut(_Frozen):
    """The connection ends after so many bytes of the response's or the upload's body; None: after half of it."""

    kind: Literal["Cut"] = "Cut"
    after: int | None = None


class Stall(_Frozen):
    """The response pauses for so many seconds after so many bytes of its body, then continues."""

    kind: Literal["Stall"] = "Stall"
    seconds: float
    after: int = 0


class WrongRange(_Frozen):
    """206, with the range that begins `shift` bytes further on; its Content-Range says so."""

    kind: Literal["WrongRange"] = "WrongRange"
    shift: int = 1


class WholeObject(_Frozen):
    """200 with the whole object, whatever range was requested."""

    kind: Literal["WholeObject"] = "WholeObject"


class Flip(_Frozen):
    """One byte of the response's body has its bits inverted on the way."""

    kind: Literal["Flip"] = "Flip"
    at: int = 0


class Drop(_Frozen):
    """The connection ends without a response; with `forwarded`, after the server has carried out the request."""

    kind: Literal["Drop"] = "Drop"
    forwarded: bool = False


Fault = Refuse | Cut | Stall | WrongRange | WholeObject | Flip | Drop


class Rule(_Frozen):
    """A fault for some requests: those of kind `what`, whose "bucket/key" `objects` matches as a whole.

    Of these not the first `skip`, then a `share` of them, `times` times (None: always).
    """

    fault: Annotated[Fault, Field(discriminator="kind")]
    what: What = "media"
    objects: str = ".*"
    share: float = 1.0
    skip: int = 0
    times: int | None = None


class Shape(_Frozen):
    """The network's properties. `latency`, in seconds, precedes every response; `stream_rate`, in bytes a second, holds
    for each body in either direction, 0 being as fast as it goes. `refusing` closes all ports but the control's.
    The first rule that matches decides.
    """

    latency: float = 0.05
    stream_rate: float = 20e6
    rules: tuple[Rule, ...] = ()
    seed: int = 0
    refusing: bool = False


class Counters(_Frozen):
    """Requests and bytes since the last reset. `connections` are those that clients opened; `media_bytes` are
    bytes of objects sent in response to `media_requests`, the latter two by object too, as "bucket/key".
    """

    requests: int = 0
    media_requests: int = 0
    media_bytes: int = 0
    connections: int = 0
    by_status: dict[int, int] = {}
    faults: dict[str, int] = {}
    requests_by_object: dict[str, int] = {}
    bytes_by_object: dict[str, int] = {}


class Asked(_Frozen):
    """One request: `object` is "bucket/key" or "", `range` the header as it came or "". `status` is 0 while there is
    no response, `sent` counts bytes of its body.
    """

    method: str
    target: str
    what: Literal["media", "metadata", "write"]
    object: str
    range: str = ""
    status: int = 0
    sent: int = 0
    fault: str = ""


# The JSON API's paths, and the XML API's; keys of the former are escaped, slashes too.
_JSON = re.compile(r"^/(?:(?P<verb>download|upload)/)?storage/v1/b/(?P<bucket>[^/]+)(?:/o(?:/(?P<key>[^/]+))?)?$")
_XML = re.compile(r"^/(?!(?:storage|download|upload)/)(?P<bucket>[^/]+)/(?P<key>.+)$")


def asked(method: str, target: str, range_header: str = "") -> Asked:
    """Return the request in the storage's terms."""
    parts = urlsplit(target)
    query = parse_qs(parts.query)
    found = _JSON.match(parts.path) or _XML.match(parts.path)
    key = unquote(found["key"] or query.get("name", [""])[0]) if found else ""
    name = f"{unquote(found['bucket'])}/{key}" if found and key else ""
    json_api = parts.path.startswith(("/storage/", "/download/", "/upload/"))
    what: Literal["media", "metadata", "write"] = "metadata"
    if method not in ("GET", "HEAD"):
        what = "write"
    elif method == "GET" and name and (not json_api or query.get("alt") == ["media"]):
        what = "media"
    return Asked(method=method, target=target, what=what, object=name, range=range_header)


@dataclass
class Draw:
    """Selects the fault of each request and counts requests. Safe from any thread."""

    shape: Shape
    _seen: Counter[int] = dataclass_field(default_factory=Counter)
    _hits: Counter[int] = dataclass_field(default_factory=Counter)
    _times: Counter[tuple[str, str, str]] = dataclass_field(default_factory=Counter)
    _lock: threading.Lock = dataclass_field(default_factory=threading.Lock)

    def fault(self, request: Asked) -> Fault | None:
        """Return the fault of the first rule that matches."""
        who = (request.method, request.target, request.range)
        with self._lock:
            self._times[who] += 1
            matching = (
                rule.fault for number, rule in enumerate(self.shape.rules) if self._selected(number, rule, request)
            )
            return next(matching, None)

    def _selected(self, number: int, rule: Rule, request: Asked) -> bool:
        if rule.what not in ("any", request.what) or not re.fullmatch(rule.objects, request.object):
            return False
        self._seen[number] += 1
        if self._seen[number] <= rule.skip or (rule.times is not None and self._hits[number] >= rule.times):
            return False
        if rule.share < 1 and self._uniform(number, request) >= rule.share:
            return False
        self._hits[number] += 1
        return True

    def _uniform(self, number: int, request: Asked) -> float:
        times = self._times[request.method, request.target, request.range]
        text = f"{self.shape.seed} {number} {times} {request.method} {request.target} {request.range}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") / 2**64


def byte_range(header: str, size: int) -> tuple[int, int] | None:
    """Return the first byte and the one after the last of `bytes=…` in an object of `size` bytes; None when it has none
    of them, or the header is not one single range.
    """
    found = re.fullmatch(r"bytes=(\d*)-(\d*)", header.strip())
    if not found or found.groups() == ("", ""):
        return None
    first, last = found.groups()
    if not first:
        start, end = max(0, size - int(last)), size
    else:
        start, end = int(first), min(size, int(last) + 1) if last else size
    return (start, end) if start < end else None
