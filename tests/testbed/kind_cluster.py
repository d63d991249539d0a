"""A real cluster with real kubelets: kind, as `make cluster images` creates it, with the operator installed.

Without it the tests are skipped with a message; in CI that is a failure.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml

from hack.cluster.engine import ROOT, Failed
from hack.cluster.installation import configure, install
from hack.cluster.kubectl import KUBECONFIG, kubectl
from tests.left_out import leave_out


class Kind:
    """kubectl, and functions that wait. `namespace` is the tests' own."""

    namespace = "kind-tests"
    kubeconfig = KUBECONFIG

    def kubectl(self, *arguments: str, text: str | None = None, check: bool = True) -> str:
        """Run kubectl; return its standard output."""
        while True:
            try:
                return kubectl(*arguments, text=text, check=check, seconds=900)
            except Failed as failed:
                # For a moment after its CustomResourceDefinition has changed.
                if "(re)initializing" not in str(failed):
                    raise
                time.sleep(1)

    def apply(self, *documents: dict[str, Any]) -> None:
        self.kubectl("apply", "-n", self.namespace, "-f", "-", text=yaml.safe_dump_all(documents))

    def job(self, name: str, **spec: Any) -> None:
        """Create an MPTrainingJob."""
        self.apply(
            {
                "apiVersion": "mptraining.dev/v1alpha1",
                "kind": "MPTrainingJob",
                "metadata": {"name": name},
                "spec": spec,
            }
        )

    def get(self, *what: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.kubectl("get", "-n", self.namespace, *what, "-o", "json"))
        return found

    def status(self, job: str) -> dict[str, Any]:
        found: dict[str, Any] = self.get("mptj", job).get("status", {})
        return found

    def until(self, job: str, holds: Callable[[dict[str, Any]], Any], *, seconds: float = 400) -> dict[str, Any]:
        """Wait until `holds` accepts the job's status and return it; fail with status and logs."""
        deadline = time.monotonic() + seconds
        while not holds(status := self.status(job)):
            if time.monotonic() > deadline:
                logs = self.logs(job)
                pytest.fail(f"{job} after {seconds:g} s: {json.dumps(status, indent=1)}\n{logs[-4000:]}")
            time.sleep(0.5)
        return status

    def finished(self, job: str, phase: str = "Succeeded", *, seconds: float = 600) -> dict[str, Any]:
        status = self.until(job, lambda status: status.get("phase") in ("Succeeded", "Failed"), seconds=seconds)
        assert status["phase"] == phase, f"{json.dumps(status, indent=1)}\n{self.logs(job)[-4000:]}"
        return status

    def logs(self, job: str, attempt: int | None = None) -> str:
        """Return the logs of all workers."""
        selector = f"mptraining.dev/job={job}" + (f",mptraining.dev/attempt={attempt}" if attempt else "")
        return self.kubectl("logs", "-n", self.namespace, "-l", selector, "--tail=-1", check=False)


@pytest.fixture(scope="session")
def kind() -> Iterator[Kind]:
    """The cluster with the operator of this checkout, which falls back to CPUs, and a new namespace for the tests."""
    cluster = Kind()
    absent = ""
    if not KUBECONFIG.exists():
        absent = "no kind cluster: run `make cluster images` (it needs root or a container engine)"
    elif not cluster.kubectl("get", "nodes", "-o", "name", "--request-timeout=5s", check=False):
        absent = f"the cluster of {KUBECONFIG.relative_to(ROOT)} does not answer: run `make cluster images`"
    if absent:
        leave_out(absent)
    cluster.kubectl("delete", "namespace", cluster.namespace, "--ignore-not-found", "--timeout=300s")
    install()
    configure({"cpuFallback": True})
    # The level that shared clusters enforce: no job may need more.
    level = {"pod-security.kubernetes.io/enforce": "restricted"}
    metadata = {"name": cluster.namespace, "labels": level}
    cluster.kubectl(
        "apply", "-f", "-", text=yaml.safe_dump({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
    )
    yield cluster
    cluster.kubectl("delete", "namespace", cluster.namespace, "--wait=false")
    configure({})
