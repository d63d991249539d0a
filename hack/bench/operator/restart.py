"""The cost of many idle jobs for the operator: its memory, and a restart."""

from __future__ import annotations

from dataclasses import dataclass

from hack.bench.operator.fleet import NAMESPACE, WORKERS, create, fleet, number_of, resident_mib, wait_for
from hack.bench.operator.many_jobs import OURS, Contender, made, names, quiet, warm_up
from hack.bench.operator.own_operator import USER, running_own_operator
from tests.testbed import ControlPlane, Request, Server

_PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
_WRITES = ("create", "update", "patch", "delete", "deletecollection")
# Created after the restart: its child shows that the operator has reconciled all other jobs.
_LATE = "late"


@dataclass(frozen=True)
class Restart:
    """`writes` concern none but jobs that need nothing; `settled` is the seconds from the lease to a new job's child;
    `asked` from the operator's start to the same, including its wait for the lease.
    """

    writes: list[str]
    settled: float
    asked: float


def resident(contender: Contender, jobs: int, *, seconds: float = 900) -> float:
    """Return the contender's memory in MiB with so many running jobs, when it is idle."""
    assert contender.start is not None
    with fleet() as control_plane, contender.start(control_plane) as server:
        _settled_jobs(contender, control_plane, server, jobs, seconds)
        return resident_mib(server)


def restart(jobs: int, *, seconds: float = 600) -> Restart:
    """Stop the operator among so many running jobs and start it again."""
    with fleet() as control_plane:
        with running_own_operator(control_plane) as first:
            _settled_jobs(OURS, control_plane, first, jobs, seconds)
        control_plane.rest.post(OURS.path, OURS.job(_LATE))
        done, pods = len(control_plane.requests()), number_of(control_plane, _PODS)
        with running_own_operator(control_plane) as second:
            expected = pods + WORKERS
            wait_for(lambda: number_of(control_plane, _PODS) == expected, "the late job's pods", of=second, seconds=120)
            wait_for(quiet(OURS, control_plane), "no more calls", of=second, seconds=60, every=1)
            requests = control_plane.requests()[done:]
    own = [each for each in requests if each.user == USER]
    child = next(each for each in made(own, "jobs") if each.name.startswith(f"{_LATE}-"))
    lease = next(each for each in own if each.resource == "leases" and each.verb in _WRITES and each.code < 300)
    return Restart(
        writes=[_text(each) for each in own if _is_write(each)],
        settled=child.ended - lease.ended,
        asked=child.ended - own[0].began,
    )


def _settled_jobs(contender: Contender, control_plane: ControlPlane, server: Server, jobs: int, seconds: float) -> None:
    warm_up(contender, control_plane, server)
    create(control_plane, contender.path, [contender.job(name) for name in names(jobs)])
    expected = (jobs + 1) * WORKERS

    def running() -> bool:
        if number_of(control_plane, _PODS) < expected:
            return False
        return number_of(control_plane, _PODS, fieldSelector="status.phase=Running") == expected

    wait_for(running, f"{expected} running pods", of=server, seconds=seconds, every=1)
    wait_for(quiet(contender, control_plane), "no more calls", of=server, seconds=120, every=2)


def _is_write(request: Request) -> bool:
    return (
        request.verb in _WRITES
        and request.resource not in ("events", "leases", "tokenreviews")
        and request.name.split("-")[0] != _LATE
    )


def _text(request: Request) -> str:
    return f"{request.verb} {request.resource}/{request.name} {request.subresource} {request.code}".strip()
