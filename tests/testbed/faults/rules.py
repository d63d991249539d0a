"""The faults between a client and the API server, and the rules that select the requests to inject them into."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Refuse:
    """Responds itself; the API server gets no request. `retry_after`, in seconds, is the header beside 429 and 503."""

    code: int
    reason: str = ""
    retry_after: int | None = None


@dataclass(frozen=True)
class DropBefore:
    """Closes the connection; the API server gets no request."""


@dataclass(frozen=True)
class DropAfter:
    """Forwards, then closes the connection instead of responding: the client cannot know whether the request took
    effect.
    """


@dataclass(frozen=True)
class DelayAnswer:
    """Forwards at once and responds after so many seconds."""

    seconds: float


@dataclass(frozen=True)
class CutWatch:
    """Ends the stream of a watch after so many events."""

    after_events: int = 0


@dataclass(frozen=True)
class ExpireWatch:
    """Ends the stream of a watch after so many events with an ERROR event 410, "too old resource version"."""

    after_events: int = 0


@dataclass(frozen=True)
class HideEvents:
    """Drops events of one type from a watch: those that a client without a connection has missed."""

    type: str = "DELETED"


Fault = Refuse | DropBefore | DropAfter | DelayAnswer | CutWatch | ExpireWatch | HideEvents


@dataclass(frozen=True)
class Call:
    """One request in Kubernetes' terms; fields that its path lacks are "". The verb is get, list, watch, create,
    update, patch, delete or deletecollection.
    """

    verb: str
    resource: str = ""
    subresource: str = ""


@dataclass
class Rule:
    """A fault for the calls with these properties, `times` times (None: always). `hits` counts its injections."""

    fault: Fault
    verb: str
    resource: str | None = None
    subresource: str | None = None
    times: int | None = None
    hits: int = 0

    def selects(self, call: Call) -> bool:
        """Report whether the fault is injected into this call; count it."""
        selected = (
            self.verb == call.verb
            and self.resource in (None, call.resource)
            and self.subresource in (None, call.subresource)
            and (self.times is None or self.hits < self.times)
        )
        self.hits += selected
        return selected


_PATH = re.compile(
    r"^/(?:api/v1|apis/[^/]+/[^/]+)(?:/namespaces/[^/]+(?=/(?!status$|finalize$)))?"
    r"/(?P<resource>[^/]+)(?:/(?P<name>[^/]+))?(?:/(?P<subresource>.+))?$"
)
_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch"}


def read(method: str, path: str, *, watch: bool) -> Call:
    """Return the request in Kubernetes' terms; for a path outside of the resources only the method as verb."""
    match = _PATH.match(path)
    if match is None:
        return Call(method.lower())
    if method == "GET":
        verb = "watch" if watch else "get" if match["name"] else "list"
    elif method == "DELETE":
        verb = "delete" if match["name"] else "deletecollection"
    else:
        verb = _VERBS.get(method, method.lower())
    return Call(verb, match["resource"], match["subresource"] or "")
