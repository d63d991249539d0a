"""Which replica leads: a coordination.k8s.io Lease, judged by nobody's clock but one's own.

A holder is taken for gone when its Lease did not change for its duration, counted from when this replica saw the last
change; the times in the Lease are only for people. A leader whose renewals fail stops before anybody may follow it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Protocol

from mptraining_operator.cluster import LEASES, ApiProblem, Raw, Resource
from mptraining_operator.settings import Identity, LeaseSettings

_log = logging.getLogger(__name__)

# A leader stops after this share of the duration without a renewal: its successor waits for all of it.
_GIVES_UP_AT = 0.8


class Leases(Protocol):
    """What is needed of `cluster.Cluster`."""

    def get(self, resource: Resource, namespace: str | None, name: str) -> Raw: ...

    def create(self, resource: Resource, namespace: str | None, body: Mapping[str, Any]) -> Raw: ...

    def replace(self, resource: Resource, namespace: str, name: str, body: Mapping[str, Any]) -> Raw: ...


@dataclass(frozen=True, slots=True)
class SeenLease:
    """A Lease as one replica saw it: `version` changes with every renewal, `changed` is when it last did, by the
    replica's own monotonic clock."""

    holder: str
    duration: float
    version: str
    changed: float
    transitions: int = 0


class Move(Enum):
    """What to do about a Lease."""

    CREATE = "create"
    TAKE = "take"
    RENEW = "renew"
    WAIT = "wait"


def look(before: SeenLease | None, raw: Mapping[str, Any], now: float) -> SeenLease:
    """The Lease as it is now, with the time since when it is so."""
    spec = raw.get("spec") or {}
    found = SeenLease(
        holder=spec.get("holderIdentity") or "",
        duration=float(spec.get("leaseDurationSeconds") or 0),
        version=str(raw["metadata"].get("resourceVersion", "")),
        changed=now,
        transitions=int(spec.get("leaseTransitions") or 0),
    )
    return replace(found, changed=before.changed) if before and before.version == found.version else found


def decide(seen: SeenLease | None, identity: str, now: float, duration: float) -> Move:
    """What this replica does about the Lease; None when there is none. `duration` where the Lease names none."""
    if seen is None:
        return Move.CREATE
    if seen.holder == identity:
        return Move.RENEW
    if not seen.holder:
        return Move.TAKE
    return Move.TAKE if now - seen.changed >= max(seen.duration, duration) else Move.WAIT


def must_stop(renewed: float, now: float, duration: float) -> bool:
    """Whether a leader whose last successful renewal began at `renewed` must not go on."""
    return now - renewed >= duration * _GIVES_UP_AT


class Election:
    """One replica's part, without a thread: `step` is one turn. Clocks: `monotonic` and since 1970."""

    def __init__(
        self,
        leases: Leases,
        identity: Identity,
        settings: LeaseSettings,
        *,
        monotonic: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        self._leases = leases
        self._identity = identity
        self._settings = settings
        self._monotonic = monotonic
        self._wall = wall
        self._seen: SeenLease | None = None
        self._raw: Raw = {}
        self._renewed = 0.0
        self.leading = False

    def step(self) -> None:
        """Takes, renews or waits; sets `leading`. What the API server refuses is tried again at the next step."""
        began = self._monotonic()
        try:
            self._move(began)
        except ApiProblem as problem:
            # 409: somebody else was faster, and is seen next time.
            level = logging.DEBUG if problem.status == 409 else logging.WARNING
            _log.log(level, "the lease %s: %s", self._settings.name, problem)

    def overdue(self) -> bool:
        """Whether this leader must stop at once: another one may begin."""
        return self.leading and must_stop(self._renewed, self._monotonic(), self._settings.duration_seconds)

    def lost(self) -> bool:
        """Whether somebody else holds the Lease that this replica led by."""
        return self.leading and self._seen is not None and self._seen.holder != self._identity.name

    def release(self) -> None:
        """Lets a successor begin at once. Best effort."""
        if not self.leading:
            return
        self.leading = False
        try:
            self._write(holder="", transitions=self._seen.transitions if self._seen else 0)
        except ApiProblem as problem:
            _log.warning("the lease was not released, a successor waits for it to run out: %s", problem)

    def _move(self, began: float) -> None:
        """A leader writes over the version that it knows, and looks only when that is refused: where the API server
        is slow, one call is in time where two are not.
        """
        if not self.leading:
            self._look(began)
        try:
            self._advance(began)
        except ApiProblem as problem:
            if not self.leading or problem.status not in (404, 409):
                raise
            # Another's write, or one's own whose answer was lost.
            self._look(began)
            self._advance(began)

    def _look(self, began: float) -> None:
        try:
            self._raw = self._leases.get(LEASES, self._identity.namespace, self._settings.name)
        except ApiProblem as problem:
            if problem.status != 404:
                raise
            self._seen = None
        else:
            self._seen = look(self._seen, self._raw, began)

    def _advance(self, began: float) -> None:
        move = decide(self._seen, self._identity.name, began, self._settings.duration_seconds)
        if move is Move.WAIT or (self.leading and move is Move.TAKE):
            return
        transitions = self._seen.transitions if self._seen else 0
        if move is Move.CREATE:
            self._raw = {"metadata": {"name": self._settings.name, "namespace": self._identity.namespace}}
        self._write(holder=self._identity.name, transitions=transitions + (move is Move.TAKE), make=move is Move.CREATE)
        self._renewed = began
        self.leading = True

    def _write(self, *, holder: str, transitions: int, make: bool = False) -> None:
        now = datetime.fromtimestamp(self._wall(), UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        old = self._raw.get("spec") or {}
        acquired = old.get("acquireTime") if old.get("holderIdentity") == holder else now
        body = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": self._raw["metadata"],
            "spec": {
                "holderIdentity": holder,
                "leaseDurationSeconds": self._settings.duration_seconds if holder else 1,
                "acquireTime": acquired,
                "renewTime": now,
                "leaseTransitions": transitions,
            },
        }
        if make:
            answer = self._leases.create(LEASES, self._identity.namespace, body)
        else:
            answer = self._leases.replace(LEASES, self._identity.namespace, self._settings.name, body)
        self._raw = answer
        self._seen = look(None, answer, self._monotonic())


class LeaseKeeper:
    """The election in two threads: one steps, which may hang in a call, the other stops a leader that is overdue.

    `on_started` runs once, on a thread of its own; `on_lost` must end the process: what a leader had in hand is not
    waited for.
    """

    def __init__(
        self,
        election: Election,
        settings: LeaseSettings,
        *,
        on_started: Callable[[], None],
        on_lost: Callable[[str], None],
    ) -> None:
        self._election = election
        self._seconds = settings.renew_seconds
        self._on_started = on_started
        self._on_lost = on_lost
        self._stop = threading.Event()
        self._stepping = threading.Thread(target=self._step, name="lease", daemon=True)
        self._guarding = threading.Thread(target=self._guard, name="lease-deadline", daemon=True)

    @property
    def leading(self) -> bool:
        return self._election.leading

    def start(self) -> None:
        self._stepping.start()
        self._guarding.start()

    def stop(self, *, release: bool, seconds: float = 3.0) -> None:
        """Ends the election; with `release` a successor begins at once, which is right only when nothing works here."""
        self._stop.set()
        if self._stepping.ident is not None:
            self._stepping.join(seconds)
        if release and not self._stepping.is_alive():
            self._election.release()

    def _step(self) -> None:
        started = False
        while not self._stop.is_set():
            self._election.step()
            if self._election.lost():
                self._on_lost("another replica holds the lease")
                return
            if self._election.leading and not started:
                started = True
                threading.Thread(target=self._on_started, name="leading", daemon=True).start()
            self._stop.wait(self._seconds)

    def _guard(self) -> None:
        while not self._stop.wait(min(self._seconds, 1.0) / 2):
            if self._election.overdue():
                self._on_lost("the lease could not be renewed in time")
                return
