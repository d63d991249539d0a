"""One run of chaos, wherever: jobs are made, faults carried out, ends awaited, evidence gathered and judged."""

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
from tests.soak.chaos.schedule import Kind, Pace, Stroke, draw
from tests.soak.chaos.verdict import Evidence, Left, Struck, complaints
from tests.testbed.kubernetes.rest import Rest

_JOBS = "/apis/mptraining.dev/v1alpha1/namespaces/{}/mptrainingjobs"
# What a job leaves beside itself.
_COLLECTIONS = {
    "Pod": "/api/v1/namespaces/{}/pods",
    "ConfigMap": "/api/v1/namespaces/{}/configmaps",
    "Service": "/api/v1/namespaces/{}/services",
    "NetworkPolicy": "/apis/networking.k8s.io/v1/namespaces/{}/networkpolicies",
    "Job": "/apis/batch/v1/namespaces/{}/jobs",
}
# Seconds: jobs that nobody disturbs any more end, children go with their jobs, and the leader hears of the last end.
_TO_END, _TO_GO, _TO_HEAR = 400.0, 180.0, 60.0
# Jobs are made during this share of the faults.
_MADE_WITHIN = 0.9


@dataclass
class Counted:
    """Restarts that replicas which are no more had counted, and the times in which any may have counted unheard."""

    restarts: int = 0
    blind: list[tuple[float, float]] = field(default_factory=list)


class Place(Protocol):
    """Where chaos happens: `control_plane.Servers` or `kind_cluster.KindCluster`."""

    @property
    def counted(self) -> Counted:
        """Of replicas that are no more."""

    @property
    def offsets(self) -> list[int]:
        """By how much the clock of each replica that was started is wrong, in seconds."""

    @property
    def rest(self) -> Rest: ...

    @property
    def namespace(self) -> str: ...

    @property
    def pace(self) -> Pace:
        """How fast faults follow each other."""

    @property
    def seconds(self) -> tuple[float, float]:
        """How long the workers of a stub wait."""

    @property
    def kinds(self) -> Mapping[Kind, float]:
        """How many faults of each kind come with one kill."""

    @property
    def own(self) -> frozenset[str]:
        """Names of objects in the namespace that belong to no job."""

    def create(self, stub: Stub) -> None: ...

    def train(self) -> tuple[str, ...]:
        """Starts the jobs that really train; their names."""

    def strike(self, stroke: Stroke) -> Struck:
        """Carries out one fault; what it may have ended."""

    def revive(self) -> None:
        """Between two faults: what ended by itself is started again, and who lives is asked for its counts."""

    def phases(self) -> dict[str, int]:
        """Jobs by phase, as the leader tells."""

    def restarts(self) -> int:
        """What all replicas counted, the living ones included."""

    def digests(self) -> dict[str, tuple[str, str]]:
        """By job, of the weights it exported, and of those of an undisturbed run with the same seed."""

    def logs(self) -> str: ...


@dataclass(frozen=True)
class Ran:
    """What became of it.

    `strokes`: the faults that were carried out; `gaps`: how often the record had to list because its watch could not
    go on.
    """

    evidence: Evidence
    complaints: tuple[str, ...]
    strokes: tuple[Stroke, ...]
    offsets: tuple[int, ...]
    gaps: int
    seconds: float


def counts(kinds: Mapping[Kind, float], kills: int) -> dict[Kind, int]:
    """So many faults of each kind beside the kills: at least one of each that the place knows."""
    return {Kind.KILL: kills, **{kind: max(1, round(share * kills)) for kind, share in kinds.items()}}


def run(place: Place, *, seed: int, kills: int, say: Callable[[str], None]) -> Ran:
    """Strikes `place` as the seed says while the jobs run, waits for their ends, and judges."""
    began = time.monotonic()
    stubs = jobs.draw(seed, place.seconds)
    strokes = draw(seed, counts(place.kinds, kills), place.pace)
    struck = []
    with Recorder(place.rest, place.namespace, clock=time.monotonic) as recorder:
        trained = place.train()
        made = 0
        for number, stroke in enumerate(strokes, start=1):
            due = min(len(stubs), -(-number * len(stubs) // max(1, int(len(strokes) * _MADE_WITHIN))))
            for stub in stubs[made:due]:
                insisted(partial(place.create, stub))
            made = due
            time.sleep(stroke.wait)
            place.revive()
            struck.append(place.strike(stroke))
            say(f"{time.monotonic() - began:6.1f} s  {number} of {len(strokes)}: {stroke.kind}")
        _wait_for_ends(place, recorder, {*(each.name for each in stubs), *trained})
        say(f"{time.monotonic() - began:6.1f} s  all jobs have ended, or were waited for long enough")
        digests = place.digests()
        phases = _heard(place, recorder)
        steps = recorder.steps
        left = tuple(_there(place))
        remains = _without_jobs(place)
        evidence = Evidence(
            planned=stubs,
            trained=trained,
            steps=steps,
            struck=tuple(struck),
            digests=digests,
            left=left,
            remains=remains,
            counted=place.restarts(),
            blind=tuple(place.counted.blind),
            phases=phases,
        )
    took = time.monotonic() - began
    done = tuple(stroke for stroke, each in zip(strokes, struck, strict=True) if each.done)
    return Ran(evidence, complaints(evidence), done, tuple(place.offsets), recorder.gaps, took)


def ended(recorder: Recorder) -> dict[str, str]:
    """The phases of jobs that have ended, by name."""
    seen = (change.seen for step in recorder.steps for change in step.changes if not change.gone)
    return {each.name: each.phase for each in seen if isinstance(each, JobSeen) and each.finished}


def _wait_for_ends(place: Place, recorder: Recorder, names: Iterable[str]) -> None:
    """That one does not end is for the verdict to say."""
    wanted, until = set(names), time.monotonic() + _TO_END
    while not wanted <= ended(recorder).keys() and time.monotonic() < until:
        time.sleep(0.5)
        place.revive()


def _heard(place: Place, recorder: Recorder) -> dict[str, int]:
    """The leader's figures, a moment after the last end: they come by a stream of its own."""
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
            name = raw["metadata"]["name"]
            if name not in place.own:
                yield Left(kind, name, raw["metadata"]["uid"], owner(raw))


def _without_jobs(place: Place) -> tuple[Left, ...]:
    """Deletes all jobs; what has not gone with them in time."""
    path = _JOBS.format(place.namespace)
    for raw in listed(partial(place.rest.get, path)):
        insisted(partial(place.rest.delete, f"{path}/{raw['metadata']['name']}"))
    until = time.monotonic() + _TO_GO
    while (remains := tuple(_there(place))) and time.monotonic() < until:
        time.sleep(0.2)
    return remains
