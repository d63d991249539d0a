"""The faults between a client and the API server, and the rules that select the requests to inject them into."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Call:
    """One request in Kubernetes' terms; fields that its path lacks are "". The verb is get, list, watch, create,
    update, patch, delete or deletecollection.
    """

    verb: str
    group: str
    resource: str
    subresource: str
    namespace: str
    name: str
    path: str


@dataclass(frozen=True)
class Answered:
    """A request that is over. `code` is what the client saw, 0 being a dropped connection; times are monotonic."""

    call: Call
    code: int
    began: float
    ended: float
    fault: Fault | None


@dataclass(frozen=True)
class Refuse:
    """Responds itself; the API server gets no request. `retry_after`, in seconds, is the header beside 429 and 503."""

    code: int
    reason: str = ""
    message: str = "the fault proxy says no"
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
class Delay:
    """Forwards after so many seconds."""

    seconds: float


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


Fault = Refuse | DropBefore | DropAfter | Delay | DelayAnswer | CutWatch | ExpireWatch | HideEvents
When = Callable[[Call], bool]


@dataclass
class Rule:
    """A fault for the calls that `when` accepts: not for the first `skip` of them, then `times` times (None: always).

    `hits` counts its injections.
    """

    fault: Fault
    when: When
    times: int | None = None
    skip: int = 0
    hits: int = 0
    _seen: int = field(default=0, repr=False)

    def selects(self, call: Call) -> bool:
        """Report whether the fault is injected into this call; count it."""
        if not self.when(call):
            return False
        self._seen += 1
        if self._seen <= self.skip or (self.times is not None and self.hits >= self.times):
            return False
        self.hits += 1
        return True


_PATH = re.compile(
    r"^/(?:api/v1|apis/(?P<group>[^/]+)/[^/]+)"
    r"(?:/namespaces/(?P<namespace>[^/]+)(?=/(?!status$|finalize$)))?"
    r"/(?P<resource>[^/]+)(?:/(?P<name>[^/]+))?(?:/(?P<subresource>.+))?$"
)
_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch"}


def call(method: str, path: str, watch: bool) -> Call:
    """Return the request in Kubernetes' terms; for a path outside of the resources only the path and the method as
    verb.
    """
    found = _PATH.match(path)
    if found is None:
        return Call(method.lower(), "", "", "", "", "", path)
    parts = {key: value or "" for key, value in found.groupdict().items()}
    if method == "GET":
        verb = "watch" if watch else "get" if parts["name"] else "list"
    elif method == "DELETE":
        verb = "delete" if parts["name"] else "deletecollection"
    else:
        verb = _VERBS.get(method, method.lower())
    return Call(verb, parts["group"], parts["resource"], parts["subresource"], parts["namespace"], parts["name"], path)


def matching(verb: str | None, resource: str | None, subresource: str | None, name: str | None) -> When:
    """Return a predicate for calls with these properties, None being any; `name` may be a regular expression of the
    whole name.
    """

    def accepts(call: Call) -> bool:
        return (
            (verb is None or call.verb == verb)
            and (resource is None or call.resource == resource)
            and (subresource is None or call.subresource == subresource)
            and (name is None or re.fullmatch(name, call.name) is not None)
        )

    return accepts
