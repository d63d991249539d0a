"""The cluster of a measurement: a new control plane, a scheduler, KWOK's nodes. Each round gets its own, so that no
contender pays for what another has left behind.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from testbed import ControlPlane, Options, Server
from testbed.kwok import start_kwok
from testbed.rest import Object

NAMESPACE = "bench"
WORKERS = 2
# The controller manager's own default, 20 calls a second, would be all that is seen of any contender that makes Jobs.
_OPTIONS = Options(scheduler=True, audit=True, client_qps=2000, concurrent_syncs=10)
_NODES = 4
# As many as keep the API server busy on two cores.
_CREATORS = 8


@contextmanager
def fleet(*, complete: bool = False) -> Iterator[ControlPlane]:
    """A running cluster with the namespace `bench`; `complete`: pods succeed as soon as they run."""
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as folder,
        ControlPlane(Path(folder), _OPTIONS) as control_plane,
        start_kwok(control_plane, complete=complete),
    ):
        for number in range(_NODES):
            control_plane.nodes.create(f"kwok-{number}", kwok=True)
        control_plane.namespace(NAMESPACE)
        yield control_plane


def create(control_plane: ControlPlane, path: str, bodies: list[Object]) -> None:
    """Posts all as fast as the API server takes them."""
    with ThreadPoolExecutor(_CREATORS) as creators:
        list(creators.map(lambda body: control_plane.rest.post(path, body), bodies))


def number_of(control_plane: ControlPlane, path: str, **selectors: str) -> int:
    """How many objects there are, without fetching them all where no selector asks for that."""
    listed = control_plane.rest.get(path, selectors if selectors else {"limit": "1"})
    return len(listed["items"]) + int(listed["metadata"].get("remainingItemCount", 0))


def wait_for(condition: Callable[[], bool], what: str, *, seconds: float, every: float = 0.25) -> None:
    """Raises TimeoutError. `every` is coarse: asking costs the API server something, times are read from its log."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not after {seconds:g} s: {what}")
        time.sleep(every)


def resident_mib(server: Server) -> float:
    """The process's resident memory in MiB."""
    status = Path(f"/proc/{server.pid}/status").read_text(encoding="ascii")
    kib = next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS"))
    return int(kib) / 1024
