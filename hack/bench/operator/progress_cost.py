"""The cost of `status.progress`: reports of worker 0 to the endpoint, against reads of worker 0's log by the leader.

    python -m hack.bench.operator.progress_cost --jobs 1000 3000

etcd and API server are real, and hold the running jobs with their pods; a process answers the API server's requests for
logs as a kubelet does. Each operation is done once for each job, with bound tokens of real pods and Events of the
trainer's size, and its cost is the CPU time that each process took for it, without the idle cluster's share. So the
result depends little on other processes on the machine. One JSON line for each operation on standard output, then what
a minute costs at that number of running jobs.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from hack.bench.figures import progress
from hack.bench.operator.own_operator import ACCOUNT, SYSTEM, own_job
from hack.bench.operator.progress_child import AT_ONCE, NAMESPACE, report
from mptraining_operator.plan.snapshot import Key
from mptraining_operator.progress.auth import report_path
from mptraining_operator.resources import names
from mptraining_operator.settings import OperatorSettings
from tests.testbed import ControlPlane, Options
from tests.testbed.kubernetes.rest import STRATEGIC, Object

NODE = "node"
_CREATORS = 8
_IDLE_SECONDS = 20.0
# Seconds between two reports or reads of a job.
EVERY = 15.0


@dataclass(frozen=True)
class Cost:
    """CPU milliseconds of one operation by process, its latency, and the operator's memory afterwards."""

    cpu_ms: Mapping[str, float]
    p50_ms: float
    p99_ms: float
    operator_mib: int


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m hack.bench.operator.progress_cost", description=__doc__)
    parser.add_argument("--jobs", type=int, nargs="+", default=[1000, 3000])
    for jobs in parser.parse_args().jobs:
        with cluster(jobs) as (control_plane, pods):
            costs = measure(control_plane, pods)
        for name, cost in costs.items():
            print(json.dumps({"jobs": jobs, "operation": name, **vars(cost)}), flush=True)
        for name, minute in a_minute(costs, jobs).items():
            print(json.dumps({"jobs": jobs, "a_minute": name, "cpu_seconds": minute}), flush=True)


def a_minute(costs: Mapping[str, Cost], jobs: int) -> dict[str, dict[str, float]]:
    """Return the CPU seconds for each minute of both ways, and of the writes that both do."""
    chosen = OperatorSettings().progress
    variants = {
        "endpoint, all replicas": {"report": jobs / EVERY, "review": jobs / chosen.token_cache_seconds},
        "logs, the leader": {"read": jobs / EVERY},
        "writes": {"write": min(chosen.writes_per_second, jobs / EVERY)},
    }
    return {
        name: {
            process: round(60 / 1000 * sum(rate * costs[each].cpu_ms[process] for each, rate in rates.items()), 1)
            for process in costs["report"].cpu_ms
        }
        for name, rates in variants.items()
    }


@contextmanager
def cluster(jobs: int) -> Iterator[tuple[ControlPlane, list[Object]]]:
    """Start a control plane with running jobs of one worker each, and their pods; no controller manages them."""
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as folder,
        ControlPlane(Path(folder), Options(controller_manager=False)) as control_plane,
    ):
        control_plane.namespace(NAMESPACE)
        control_plane.namespace(SYSTEM)
        rules = [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]
        token = control_plane.service_account(SYSTEM, ACCOUNT, rules=rules, cluster_wide=True)
        control_plane.kubeconfig("operator", token, namespace=SYSTEM)
        control_plane.nodes.create(NODE)
        began = time.monotonic()
        with ThreadPoolExecutor(_CREATORS) as creators:
            pods = list(creators.map(lambda number: _run_job(control_plane, f"job-{number}"), range(jobs)))
        progress(f"{jobs} running jobs after {time.monotonic() - began:.0f} s")
        yield control_plane, pods


def _run_job(control_plane: ControlPlane, name: str) -> Object:
    """Create a job and worker 0's pod, with the status of a running attempt; return the pod."""
    rest = control_plane.rest
    path = f"/apis/mptraining.dev/v1alpha1/namespaces/{NAMESPACE}/mptrainingjobs"
    job = rest.post(path, own_job(name, 1))
    rest.patch(f"{path}/{name}/status", {"status": {"phase": "Running", "currentAttempt": 1, "workers": 1}})
    labels = {**names.attempt_labels(name, job["metadata"]["uid"], 1), names.COMPLETION_INDEX: "0"}
    container = {"name": "trainer", "image": "none"}
    body = {
        "metadata": {"name": f"{name}-1-0-abcde", "labels": labels},
        "spec": {"nodeName": NODE, "automountServiceAccountToken": False, "containers": [container]},
    }
    pod: Object = rest.post(f"/api/v1/namespaces/{NAMESPACE}/pods", body)
    state = {**container, "imageID": "", "restartCount": 0, "ready": True, "state": {"running": {}}}
    running = {"status": {"phase": "Running", "containerStatuses": [state]}}
    rest.patch(f"/api/v1/namespaces/{NAMESPACE}/pods/{pod['metadata']['name']}/status", running, kind=STRATEGIC)
    return pod


class Child:
    """A process of `bench.operator.progress_child`: one JSON line in, one out."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "hack.bench.operator.progress_child", *arguments]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.pid = self._process.pid
        self.ready = self.ask("ready")

    def ask(self, what: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(what + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"{self._process.args!r} ended with {self._process.wait()}")
        return dict(json.loads(answer))

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()


def measure(control_plane: ControlPlane, pods: Sequence[Object]) -> dict[str, Cost]:
    """Do each operation once for each job and return its cost."""
    with ExitStack() as running:
        kubelet = Child("kubelet", str(control_plane.folder / "kubelet"))
        running.callback(kubelet.stop)
        _serve_logs(control_plane, kubelet.ready["port"])
        operator = Child("operator", str(control_plane.folder / "operator.kubeconfig"))
        running.callback(operator.stop)
        with ThreadPoolExecutor(_CREATORS) as creators:
            tokens = list(creators.map(partial(_token, control_plane), pods))
        processes = {each: control_plane.process(each).pid for each in ("kube-apiserver", "etcd")}
        processes |= {"operator": operator.pid, "kubelet": kubelet.pid}
        before = _cpu_seconds(processes)
        time.sleep(_IDLE_SECONDS)
        idle = {name: (after - before[name]) / _IDLE_SECONDS for name, after in _cpu_seconds(processes).items()}

        def cost(name: str, operation: Callable[[], list[float]]) -> Cost:
            before, began = _cpu_seconds(processes), time.monotonic()
            latencies = sorted(operation())
            took, after = time.monotonic() - began, _cpu_seconds(processes)
            progress(f"{name}: {len(latencies)} in {took:.0f} s")
            spent = {each: after[each] - before[each] - took * idle[each] for each in processes}
            return Cost(
                {each: round(1000 * seconds / len(latencies), 2) for each, seconds in spent.items()},
                round(1000 * latencies[len(latencies) // 2], 1),
                round(1000 * latencies[len(latencies) * 99 // 100], 1),
                operator.ask("memory")["mib"],
            )

        send = partial(_send_reports, operator.ready, pods, tokens)
        costs = {name: cost(name, send) for name in ("review and report", "report")}
        for name in ("read", "write"):
            costs[name] = cost(name, lambda name=name: operator.ask(name)["latencies"])  # type: ignore[misc]
        both, alone = costs.pop("review and report"), costs["report"].cpu_ms
        review = {name: round(value - alone[name], 2) for name, value in both.cpu_ms.items()}
        return {"review": Cost(review, both.p50_ms, both.p99_ms, both.operator_mib), **costs}


def _send_reports(endpoint: Mapping[str, Any], pods: Sequence[Object], tokens: Sequence[str]) -> list[float]:
    """Send a report of each job, as its worker does; return the latencies in seconds."""
    trusted = ssl.create_default_context(cadata=endpoint["certificate"])
    connections = threading.local()

    def send(pod: Object, token: str) -> float:
        began = time.perf_counter()
        if not hasattr(connections, "own"):
            # It reconnects after a response that ends the connection.
            connections.own = http.client.HTTPSConnection("localhost", endpoint["port"], context=trusted, timeout=600)
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        job = Key(NAMESPACE, pod["metadata"]["labels"][names.JOB])
        connections.own.request("POST", report_path(job), body=report(1).to_json().encode(), headers=headers)
        with connections.own.getresponse() as answer:
            body = answer.read()
        if answer.status != http.HTTPStatus.ACCEPTED:
            raise RuntimeError(f"{job}: {answer.status} {body!r}")
        return time.perf_counter() - began

    with ThreadPoolExecutor(AT_ONCE) as workers:
        return list(workers.map(send, pods, tokens))


def _token(control_plane: ControlPlane, pod: Object) -> str:
    metadata = pod["metadata"]
    audience = names.audience(NAMESPACE, metadata["labels"][names.JOB_UID])
    bound = (metadata["name"], metadata["uid"])
    return control_plane.token(NAMESPACE, "default", audiences=[audience], pod=bound)


def _serve_logs(control_plane: ControlPlane, port: int) -> None:
    status = {
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
    }
    control_plane.rest.patch(f"/api/v1/nodes/{NODE}/status", {"status": status})


def _cpu_seconds(processes: Mapping[str, int]) -> dict[str, float]:
    def of(pid: int) -> float:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    return {name: of(pid) for name, pid in processes.items()}


if __name__ == "__main__":
    main()
