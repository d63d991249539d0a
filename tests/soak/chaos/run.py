"""One chaos run: creates jobs, injects faults, waits for the ends, collects evidence and judges it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from tests.soak.chaos import jobs
from tests.soak.chaos.calls import insisted, listed
from tests.soak.chaos.jobs import Stub
from tests.soak.chaos.record import JobSeen, Recorder, owner
from tests.soak.chaos.schedule import Fault, Kind, Pace, draw
from tests.soak.chaos.verdict import Evidence, InjectedFault, Left, complaints
from tests.testbed.kubernetes.rest import Rest

_JOBS = "/apis/mptraining.dev/v1alpha1/namespaces/{}/mptrainingjobs"
# The objects that a job leaves behind.
_COLLECTIONS = {
    "Pod": "/api/v1/namespaces/{}/pods",
    "ConfigMap": "/api/v1/namespaces/{}/configmaps",
    "Service": "/api/v1/namespaces/{}/services",
    "NetworkPolicy": "/apis/networking.k8s.io/v1/namespaces/{}/networkpolicies",
    "Job": "/apis/batch/v1/namespaces/{}/jobs",
}
# What the jobs of a namespace share stays.
_SHARED = frozenset({"mptraining-workers", "mptraining-deny-ingress"})
# Seconds within which jobs without further faults end, children are deleted after their jobs, and the leader sees the
# last end.
_TO_END, _TO_GO, _TO_HEAR = 400.0, 180.0, 60.0
# Jobs are created during this share of the faults.
_MADE_WITHIN = 0.9


@dataclass
class Counted:
    """Counts of replicas that have ended, and the times in which restarts may have been counted without being read."""

    restarts: int = 0
    blind: list[tuple[float, float]] = field(default_factory=list)


class Place(Protocol):
    """The place of a chaos run: `control_plane.Servers`."""

    # The counts of replicas that have ended, and the seconds by which the clock of each that was started is wrong.
    counted: Counted
    offsets: list[int]
    rest: Rest
    namespace: str
    # The time between faults, the duration of a stub's workers, and the faults of each kind for one kill.
    pace: Pace
    seconds: tuple[float, float]
    kinds: Mapping[Kind, float]
    # Names of objects in the namespace that belong to no job.
    own: frozenset[str]

    def create(self, stub: Stub) -> None: ...

    def inject(self, fault: Fault) -> InjectedFault:
        """Inject one fault; return the pods that it may have hit."""

    def revive(self) -> None:
        """Between two faults: restart what ended by itself, and read the counts of the others."""

    def phases(self) -> dict[str, int]:
        """Return the leader's jobs by phase."""

    def restarts(self) -> int:
        """Return the restarts that all replicas counted, also those that still run."""


@dataclass(frozen=True)
class Ran:
    """The result of a chaos run.

    `faults`: the faults that were injected; `gaps`: how often the record had to list because its watch could not
    resume.
    """

    evidence: Evidence
    complaints: tuple[str, ...]
    faults: tuple[Fault, ...]
    offsets: tuple[int, ...]
    gaps: int
    seconds: float


def counts(kinds: Mapping[Kind, float], kills: int) -> dict[Kind, int]:
    """Return the number of faults of each kind beside the kills: at least one of each that the place supports."""
    return {Kind.KILL: kills, **{kind: max(1, round(share * kills)) for kind, share in kinds.items()}}


def run(place: Place, *, seed: int, kills: int, say: Callable[[str], None]) -> Ran:
    """Inject the seed's faults into `place` while the jobs run, wait for their ends, and judge."""
    began = time.monotonic()
    stubs = jobs.draw(seed, place.seconds)
    faults = draw(seed, counts(place.kinds, kills), place.pace)
    injected = []
    with Recorder(place.rest, place.namespace, clock=time.monotonic) as recorder:
        made = 0
        for number, fault in enumerate(faults, start=1):
            due = min(len(stubs), -(-number * len(stubs) // max(1, int(len(faults) * _MADE_WITHIN))))
            for stub in stubs[made:due]:
                insisted(partial(place.create, stub))
            made = due
            time.sleep(fault.wait)
            place.revive()
            injected.append(place.inject(fault))
            say(f"{time.monotonic() - began:6.1f} s  {number} of {len(faults)}: {fault.kind}")
        _wait_for_ends(place, recorder, {stub.name for stub in stubs})
        say(f"{time.monotonic() - began:6.1f} s  all jobs have ended, or were waited for long enough")
        phases = _heard(place, recorder)
        steps = recorder.steps
        left = tuple(_there(place))
        remains = _without_jobs(place)
        evidence = Evidence(
            planned=stubs,
            steps=steps,
            injected=tuple(injected),
            left=left,
            remains=remains,
            counted=place.restarts(),
            blind=tuple(place.counted.blind),
            phases=phases,
        )
    took = time.monotonic() - began
    done = tuple(fault for fault, each in zip(faults, injected, strict=True) if each.done)
    return Ran(evidence, complaints(evidence), done, tuple(place.offsets), recorder.gaps, took)


def ended(recorder: Recorder) -> dict[str, str]:
    """Return the phases of jobs that have ended, by name."""
    seen = (change.seen for step in recorder.steps for change in step.changes if not change.gone)
    return {each.name: each.phase for each in seen if isinstance(each, JobSeen) and each.finished}


def _wait_for_ends(place: Place, recorder: Recorder, names: Iterable[str]) -> None:
    """Wait for all ends; a job that does not end is a complaint of the verdict."""
    wanted, until = set(names), time.monotonic() + _TO_END
    while not wanted <= ended(recorder).keys() and time.monotonic() < until:
        time.sleep(0.5)
        place.revive()


def _heard(place: Place, recorder: Recorder) -> dict[str, int]:
    """Return the leader's jobs by phase, a moment after the last end: its watch is a separate one."""
    until = time.monotonic() + _TO_HEAR
    while True:
        place.revive()
        phases = place.phases()
        if sum(phases.get(each, 0) for each in ("Succeeded", "Failed")) >= len(ended(recorder)):
            return phases
        if time.monotonic() > until:
            return phases
        time.sleep(0.2)


def _there(place: Place) -> Iterable[Left]:
    for kind, path in _COLLECTIONS.items():
        for raw in listed(partial(place.rest.get, path.format(place.namespace))):
            metadata = raw["metadata"]
            if metadata["name"] not in place.own | _SHARED:
                # NetworkPolicies have no owner: the operator deletes them with a job's last pod.
                job = metadata.get("labels", {}).get("mptraining.dev/job-uid", "") if kind == "NetworkPolicy" else ""
                yield Left(kind, metadata["name"], metadata["uid"], owner(raw) or job)


def _without_jobs(place: Place) -> tuple[Left, ...]:
    """Delete all jobs; return the objects that are not deleted with them in time."""
    path = _JOBS.format(place.namespace)
    for raw in listed(partial(place.rest.get, path)):
        insisted(partial(place.rest.delete, f"{path}/{raw['metadata']['name']}"))
    until = time.monotonic() + _TO_GO
    while (remains := tuple(_there(place))) and time.monotonic() < until:
        time.sleep(0.2)
    return remains
