"""The operator on nodes without free processor time: the longest time without a leader, and until a new job's child.

python -m tests.soak.starved_nodes --seconds 600

Requires `make cluster images`. A pod on each node of the kind cluster, the control plane included, keeps processes
busy. Time without a leader: from one renewal of the Lease to the next, by the times in it; the nodes share one clock.
The exit code is 1 if the goal is not met.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from hack.cluster.images import VERSION
from hack.cluster.installation import OPERATOR, SYSTEM, configure, install
from hack.cluster.kubectl import kubectl
from hack.cluster.nodes import NODES
from tests.soak.chaos.calls import insisted, listed
from tests.soak.chaos.jobs import Stub
from tests.soak.chaos.kind_cluster import admin
from tests.testbed.kubernetes.rest import Rest, Watch

GOAL_SECONDS = 30.0
NAMESPACE = "starved"
_BUSY = "import os\nfor _ in range({}):\n    if not os.fork():\n        while True: pass\nos.wait()"
_LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases"
_PODS = f"/api/v1/namespaces/{SYSTEM}/pods"
_JOBS = f"/apis/mptraining.dev/v1alpha1/namespaces/{NAMESPACE}/mptrainingjobs"
_CHILDREN = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs"
_JOB_EVERY_SECONDS = 20.0
# Pods that started would take processor time from the replicas.
_NOWHERE = {"kubernetes.io/hostname": "none"}


@dataclass(frozen=True)
class Seen:
    """`renewals` of the Lease: time in seconds since 1970, and holder. `children`: seconds from a job to its Indexed
    Job, by the API server's clock in whole seconds; `childless` jobs have none at the end.
    """

    renewals: Sequence[tuple[float, str]]
    children: Sequence[float]
    childless: int
    restarts: int
    load: str

    @property
    def longest(self) -> float:
        """Return the longest time between two renewals, in seconds."""
        return max((after - before for (before, _), (after, _) in pairwise(self.renewals)), default=float("inf"))

    @property
    def leaders(self) -> int:
        """Return how often the holder changed."""
        return sum(one != other for (_, one), (_, other) in pairwise(self.renewals))


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.soak.starved_nodes", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--seconds", type=float, default=600.0, help="how long (600)")
    parser.add_argument("--busy", type=int, default=15, help="busy processes on each node (15)")
    given = parser.parse_args(arguments)
    kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found", "--timeout=120s")
    install()
    configure({"cpuFallback": True, "namespaces": [NAMESPACE]})
    kubectl("create", "namespace", NAMESPACE)
    try:
        rest = admin(NAMESPACE)
        kubectl("apply", "-f", "-", text=yaml.safe_dump(busy_pods(given.busy)))
        kubectl("rollout", "status", "daemonset/busy", "-n", NAMESPACE, "--timeout=300s", seconds=330)
        seen = watched(rest, given.seconds)
    finally:
        kubectl("delete", "daemonset", "busy", "-n", NAMESPACE, "--ignore-not-found", check=False)
        kubectl("delete", "namespace", NAMESPACE, "--wait=false", check=False)
        kubectl("delete", "clusterrolebinding", f"{NAMESPACE}-admin", "--ignore-not-found", check=False)
        configure({"cpuFallback": True})
    print(table(seen, seconds=given.seconds, busy=given.busy), flush=True)
    return int(seen.longest > GOAL_SECONDS or seen.childless > 0)


def busy_pods(processes: int) -> dict[str, Any]:
    """Return a DaemonSet that keeps that many processes busy on each node. It requests nothing."""
    container = {
        "name": "busy",
        "image": f"mptraining/operator:{VERSION}",
        "command": ["python", "-c", _BUSY.format(processes)],
    }
    pod = {"tolerations": [{"operator": "Exists"}], "terminationGracePeriodSeconds": 0, "containers": [container]}
    labels = {"app": "busy"}
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "busy", "namespace": NAMESPACE},
        "spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": pod}},
    }


def watched(rest: Rest, seconds: float) -> Seen:
    """Create a job every 20 s and return what was seen; no job is created in the last minute."""
    renewals: list[tuple[float, str]] = []

    def renewed(kind: str, lease: Any) -> None:
        if kind != "DELETED" and lease["spec"].get("renewTime"):
            at = datetime.fromisoformat(lease["spec"]["renewTime"]).timestamp()
            renewals.append((at, lease["spec"].get("holderIdentity") or ""))

    began = time.monotonic()
    watch = Watch(rest, _LEASES, renewed, {"fieldSelector": f"metadata.name={OPERATOR}"}).start()
    try:
        for number in range(max(1, int((seconds - 60) / _JOB_EVERY_SECONDS))):
            time.sleep(max(0.0, began + number * _JOB_EVERY_SECONDS - time.monotonic()))
            insisted(partial(rest.post, _JOBS, Stub(f"job-{number}", "succeeds", 1.0).document(nodeSelector=_NOWHERE)))
        time.sleep(max(0.0, began + seconds - time.monotonic()))
        # A leader that has stopped to renew counts until now; this machine's clock is the nodes'.
        renewals.append((time.time(), renewals[-1][1] if renewals else ""))
        load = Path("/proc/loadavg").read_text(encoding="utf-8").split()[1]
    finally:
        watch.stop()
    jobs = {each["metadata"]["uid"]: _created(each) for each in listed(partial(rest.get, _JOBS))}
    children = {
        each["metadata"]["ownerReferences"][0]["uid"]: _created(each) for each in listed(partial(rest.get, _CHILDREN))
    }
    statuses = [each["status"].get("containerStatuses", ()) for each in listed(partial(rest.get, _PODS))]
    return Seen(
        renewals=sorted(renewals),
        children=[children[uid] - at for uid, at in jobs.items() if uid in children],
        childless=len(jobs.keys() - children.keys()),
        restarts=sum(container["restartCount"] for each in statuses for container in each),
        load=load,
    )


def _created(found: Any) -> float:
    return datetime.fromisoformat(found["metadata"]["creationTimestamp"]).timestamp()


def table(seen: Seen, *, seconds: float, busy: int) -> str:
    lines = [
        f"kind with {len(NODES)} nodes on one machine, {busy} busy processes on each node, load {seen.load}, "
        f"{seconds:.0f} s.",
        "",
        "| | |",
        "|---|---|",
        f"| longest time between two renewals of the Lease, goal {GOAL_SECONDS:.0f} s | {seen.longest:.1f} s |",
        f"| renewals | {len(seen.renewals) - 1} |",
        f"| changes of the leader | {seen.leaders} |",
        f"| restarts of the operator's containers | {seen.restarts} |",
        f"| jobs created | {len(seen.children) + seen.childless} |",
        f"| longest time from a job to its Indexed Job | {max(seen.children, default=0):.0f} s |",
        f"| jobs without one at the end | {seen.childless} |",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
