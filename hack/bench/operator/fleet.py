"""The cluster of a measurement: a new control plane, a scheduler, KWOK's nodes. Each round gets its own, so that the
objects of one contender do not slow another.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import psutil

from tests.testbed import ControlPlane, NotStarted, Options, Server
from tests.testbed.kubernetes.access import wait_until
from tests.testbed.kubernetes.rest import Object
from tests.testbed.nodes.kwok import start_kwok

NAMESPACE = "bench"
WORKERS = 2
# At the controller manager's own default of 20 calls a second only this limit would be measured of a contender with
# Jobs.
_OPTIONS = Options(scheduler=True, audit=True, client_qps=2000, concurrent_syncs=10)
_NODES = 4
# The pods of 10,000 jobs request 5,000 CPUs.
_ROOM = {"cpu": "10k", "memory": "100Ti"}
# As many as keep the API server busy on two cores.
_CREATORS = 8


@contextmanager
def fleet(*, complete: bool = False) -> Iterator[ControlPlane]:
    """Start a cluster with the namespace `bench`; `complete`: pods succeed as soon as they run."""
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as folder,
        ControlPlane(Path(folder), _OPTIONS) as control_plane,
        start_kwok(control_plane, complete=complete),
    ):
        for number in range(_NODES):
            control_plane.nodes.create(f"kwok-{number}", capacity=_ROOM, kwok=True)
        control_plane.namespace(NAMESPACE)
        yield control_plane


def create(control_plane: ControlPlane, path: str, bodies: list[Object]) -> None:
    """Post all as fast as the API server accepts them, as a user with the same priority as the contenders: an
    administrator would be served before them.
    """
    rules = [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["create"]}]
    rest = control_plane.rest_client(control_plane.service_account(NAMESPACE, "user", rules=rules))
    with ThreadPoolExecutor(_CREATORS) as creators:
        list(creators.map(lambda body: rest.post(path, body), bodies))
    rest.close()


def number_of(control_plane: ControlPlane, path: str, **selectors: str) -> int:
    """Return the number of objects, without fetching them all unless a selector needs it."""
    listed = control_plane.rest.get(path, selectors if selectors else {"limit": "1"})
    return len(listed["items"]) + int(listed["metadata"].get("remainingItemCount", 0))


def wait_for(
    condition: Callable[[], bool], what: str, *, of: Server | None, seconds: float, every: float = 0.25
) -> None:
    """Wait for a condition. Raises TimeoutError; NotStarted as soon as the server `of` has ended. `every` is coarse:
    each request costs the API server time, and times are read from its log.
    """

    def holds() -> bool:
        if of is not None and of.exit_code is not None:
            raise NotStarted(f"{of.name} ended with {of.exit_code} before {what}\n{of.last_lines()}")
        return condition()

    wait_until(holds, what, seconds=seconds, every=every)


def cpu_seconds(server: Server) -> float:
    """Return the process's CPU time since its start, in user and kernel mode."""
    times = psutil.Process(server.pid).cpu_times()
    return float(times.user + times.system)
