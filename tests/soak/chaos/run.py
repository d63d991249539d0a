"""One chaos run: creates jobs, injects faults, waits for the ends, collects evidence and judges it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from tests.soak.chaos import jobs
from tests.soak.chaos.calls import insisted, listed
from tests.soak.chaos.control_plane import NAMESPACE, Servers
from tests.soak.chaos.kind_cluster import KindCluster
from tests.soak.chaos.record import JobSeen, Recorder, owner
from tests.soak.chaos.schedule import Fault, draw
from tests.soak.chaos.verdict import Evidence, Left, complaints
from tests.testbed.kubernetes.operator_namespace import JOBS, SWEEPS

# The objects that a job leaves behind.
_COLLECTIONS = {
    "Pod": "/api/v1/namespaces/{}/pods",
    "ConfigMap": "/api/v1/namespaces/{}/configmaps",
    "Service": "/api/v1/namespaces/{}/services",
    "NetworkPolicy": "/apis/networking.k8s.io/v1/namespaces/{}/networkpolicies",
    "Job": "/apis/batch/v1/namespaces/{}/jobs",
}
# What the jobs of a namespace share stays, and what every namespace has, and the workers of KindCluster.
_SHARED = frozenset({"mptraining-workers", "kube-root-ca.crt", "stub"})
# Seconds within which jobs without further faults end, children are deleted after their jobs, and the leader sees the
# last end.
_TO_END, _TO_GO, _TO_HEAR = 400.0, 180.0, 60.0
# Jobs are created during this share of the faults.
_MADE_WITHIN = 0.9


@dataclass(frozen=True)
class Ran:
    """The result of a chaos run.

    `faults`: the faults that were injected; `gaps`: how often the record had to list because its watch could not
    resume.
    """

    evidence: Evidence
    complaints: tuple[str, ...]
    faults: tuple[Fault, ...]
    gaps: int
    seconds: float


def run(servers: Servers | KindCluster, *, seed: int, kills: int, say: Callable[[str], None]) -> Ran:
    """Inject the seed's faults while the jobs run, wait for their ends, and judge."""
    began = time.monotonic()
    stubs, trials, faults = jobs.draw(seed), jobs.trials(), draw(seed, kills)
    hit = []
    with Recorder(servers.rest, NAMESPACE, clock=time.monotonic) as recorder:
        made = 0
        insisted(servers.create_sweep)
        for number, fault in enumerate(faults, start=1):
            due = min(len(stubs), -(-number * len(stubs) // max(1, int(len(faults) * _MADE_WITHIN))))
            for stub in stubs[made:due]:
                insisted(partial(servers.create, stub))
            made = due
            time.sleep(fault.wait)
            servers.revive()
            hit.append(servers.inject(fault))
            say(f"{time.monotonic() - began:6.1f} s  {number} of {len(faults)}: {fault.kind}")
        _wait_for_ends(servers, recorder, {stub.name for stub in (*stubs, *trials)})
        say(f"{time.monotonic() - began:6.1f} s  all jobs have ended, or were waited for long enough")
        sweep, phases = _sweep(servers), _heard(servers, recorder)
        steps, left = recorder.steps, tuple(_there(servers))
        remains = _without_jobs(servers)
    evidence = Evidence(
        planned=(*stubs, *trials),
        sweep=sweep,
        steps=steps,
        hit=frozenset(filter(None, hit)),
        left=left,
        remains=remains,
        counted=servers.restarts(),
        blind=tuple(servers.blind),
        phases=phases,
    )
    done = tuple(fault for fault, pod in zip(faults, hit, strict=True) if pod is not None)
    took = time.monotonic() - began
    return Ran(evidence, complaints(evidence), done, recorder.gaps, took)


def ended(recorder: Recorder) -> dict[str, str]:
    """Return the phases of jobs that have ended, by name."""
    seen = (change.seen for step in recorder.steps for change in step.changes if not change.gone)
    return {each.name: each.phase for each in seen if isinstance(each, JobSeen) and each.finished}


def _wait_for_ends(servers: Servers | KindCluster, recorder: Recorder, names: Iterable[str]) -> None:
    """Wait for all ends; a job that does not end is a complaint of the verdict."""
    wanted, until = set(names), time.monotonic() + _TO_END
    while not wanted <= ended(recorder).keys() and time.monotonic() < until:
        time.sleep(0.5)
        servers.revive()


def _sweep(servers: Servers | KindCluster) -> tuple[str, ...]:
    """Return phase and trials of the sweep: its end, or what it is a moment after the last job's."""
    path, until = f"{SWEEPS.format(NAMESPACE)}/{jobs.SWEEP}", time.monotonic() + _TO_HEAR
    while True:
        status = (insisted(partial(servers.rest.get, path)) or {}).get("status", {})
        if "completionTime" in status or time.monotonic() > until:
            trials = status.get("trials", ())
            states = (" ".join(filter(None, map(trial.get, ("job", "state", "message")))) for trial in trials)
            return (status.get("phase", ""), *states)
        time.sleep(0.5)
        servers.revive()


def _heard(servers: Servers | KindCluster, recorder: Recorder) -> dict[str, int]:
    """Return the leader's jobs by phase, a moment after the last end: its watch is a separate one."""
    until = time.monotonic() + _TO_HEAR
    while True:
        servers.revive()
        phases = servers.phases()
        heard = sum(phases.get(phase, 0) for phase in ("Succeeded", "Failed"))
        if heard >= len(ended(recorder)) or time.monotonic() > until:
            return phases
        time.sleep(0.2)


def _there(servers: Servers | KindCluster) -> Iterable[Left]:
    for kind, path in _COLLECTIONS.items():
        for raw in listed(partial(servers.rest.get, path.format(NAMESPACE))):
            metadata = raw["metadata"]
            if metadata["name"] not in _SHARED:
                yield Left(kind, metadata["name"], metadata["uid"], owner(raw))


def _without_jobs(servers: Servers | KindCluster) -> tuple[Left, ...]:
    """Delete the sweep and all jobs; return the objects that are not deleted with them in time."""
    for path in (SWEEPS.format(NAMESPACE), JOBS.format(NAMESPACE)):
        for raw in listed(partial(servers.rest.get, path)):
            insisted(partial(servers.rest.delete, f"{path}/{raw['metadata']['name']}"))
    until = time.monotonic() + _TO_GO
    while (remains := tuple(_there(servers))) and time.monotonic() < until:
        time.sleep(0.2)
    return remains
