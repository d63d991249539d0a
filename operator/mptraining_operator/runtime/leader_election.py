"""Leader election on a coordination.k8s.io Lease; expiry is measured with the local monotonic clock.

A Lease expires if it does not change for its duration, counted from when this replica observed the last change; the
times in the Lease are informational. A leader whose renewals fail sends no write from before another replica may take
the Lease: each write checks its term, by the clock. The replica then stands by, and may lead again in a new term.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import Enum
from typing import Any

from mptraining_api.kubernetes_api import LEASES, ApiProblem, Raw
from mptraining_operator.runtime.cluster import Cluster
from mptraining_operator.settings import Identity, LeaseSettings

_log = logging.getLogger(__name__)

# A leader stops after this fraction of the duration without a renewal; another replica waits for all of it.
_STOP_FRACTION = 0.8
# A leader tries a failed renewal again after this fraction of the duration.
_RETRY_FRACTION = 0.05


@dataclass(frozen=True, slots=True)
class ObservedLease:
    """A Lease as observed by this replica.

    `version` changes with every renewal; `changed` is the time of the last observed change, by the monotonic clock.
    """

    holder: str
    duration: float
    version: str
    changed: float
    transitions: int = 0


class LeaseAction(Enum):
    CREATE = "create"
    TAKE = "take"
    RENEW = "renew"
    WAIT = "wait"


def observe(before: ObservedLease | None, raw: Mapping[str, Any], now: float) -> ObservedLease:
    """Return the observed Lease, with `changed` of `before` if its version is the same."""
    spec = raw.get("spec") or {}
    observed = ObservedLease(
        holder=spec.get("holderIdentity") or "",
        duration=float(spec.get("leaseDurationSeconds") or 0),
        version=str(raw["metadata"].get("resourceVersion", "")),
        changed=now,
        transitions=int(spec.get("leaseTransitions") or 0),
    )
    return replace(observed, changed=before.changed) if before and before.version == observed.version else observed


def next_action(seen: ObservedLease | None, identity: str, now: float, duration: float) -> LeaseAction:
    """Return this replica's next action; `seen` is None if there is no Lease, `duration` the minimum duration."""
    if seen is None:
        return LeaseAction.CREATE
    if seen.holder == identity:
        return LeaseAction.RENEW
    if not seen.holder:
        return LeaseAction.TAKE
    return LeaseAction.TAKE if now - seen.changed >= max(seen.duration, duration) else LeaseAction.WAIT


class NotLeading(Exception):
    """The term of the caller is over: it must not send another write."""


class Term:
    """A term of leadership, the fencing token of its workers. Thread-safe; once over, it is over for good.

    `overdue` returns whether the Lease was renewed too long ago.
    """

    def __init__(self, number: int, overdue: Callable[[], bool]) -> None:
        self.number = number
        self.ended = threading.Event()
        self._overdue = overdue

    @property
    def over(self) -> bool:
        """Whether the term is over. A renewal that arrives after it was found to be overdue does not continue it."""
        if self._overdue():
            self.ended.set()
        return self.ended.is_set()

    def check(self) -> None:
        if self.over:
            raise NotLeading(f"term {self.number} is over")


def request_seconds(settings: LeaseSettings) -> float:
    """Return the time limit of a request: a leader can renew in time after one renewal without a response."""
    left = settings.duration_seconds * (_STOP_FRACTION - _RETRY_FRACTION) - settings.renew_seconds
    return left / 2


@dataclass(eq=False)
class LeaseKeeper:
    """The election of one replica, in a thread, which begins and ends the replica's terms.

    `monotonic` is in seconds, `wall` in seconds since 1970. `on_started` is called with each new term. `on_lost` is
    called with the cause after a term has ended; it returns when the workers of that term have left, and only then the
    next step may begin another term.
    """

    cluster: Cluster
    identity: Identity
    settings: LeaseSettings
    monotonic: Callable[[], float]
    wall: Callable[[], float]
    on_started: Callable[[Term], None]
    on_lost: Callable[[str], None]

    def __post_init__(self) -> None:
        self._seen: ObservedLease | None = None
        self._raw: Raw = {}
        # Whether this replica took the Lease, and when the last renewal that succeeded began.
        self._holds = False
        self._renewed = 0.0
        self._terms = 0
        self._term: Term | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lease", daemon=True)

    @property
    def leading(self) -> bool:
        term = self._term
        return term is not None and not term.over

    def transitions(self) -> int | None:
        """Return the leaseTransitions as they were last read; None before the first read. Takes no lock."""
        return self._seen.transitions if self._seen else None

    def start(self) -> None:
        self._thread.start()

    def stop(self, *, release: bool, seconds: float = 3.0) -> None:
        """Stop the election; `release` lets another replica lead at once: only if no worker of this replica runs."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(seconds)
        if not release or self._thread.is_alive() or not self._holds:
            return
        self._holds = False
        try:
            self._write(holder="", transitions=self.transitions() or 0)
        except ApiProblem as problem:
            _log.warning("the lease was not released, a successor waits until it expires: %s", problem)

    def turn(self) -> float:
        """Make one step of the election, then end the term or begin one; return the seconds until the next turn."""
        # Before the step as well: a renewal that is due must not continue a term that is overdue.
        self._end_if_over()
        done = self._step()
        self._end_if_over()
        if self._term is None and self._holds and not self._overdue():
            self._terms += 1
            self._term = Term(self._terms, self._overdue)
            self.on_started(self._term)
        seconds = self.settings.renew_seconds
        usual = done or self._term is None
        return seconds if usual else min(seconds, self.settings.duration_seconds * _RETRY_FRACTION)

    def _overdue(self) -> bool:
        """Return whether this leader must stop immediately, because another replica may soon take the Lease."""
        late = self.monotonic() - self._renewed >= self.settings.duration_seconds * _STOP_FRACTION
        return self._holds and late

    def _end_if_over(self) -> None:
        term = self._term
        if term is None:
            return
        if self._holds and self._seen is not None and self._seen.holder != self.identity.name:
            cause = "another replica holds the lease"
        elif term.over:
            cause = "the lease could not be renewed in time"
        else:
            return
        term.ended.set()
        self._term = None
        # The next step reads the Lease, and may take or renew it.
        self._holds = False
        self.on_lost(cause)

    def _run(self) -> None:
        while not self._stop.is_set():
            seconds = self.settings.renew_seconds
            try:
                seconds = self.turn()
            except Exception:  # noqa: BLE001 - without this thread the replica would never lead again
                _log.exception("an error in the leader election; trying again")
            self._stop.wait(seconds)

    def _step(self) -> bool:
        """Take or renew the Lease, or wait; log an API error and return False for the next step.

        A leader writes first and reads only after a conflict: with a slow API server, one call may be in time where two
        are not.
        """
        began = self.monotonic()
        try:
            if not self._holds:
                self._read(began)
            try:
                self._advance(began)
            except ApiProblem as problem:
                if not self._holds or problem.status not in (404, 409):
                    raise
                # Another replica wrote the Lease, or this replica did and the response was lost.
                self._read(began)
                self._advance(began)
        except ApiProblem as problem:
            # 409: another replica was faster, which the next step observes.
            level = logging.DEBUG if problem.status == 409 else logging.WARNING
            _log.log(level, "the lease %s: %s", self.settings.name, problem)
            return False
        return True

    def _read(self, began: float) -> None:
        lease = self.cluster.get_if_exists(LEASES, self.identity.namespace, self.settings.name)
        self._raw = lease or {"metadata": {"name": self.settings.name, "namespace": self.identity.namespace}}
        self._seen = observe(self._seen, lease, began) if lease else None

    def _advance(self, began: float) -> None:
        move = next_action(self._seen, self.identity.name, began, self.settings.duration_seconds)
        if move is LeaseAction.WAIT or (self._holds and move is LeaseAction.TAKE):
            return
        transitions = (self.transitions() or 0) + (move is LeaseAction.TAKE)
        self._write(holder=self.identity.name, transitions=transitions)
        self._renewed = began
        self._holds = True

    def _write(self, *, holder: str, transitions: int) -> None:
        now = datetime.fromtimestamp(self.wall(), UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        before = self._raw.get("spec") or {}
        body = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": self._raw["metadata"],
            "spec": {
                "holderIdentity": holder,
                "leaseDurationSeconds": self.settings.duration_seconds if holder else 1,
                "acquireTime": before.get("acquireTime") if before.get("holderIdentity") == holder else now,
                "renewTime": now,
                "leaseTransitions": transitions,
            },
        }
        namespace = self.identity.namespace
        if self._seen is None:
            self._raw = self.cluster.create(LEASES, namespace, body)
        else:
            self._raw = self.cluster.replace(LEASES, namespace, self.settings.name, body)
        self._seen = observe(None, self._raw, self.monotonic())
