"""The twelve patterns of tests/golden/alternatives.yaml on the real scheduler, in a fifteenth of the time.

etcd, API server, controller manager, scheduler and operator are real; nodes and their kubelet are simulated. The table
is of a simulation of the operator's plan alone: here each job must run on the same machines, in the same order, with
the same outcomes, and wait no longer than the table says and the servers need.

python -m tests.soak.machines_over_time
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.testbed import ControlPlane, Options, Run
from tests.testbed.kubernetes.installation import install
from tests.testbed.kubernetes.operator_namespace import OperatorNamespace
from tests.testbed.nodes.pods import Pod
from tests.unit.operator.plan.machine_patterns import (
    A100,
    ACCELERATOR,
    CPU,
    END,
    L4,
    PATTERNS,
    START,
    T4,
    TABLE,
    WORK,
)

NAMESPACE = "machines"
# Of the seconds of the table: the longest pattern takes seven minutes.
SCALE = 1 / 15
# Seconds that servers and operator may add to the wait of one attempt: times in the API are whole seconds.
OVERHEAD = 3.0
_SPOT = {"cloud.google.com/gke-spot": "true"}
_NODES: dict[str, dict[str, Any]] = {
    A100: {"labels": _SPOT, "capacity": {"nvidia.com/gpu": "8"}},
    L4: {"labels": _SPOT, "capacity": {"nvidia.com/gpu": "8"}},
    T4: {"labels": {}, "capacity": {"nvidia.com/gpu": "4"}},
}


@dataclass
class Replay:
    """One pattern: its job, its pool of machines, and its training. Times are seconds after the start."""

    job: str
    changes: list[tuple[float, str]]
    there: set[str] = field(default_factory=set)
    trained: float = 0.0
    pod: str = ""
    trains_since: float = 0.0
    waited: float | None = None

    def stop_training(self, now: float) -> None:
        if self.pod:
            self.trained += max(0.0, now - self.trains_since)
        self.pod = ""


@dataclass(frozen=True)
class Ran:
    """The status of a job that has ended, and its seconds without training."""

    status: Mapping[str, Any]
    waited: float

    @property
    def attempts(self) -> list[str]:
        """The attempts, in the words of the table without their times."""
        return [
            f"{each['accelerator']} (machine {each.get('machine', 0)}), {each['precision']}: {each['outcome']}"
            for each in self.status["attempts"]
        ]

    @property
    def machines(self) -> list[str]:
        """The machines that came."""
        came = ("Preempted", "Succeeded")
        return [each["accelerator"] for each in self.status["attempts"] if each["outcome"] in came]


def scaled(machine: Mapping[str, Any]) -> dict[str, Any]:
    """Return the accelerator with its `tryForSeconds` in the time of this run."""
    return {**machine, "tryForSeconds": round(machine["tryForSeconds"] * SCALE)}


class MachinesOverTime:
    """All patterns on one control plane, each in a pool of nodes that only its job selects."""

    def __init__(self, servers: ControlPlane, folder: Path) -> None:
        self._servers = servers
        self.ns = OperatorNamespace(servers, servers.namespace(NAMESPACE), folder).with_kubelet(bind=False)
        self.replays = [
            Replay(f"pattern-{number}", sorted((at * SCALE, type) for type, times in found.items() for at in times))
            for number, found in enumerate(PATTERNS.values())
        ]

    def run(self, seconds: float) -> None:
        """Create the jobs, and let the machines come and go until each job has ended. Raises TimeoutError."""
        self.ns.operator()
        for each in self.replays:
            self._change(each, now=0.0)
        began = time.monotonic()
        for each in self.replays:
            self.ns.create(
                each.job,
                lambda _: Run(stop_after=END * SCALE),
                nodes=1,
                accelerator=scaled(ACCELERATOR),
                podTemplate={"nodeSelector": {"pool": each.job}},
                runPolicy={"pendingTimeoutSeconds": round(3600 * SCALE), "infrastructureRetries": 5},
            )
        while waiting := [each for each in self.replays if each.waited is None]:
            now = time.monotonic() - began
            if now > seconds:
                raise TimeoutError(f"not ended after {seconds:.0f} s: {', '.join(each.job for each in waiting)}")
            pods = {pod.labels["mptraining.dev/job"]: pod for pod in self._pods()}
            for each in waiting:
                self._change(each, now)
                self._train(each, pods.get(each.job), now)
            phases = {job["metadata"]["name"]: job.get("status", {}).get("phase") for job in self._jobs()}
            for each in waiting:
                if phases[each.job] in ("Succeeded", "Failed"):
                    each.waited = time.monotonic() - began - each.trained
            time.sleep(0.1)

    def ran(self) -> dict[str, Ran]:
        """Return by pattern where the job ran and how long it waited."""
        return {
            pattern: Ran(self.ns.status(each.job), each.waited or 0.0)
            for pattern, each in zip(PATTERNS, self.replays, strict=True)
        }

    def _jobs(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.ns.rest.get(self.ns.jobs)["items"]
        return found

    def _pods(self) -> list[Pod]:
        return [pod for pod in self._servers.pods.select(NAMESPACE) if not pod.terminating and not pod.ended]

    def _change(self, replay: Replay, now: float) -> None:
        while replay.changes and replay.changes[0][0] <= now:
            _, type = replay.changes.pop(0)
            name = f"{replay.job}-{type}"
            if type not in replay.there:
                replay.there.add(type)
                self._create(name, replay.job, type)
                continue
            replay.there.remove(type)
            # What the node's shutdown does; without the node no other pod is bound to it.
            self._servers.nodes.remove(name)
            for pod in self._pods():
                if pod.node == name:
                    replay.stop_training(now)
                    self._servers.pods.disrupted(pod, reason="EvictionByEvictionAPI")

    def _create(self, name: str, pool: str, type: str) -> None:
        if type == CPU:
            self._servers.nodes.create(name, labels={"pool": pool})
            return
        machine = _NODES[type]
        self._servers.nodes.create(
            name,
            labels={**machine["labels"], "pool": pool, "cloud.google.com/gke-accelerator": type},
            capacity=machine["capacity"],
            taints=[{"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}],
        )

    def _train(self, replay: Replay, pod: Pod | None, now: float) -> None:
        """Training begins `START` after the pod runs, and ends the pod once the job has trained for `WORK`."""
        if pod is None or pod.phase != "Running" or pod.node.removeprefix(f"{replay.job}-") not in replay.there:
            return
        if not replay.pod:
            replay.pod, replay.trains_since = pod.uid, now + START * SCALE
        elif replay.trained + now - replay.trains_since >= WORK * SCALE:
            replay.stop_training(now)
            self._servers.pods.succeeded(pod)


def complaints(found: Mapping[str, Ran], expected: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return what differs from the table."""
    said = []
    for pattern, row in expected.items():
        ran, planned = found[pattern], [each.partition(": ")[2] for each in row["attempts"]]
        if ran.attempts != planned:
            said.append(f"{pattern}: {ran.attempts}, the table has {planned}")
        for name in ("phase", "infrastructureRestarts", "applicationFailures"):
            if ran.status[name] != row[name]:
                said.append(f"{pattern}: {name} {ran.status[name]}, the table has {row[name]}")
        least = row["seconds without training"] * SCALE
        if not least - len(planned) <= ran.waited <= least + OVERHEAD * len(planned):
            said.append(f"{pattern}: {ran.waited:.1f} s without training, the table has {least:.1f} s")
    return said


def table(found: Mapping[str, Ran], expected: Mapping[str, Mapping[str, Any]]) -> str:
    lines = [
        f"One second here is {1 / SCALE:.0f} s of the table. {os.cpu_count()} processors, "
        f"load {os.getloadavg()[0]:.0f} at the end.",
        "",
        "| machines | the job ran on | attempts | seconds without training, measured | by the table |",
        "|---|---|---|---|---|",
    ]
    for pattern, ran in found.items():
        lines.append(
            f"| {pattern} | {', '.join(ran.machines) or 'none'}: {ran.status['phase']} | {len(ran.attempts)} "
            f"| {ran.waited:.1f} | {expected[pattern]['seconds without training'] * SCALE:.1f} |"
        )
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    """Return 1 after complaints."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=900, help="the patience for all patterns (default: 900)")
    options = parser.parse_args(arguments)
    expected = yaml.safe_load(TABLE.read_text(encoding="utf-8"))
    with (
        tempfile.TemporaryDirectory() as folder,
        ControlPlane(Path(folder) / "servers", Options(scheduler=True)) as servers,
    ):
        install(servers)
        (settings := Path(folder) / "operator").mkdir()
        found = MachinesOverTime(servers, settings)
        try:
            found.run(options.seconds)
            ran = found.ran()
        finally:
            found.ns.close()
    text, said = table(ran, expected), complaints(ran, expected)
    print(text, *said, sep="\n")
    return 1 if said else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
