"""Many jobs at once: each one's time until its first child and until all its pods, and the cost.

All times are the API server's own, from its audit log: from the end of a job's creation to the end of its child's.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

import psutil

from hack.bench.operator import peer
from hack.bench.operator.fleet import NAMESPACE, WORKERS, cpu_seconds, create, fleet, number_of, wait_for
from hack.bench.operator.own_operator import USER as OWN_USER
from hack.bench.operator.own_operator import by_hand, own_job, remember, running_own_operator
from tests.testbed import ControlPlane, Request, Server
from tests.testbed.kubernetes.rest import Object

_PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
_SECONDS = 300
_BATCH = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs"


@dataclass(frozen=True)
class Contender:
    """A controller that creates pods for jobs. `user` is its name in the audit log, `resource` the kind of its jobs,
    `child` the kind of the first object that it creates for one.
    """

    name: str
    path: str
    job: Callable[[str], Object]
    resource: str
    child: str
    user: str = ""
    start: Callable[[ControlPlane], AbstractContextManager[Server]] | None = None


OURS = Contender(
    name="mptraining",
    path=f"/apis/mptraining.dev/v1alpha1/namespaces/{NAMESPACE}/mptrainingjobs",
    job=lambda name: own_job(name, WORKERS),
    resource="mptrainingjobs",
    child="jobs",
    user=OWN_USER,
    start=running_own_operator,
)
PEER = Contender(
    name="training-operator",
    path=f"/apis/kubeflow.org/v1/namespaces/{NAMESPACE}/tfjobs",
    job=lambda name: peer.job(name, WORKERS),
    resource="tfjobs",
    child="pods",
    user=peer.USER,
    start=peer.running,
)
PEER_RAISED = replace(
    PEER,
    name="training-operator, raised limits",
    start=lambda control_plane: peer.running(control_plane, peer.RAISED),
)
BY_HAND = Contender(
    name="Jobs by hand", path=_BATCH, job=lambda name: by_hand(name, WORKERS), resource="jobs", child="pods"
)


@dataclass(frozen=True)
class Mass:
    """One round. Seconds for each job; `calls` a job by (verb, resource), without events and leases; memory in MiB
    when all pods were there, and CPU seconds until then and until all of its work was done, of the contender's process
    and 0 for none.
    """

    to_child: list[float]
    to_pods: list[float]
    calls: Counter[str]
    jobs: int
    resident: float
    cpu_seconds: float
    whole_cpu_seconds: float

    @property
    def calls_per_job(self) -> float:
        return sum(self.calls.values()) / self.jobs


def measure(contender: Contender, jobs: int) -> Mass:
    """Start a cluster and the contender, create `jobs` jobs, and wait until all their pods exist."""
    with fleet() as control_plane:
        if contender.start is None:
            return _round(contender, control_plane, None, jobs)
        with contender.start(control_plane) as server:
            warm_up(contender, control_plane, server)
            if contender is OURS:
                (first,) = control_plane.rest.get(_BATCH)["items"]
                remember(first)
            return _round(contender, control_plane, server, jobs)


def calls_of_a_life(contender: Contender, jobs: int) -> dict[str, float]:
    """Return the contender's API calls for one job on average, from creation to Succeeded."""
    assert contender.start is not None
    with fleet(complete=True) as control_plane, contender.start(control_plane) as server:
        warm_up(contender, control_plane, server)
        done = len(control_plane.requests())
        create(control_plane, contender.path, [contender.job(name) for name in names(jobs)])
        wait_for(
            lambda: succeeded(contender, control_plane) > jobs, f"{jobs} jobs succeeded", of=server, seconds=_SECONDS
        )
        # A second for calls after the end: a last status, a clean-up.
        wait_for(quiet(contender, control_plane), "no more calls", of=server, seconds=30, every=1)
        asked = calls(contender, control_plane.requests()[done:])
        return {name: count / jobs for name, count in asked.items()}


def names(count: int) -> list[str]:
    """Return names without hyphens: the part before the first one in a child's name is its job."""
    return [f"job{number:05}" for number in range(count)]


def warm_up(contender: Contender, control_plane: ControlPlane, server: Server) -> None:
    """Run one job, so that the contender is known to be ready."""
    control_plane.rest.post(contender.path, contender.job("warm"))
    wait_for(
        lambda: number_of(control_plane, _PODS) == WORKERS, "the first job's pods", of=server, seconds=60, every=0.05
    )


def succeeded(contender: Contender, control_plane: ControlPlane) -> int:
    """Return the number of jobs that have succeeded, including the first one."""
    listed = control_plane.rest.get(contender.path)["items"]
    return sum(
        any(
            condition["type"] in ("Succeeded", "Complete") and condition["status"] == "True"
            for condition in job["status"].get("conditions", ())
        )
        for job in listed
        if "status" in job
    )


def calls(contender: Contender, requests: Iterable[Request]) -> Counter[str]:
    """Return the contender's calls by verb and resource, without events, leases and the first requests of watches."""
    return Counter(
        f"{request.verb} {request.resource}{f'/{request.subresource}' if request.subresource else ''}"
        for request in requests
        if request.user == contender.user and request.verb not in ("list", "watch") and request.resource not in _BESIDES
    )


# A leader's lock and reviews of tokens grow with time and pods' reports, not with jobs.
_BESIDES = ("events", "leases", "tokenreviews", "")


def _round(contender: Contender, control_plane: ControlPlane, server: Server | None, jobs: int) -> Mass:
    done, before = len(control_plane.requests()), number_of(control_plane, _PODS)
    computed = cpu_seconds(server) if server else 0.0
    create(control_plane, contender.path, [contender.job(name) for name in names(jobs)])
    expected = before + jobs * WORKERS
    wait_for(lambda: number_of(control_plane, _PODS) >= expected, f"{expected} pods", of=server, seconds=_SECONDS)
    until_pods = cpu_seconds(server) if server else 0.0
    resident = psutil.Process(server.pid).memory_info().rss / 2**20 if server else 0.0
    if server is not None:
        # Statuses, and what else the contender does after the pods exist.
        wait_for(quiet(contender, control_plane), "no more calls", of=server, seconds=_SECONDS, every=3)
    requests = control_plane.requests()[done:]
    created = {request.name: request.ended for request in made(requests, contender.resource) if "-" not in request.name}
    children = arrivals(requests, contender.child)
    pods = arrivals(requests, "pods")
    assert len(created) == jobs
    return Mass(
        to_child=[min(children[name]) - at for name, at in created.items()],
        to_pods=[max(pods[name]) - at for name, at in created.items()],
        calls=calls(contender, requests),
        jobs=jobs,
        resident=resident,
        cpu_seconds=until_pods - computed,
        whole_cpu_seconds=cpu_seconds(server) - computed if server else 0.0,
    )


def made(requests: Iterable[Request], resource: str) -> Iterable[Request]:
    """Return the successful creations of a resource."""
    return (
        request
        for request in requests
        if request.verb == "create" and request.resource == resource and not request.subresource and request.code == 201
    )


def arrivals(requests: Iterable[Request], resource: str) -> dict[str, list[float]]:
    """Return when the children of each job were created."""
    times: dict[str, list[float]] = {}
    for request in made(requests, resource):
        times.setdefault(request.name.split("-")[0], []).append(request.ended)
    return times


def quiet(contender: Contender, control_plane: ControlPlane) -> Callable[[], bool]:
    """Return a predicate: whether the contender has made no request since its last call."""
    last = -1

    def same() -> bool:
        nonlocal last
        now = sum(calls(contender, control_plane.requests()).values())
        unchanged, last = now == last, now
        return unchanged

    return same


def percentile(values: list[float], percent: int) -> float:
    """Return the nearest-rank percentile; 50 is the median."""
    if percent == 50:
        return statistics.median(values)
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(len(ordered) * percent / 100))]
