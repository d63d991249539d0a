"""Chaos without containers: a separate control plane, two replicas of the operator as processes, simulated pods.

API server, controller manager and operator are real; a proxy between them cuts watches. There are no nodes to lose.
"""

from __future__ import annotations

import itertools
import re
import signal
import sys
import time
import urllib.request
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

import yaml

from tests.soak.chaos.calls import awaited, insisted
from tests.soak.chaos.jobs import LOSS, Stub, sweep, trials
from tests.soak.chaos.record import ATTEMPT, JOB
from tests.soak.chaos.schedule import Fault, Kind
from tests.testbed import Behaviour, ControlPlane, Exit, Options, Run
from tests.testbed.kubernetes.installation import OPERATOR, SYSTEM, grant_lease, install
from tests.testbed.kubernetes.operator_namespace import JOBS, SETTINGS, SWEEPS
from tests.testbed.kubernetes.rest import Refused, Rest
from tests.testbed.nodes.behaviours import success_log
from tests.testbed.nodes.pods import Pod
from tests.testbed.processes import Server, free_ports

NAMESPACE, LEASE = "chaos", "chaos"
# The share of the faults against the operator that hit the leader.
_LEADER = 0.7
_PATIENCE = 180.0
# Seconds from SIGTERM to the end of a worker: longer than the delay before the next attempt, which must wait for it
# too.
_LEAVING = 3.0
# A count from before a fault may be the last one that was read, and a restart may be counted a moment after it.
_BEFORE, _AFTER = 1.0, 3.0


@dataclass
class Replica:
    """One process. `restarts`: its count when it was last read, at `asked`."""

    server: Server
    name: str
    port: int
    asked: float
    restarts: int = 0


class Servers:
    """A context manager."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._numbers = itertools.count(1)
        self._replicas: list[Replica] = []
        self._stubs = {stub.name: stub for stub in trials()}
        self._stack = ExitStack()
        # The counts of replicas that have ended.
        self._counted = 0
        # Times in which restarts may have been counted without being read.
        self.blind: list[tuple[float, float]] = []

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.control_plane = stack.enter_context(ControlPlane(self._folder, Options(audit=True)))
            install(self.control_plane)
            grant_lease(self.control_plane, LEASE)
            self.control_plane.namespace(NAMESPACE)
            self.control_plane.nodes.create("node")
            self.rest: Rest = self.control_plane.rest
            self._proxy = stack.enter_context(self.control_plane.fault_proxy())
            kubelet = self.control_plane.kubelet(self._behaviour, namespace=NAMESPACE)
            stack.enter_context(kubelet)
            stack.callback(self._stop)
            for _ in range(2):
                self._start()
            awaited(self._leader, "leader", seconds=_PATIENCE, logs=self.logs)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    # -- jobs ---------------------------------------------------------------------------------------------------

    def create(self, stub: Stub) -> None:
        self._stubs[stub.name] = stub
        self.rest.post(JOBS.format(NAMESPACE), stub.document())

    def create_sweep(self) -> None:
        self.rest.post(SWEEPS.format(NAMESPACE), sweep())

    def _behaviour(self, pod: Pod) -> Behaviour:
        stub = self._stubs[pod.labels[JOB]]
        attempt = int(pod.labels[ATTEMPT])
        code = stub.code(attempt, pod.index or 0)
        if code is None:
            return Run(stop_after=_LEAVING)
        message = "" if code else success_log(LOSS, attempt)
        return Exit(code, after=stub.seconds, message=message, stop_after=_LEAVING)

    # -- faults -------------------------------------------------------------------------------------------------

    def inject(self, fault: Fault) -> str | None:
        """Return the uid of the pod that the fault ended, "" for a fault that ended none, and None if it had no target.
        Raises TimeoutError if the cluster does not recover.
        """
        began = time.monotonic()
        if fault.kind is Kind.DELETE:
            return self._delete(fault)
        if fault.kind is Kind.CUT:
            self._proxy.cut_watches()
        elif fault.kind is Kind.API:
            self.control_plane.stop_api_server()
            time.sleep(fault.seconds)
            self.control_plane.start_api_server()
            self.blind.append((began - _BEFORE, time.monotonic() + _AFTER))
        else:
            self._replace(fault)
        return ""

    def _replace(self, fault: Fault) -> None:
        if fault.kind is Kind.SWITCH or fault.pick < _LEADER:
            # If every leader were killed before it leads, no leader would ever act.
            chosen = awaited(self._leader, "leader", seconds=_PATIENCE, logs=self.logs)
            time.sleep(fault.seconds)
        else:
            chosen = next((replica for replica in self._replicas if replica is not self._leader()), self._replicas[0])
        self._ask(chosen)
        if fault.kind is Kind.KILL:
            chosen.server.signal(signal.SIGKILL)
            chosen.server.wait(60)
        else:
            chosen.server.stop(seconds=15)
        self._bury(chosen)
        self._start()

    def _delete(self, fault: Fault) -> str | None:
        until = time.monotonic() + 5
        while time.monotonic() < until:
            found = insisted(partial(self.control_plane.pods.select, NAMESPACE)) or []
            if pods := [each for each in found if not (each.ended or each.terminating)]:
                pod = pods[int(fault.pick * len(pods))]
                insisted(partial(self.rest.delete, pod.path, {"preconditions": {"uid": pod.uid}}))
                return pod.uid
            time.sleep(0.02)
        return None

    # -- operators ----------------------------------------------------------------------------------------------

    def _start(self) -> None:
        name = f"chaos-{next(self._numbers)}"
        (port,) = free_ports(1)
        settings = self._folder / f"{name}.yaml"
        settings.write_text(yaml.safe_dump(_settings(port)))
        token = insisted(partial(self.control_plane.token, SYSTEM, OPERATOR)) or ""
        kubeconfig = self.control_plane.kubeconfig(name, token, server=self._proxy.url)
        environment = {
            "KUBECONFIG": str(kubeconfig),
            "POD_NAME": name,
            "POD_NAMESPACE": SYSTEM,
            "POD_SERVICE_ACCOUNT": OPERATOR,
        }
        command = [sys.executable, "-m", "tests.testbed.quick_operator", str(settings)]
        server = Server(command, log=self._folder / f"{name}.log", environment=environment)
        self._replicas.append(Replica(server, name, port, time.monotonic()))

    def _leader(self) -> Replica | None:
        try:
            lease = self.rest.get(f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases/{LEASE}")
        except (Refused, OSError):
            return None
        holder = lease["spec"].get("holderIdentity")
        return next((replica for replica in self._replicas if replica.name == holder), None)

    def _ask(self, replica: Replica) -> dict[str, int]:
        """Read its jobs by phase and remember its restarts. A replica that is starting or ending returns nothing."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{replica.port}/metrics", timeout=5) as answer:
                text = answer.read().decode()
        except OSError:
            return {}
        counts = re.findall(r"^mptraining_restarts_total\{[^}]*\} (\S+)$", text, re.M)
        replica.restarts, replica.asked = sum(int(float(each)) for each in counts), time.monotonic()
        return phases(text)

    def _bury(self, replica: Replica) -> None:
        """Keep the count of a replica that has ended."""
        self._replicas.remove(replica)
        self._counted += replica.restarts
        self.blind.append((replica.asked - _BEFORE, time.monotonic() + _AFTER))

    def revive(self) -> None:
        """Restart a replica that ended by itself, as a leader does that cannot renew its lease; read the counts of the
        others.
        """
        for replica in list(self._replicas):
            if replica.server.exit_code is None:
                self._ask(replica)
            else:
                self._bury(replica)
                self._start()

    def phases(self) -> dict[str, int]:
        return self._ask(awaited(self._leader, "leader", seconds=_PATIENCE, logs=self.logs))

    def restarts(self) -> int:
        return self._counted + sum(replica.restarts for replica in self._replicas)

    def logs(self) -> str:
        """Return the logs of all replicas, also of those that have ended."""
        return "\n".join(path.read_text(errors="replace") for path in sorted(self._folder.glob("chaos-*.log")))

    def _stop(self) -> None:
        for replica in self._replicas:
            replica.server.stop(seconds=5)


def phases(metrics: str) -> dict[str, int]:
    """Return the jobs by phase of a replica's metrics."""
    lines = re.findall(r'^mptraining_jobs\{phase="(\w+)"\} (\S+)$', metrics, re.M)
    return {phase: int(float(count)) for phase, count in lines if float(count)}


def _settings(port: int) -> dict[str, Any]:
    lease = {"durationSeconds": 3, "renewSeconds": 0.5, "name": LEASE}
    return {**SETTINGS, "healthPort": port, "namespaces": [NAMESPACE], "lease": lease}
