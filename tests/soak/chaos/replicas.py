"""The operator's replicas on the kind cluster: the leader, the replica to kill, and each one's counters."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from hack.cluster.engine import Engine, Failed
from hack.cluster.installation import OPERATOR, SYSTEM
from tests.soak.chaos.metrics import phases, restarts
from tests.soak.chaos.run import Counted
from tests.soak.chaos.schedule import OFFSETS, Fault, Kind
from tests.testbed.kubernetes.rest import Refused, Rest

PODS = f"/api/v1/namespaces/{SYSTEM}/pods"
_LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases/{OPERATOR}"
# The share of the faults against the operator that hit the leader.
_LEADER = 0.7
# A restart may be counted a moment after the counter was read for the last time.
_BEFORE, _AFTER = 1.0, 5.0
# A replica's command: the operator's own program, with a clock whose error depends on its pod's name.
PROGRAM = (
    "import os, pathlib, time, zlib; from mptraining_operator.__main__ import start; "
    f"offset = {OFFSETS!r}[zlib.crc32(os.environ['POD_NAME'].encode()) % {len(OFFSETS)}]; "
    "start(pathlib.Path('/etc/mptraining/settings.yaml'), clock=lambda: time.time() + offset)"
)


def offset(pod: str) -> int:
    """Return the seconds by which the clock of the replica in that pod is wrong."""
    return OFFSETS[zlib.crc32(pod.encode()) % len(OFFSETS)]


class Replicas:
    """`out` returns the nodes that do not respond now; `until` waits for a condition, and ends drains and pauses
    meanwhile.
    """

    def __init__(
        self,
        rest: Rest,
        engine: Engine,
        *,
        clock: Callable[[], float],
        out: Callable[[], frozenset[str]],
        until: Callable[[Callable[[], Any], str], Any],
    ) -> None:
        self._rest = rest
        self._engine = engine
        self._clock = clock
        self._out = out
        self._until = until
        self._known: dict[str, tuple[int, float]] = {}
        self._names: set[str] = set()
        self.counted = Counted()

    @property
    def offsets(self) -> list[int]:
        return [offset(each) for each in sorted(self._names)]

    def end(self, fault: Fault) -> None:
        """Kill a replica, or tell the leader to stop; the Deployment starts another one."""
        if fault.kind is Kind.SWITCH or fault.pick < _LEADER:
            self._until(self._leader, "a leader")
            time.sleep(fault.seconds)
            chosen = self._until(self._leader, "a leader")
        else:
            found = self._until(self._there, "a replica")
            chosen = found[int(fault.pick * len(found))]
        with suppress(Refused, OSError):
            self.ask()
        name, node = chosen["metadata"]["name"], chosen["spec"].get("nodeName", "")
        killed = fault.kind is Kind.KILL
        if killed and node not in self._out():
            kill(self._engine, node, container(chosen))
        with suppress(Refused, OSError):
            # Of a killed one as well: its kubelet would wait longer with every restart.
            self._rest.delete(f"{PODS}/{name}", {"gracePeriodSeconds": 0} if killed else None)

    def cut(self) -> int:
        """End the connections of all replicas with the API server, including their watches; return their number."""
        pods = [pod for pod in self._until(self._there, "a replica") if pod["spec"].get("nodeName") not in self._out()]
        return sum(cut(self._engine, pod["spec"].get("nodeName", ""), container(pod)) for pod in pods)

    def ask(self) -> dict[str, dict[str, int]]:
        """Read jobs by phase from every replica that responds, by its pod's name. A replica that is gone keeps its last
        count.
        """
        there, by_replica = set(), {}
        # A replica that was told to stop counts until it has exited.
        for pod in self._pods():
            name, known = pod["metadata"]["name"], container(pod)
            self._names.add(name)
            if not known:
                continue
            there.add(known)
            self._known.setdefault(known, (0, self._clock()))
            if pod["spec"].get("nodeName") in self._out():
                continue
            with suppress(Refused, OSError):
                text = self._rest.request("GET", f"{PODS}/{name}:8080/proxy/metrics", seconds=3)
                self._known[known] = restarts(text), self._clock()
                by_replica[name] = phases(text)
        for gone in self._known.keys() - there:
            counted, asked = self._known.pop(gone)
            self.counted.restarts += counted
            self.counted.blind.append((asked - _BEFORE, self._clock() + _AFTER))
        return by_replica

    def phases(self) -> dict[str, int]:
        """Return the leader's jobs by phase; nothing if it does not respond."""
        leader = self._until(self._leader, "a leader")["metadata"]["name"]
        return self.ask().get(leader, {})

    def restarts(self) -> int:
        return self.counted.restarts + sum(counted for counted, _ in self._known.values())

    def _pods(self) -> list[dict[str, Any]]:
        found = self._rest.get(PODS, {"labelSelector": f"app.kubernetes.io/name={OPERATOR}"})["items"]
        return sorted(found, key=lambda each: str(each["metadata"]["name"]))

    def _there(self) -> list[dict[str, Any]]:
        """Return the replicas that were not told to stop."""
        return [each for each in self._pods() if "deletionTimestamp" not in each["metadata"]]

    def _leader(self) -> dict[str, Any] | None:
        holder = self._rest.get(_LEASE)["spec"].get("holderIdentity")
        return next((each for each in self._there() if each["metadata"]["name"] == holder), None)


def container(pod: Mapping[str, Any]) -> str:
    """Return the id of its container in containerd; "" before there is one."""
    statuses = pod.get("status", {}).get("containerStatuses") or [{}]
    return str(statuses[0].get("containerID", "")).removeprefix("containerd://")


def kill(engine: Engine, node: str, known: str) -> None:
    """Send SIGKILL to the first process of a container."""
    with suppress(Failed):  # it may have ended by itself
        engine("exec", node, "ctr", "-n", "k8s.io", "tasks", "kill", "-s", "SIGKILL", known)


def cut(engine: Engine, node: str, known: str) -> int:
    """End the TCP connections of a container's network with the Service of the API server; return their number.

    None where the kernel was built without INET_DIAG_DESTROY.
    """
    try:
        tasks = engine("exec", node, "ctr", "-n", "k8s.io", "tasks", "list")
        processes = [line.split()[1] for line in tasks.splitlines() if known and line.startswith(known)]
        ss = ("ss", "--kill", "--tcp", "--no-header", "state", "established", "dport", "=", ":443")
        ended = [engine("exec", node, "nsenter", "-t", process, "-n", *ss) for process in processes]
    except Failed:  # the container, or its node, may have ended by itself
        return 0
    return sum(len(lines.splitlines()) for lines in ended)
