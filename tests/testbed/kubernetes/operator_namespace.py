"""The operator as a separate process beside a real API server; `OperatorNamespace` drives it from a test.

The operator has exactly the rights of manifests/install.yaml. Most tests share one that serves one namespace; a test
that stops, kills or doubles the operator, or sets a quota, has a namespace and operators of its own (`alone`).
"""

from __future__ import annotations

import dataclasses
import itertools
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.left_out import leave_out
from tests.testbed import Behaviour, ControlPlane, Kubelet, NodeServer, Options, Run, Script
from tests.testbed.binaries import binary
from tests.testbed.kubernetes.installation import OPERATOR, SYSTEM, grant_lease, install
from tests.testbed.kubernetes.rest import MERGE, Refused
from tests.testbed.nodes.kwok import STAGES, start_kwok
from tests.testbed.nodes.pods import Pod
from tests.testbed.processes import Server

JOBS = "/apis/mptraining.dev/v1alpha1/namespaces/{}/mptrainingjobs"
SWEEPS = JOBS.replace("mptrainingjobs", "mptrainingsweeps")


def with_default(**fields: Any) -> dict[str, Any]:
    """Return runtimes of which `default` has the tests' image and `fields`."""
    return {"default": {"images": dict.fromkeys(("cpu", "gpu", "tpu"), "mptraining/trainer:test"), **fields}}


SETTINGS: dict[str, Any] = {
    "runtimes": with_default(),
    "healthPort": 0,
    "logFormat": "text",
    "graceSeconds": 1,
    "progress": {"port": 0},
    # A single leader must not lose its Lease because the machine is busy for some seconds. A test in which a second
    # replica waits for the first one's Lease to expire sets a shorter duration.
    "lease": {"durationSeconds": 60, "renewSeconds": 0.5},
}
# The longest time that a test waits for anything: on an idle machine it takes a second or two. A test of a time limit
# passes its own.
PATIENCE = 120.0
SPEC: dict[str, Any] = {
    "accelerator": {"type": "cpu"},
    "workers": 2,
    "program": {"application": {"name": "mlp", "classes": 3}},
    "data": {"train": ["/data/train-*.tfrecord"]},
    "training": {"epochs": 1, "batchSize": {"global": 64}},
}


def document(name: str, **spec: Any) -> dict[str, Any]:
    """Return an MPTrainingJob of two workers on CPUs; `spec` replaces sections of its spec."""
    sections = {key: value for key, value in {**SPEC, **spec}.items() if value is not None}
    return {
        "apiVersion": "mptraining.dev/v1alpha1",
        "kind": "MPTrainingJob",
        "metadata": {"name": name},
        "spec": sections,
    }


@dataclasses.dataclass
class Operator:
    """One replica, as a process; `name` is its identity in the Lease, `settings` its file, which it reads again."""

    server: Server
    name: str
    settings: Path

    def kill(self) -> None:
        self.server.stop(seconds=0)

    def stop(self) -> None:
        # The operator has five seconds to finish its current work; if it were killed before, it would keep its Lease.
        self.server.stop(seconds=60)

    @property
    def log(self) -> str:
        return self.server.log.read_text(encoding="utf-8", errors="replace")


class OperatorNamespace:
    """One namespace with its operators and its kubelet; creates, watches and deletes jobs by name."""

    def __init__(self, control_plane: ControlPlane, namespace: str, folder: Path, **settings: Any) -> None:
        self.control_plane = control_plane
        self.namespace = namespace
        self.rest = control_plane.rest
        self.scripts: dict[str, Script] = {}
        self._folder = folder
        self.settings = {**SETTINGS, "namespaces": [namespace], **settings}
        self.settings["lease"] = {**SETTINGS["lease"], "name": f"operator-{namespace}", **settings.get("lease", {})}
        self._numbers = itertools.count(1)
        self.operators: list[Operator] = []
        self.kubelet: Kubelet | None = None

    def with_kubelet(self, *, bind: bool = True) -> OperatorNamespace:
        """Start a kubelet that runs pods as the scripts of `create` say; without it another server is the kubelet. With
        `bind` False a scheduler assigns the nodes.
        """
        self.kubelet = self.control_plane.kubelet(self._behaviour, namespace=self.namespace, bind=bind).start()
        return self

    # -- operators ----------------------------------------------------------------------------------------------

    def operator(
        self,
        *,
        server: str | None = None,
        ready: bool = True,
        account: str = OPERATOR,
        relist: float | None = None,
        **settings: Any,
    ) -> Operator:
        """Start a replica; `server` is another address of the API server, such as a fault proxy's.

        `relist`: the seconds between two lists of the leader.
        """
        number = next(self._numbers)
        file = self._folder / f"{self.namespace}-{number}.yaml"
        chosen = {**self.settings, **settings}
        file.write_text(yaml.safe_dump(chosen))
        token = self.control_plane.token(SYSTEM, account)
        if account == OPERATOR:
            grant_lease(self.control_plane, chosen["lease"]["name"])
        kubeconfig = self.control_plane.kubeconfig(f"{self.namespace}-{number}", token, server=server)
        environment = {
            "KUBECONFIG": str(kubeconfig),
            "POD_NAME": f"{self.namespace}-{number}",
            "POD_NAMESPACE": SYSTEM,
            "POD_SERVICE_ACCOUNT": account,
        }
        command = [sys.executable, "-m", "tests.testbed.quick_operator", str(file)]
        command += [str(relist)] if relist else []
        log = self._folder / f"operator-{self.namespace}-{number}.log"
        started = Operator(Server(command, log=log, environment=environment), environment["POD_NAME"], file)
        self.operators.append(started)
        if ready:
            started.server.wait_until(lambda: "ready" in started.log, seconds=PATIENCE)
        return started

    def close(self) -> None:
        for operator in self.operators:
            operator.stop()
        if self.kubelet is not None:
            self.kubelet.stop()

    # -- jobs ---------------------------------------------------------------------------------------------------

    def create(self, name: str, script: Callable[[Pod], Behaviour] | None = None, **spec: Any) -> None:
        """Create the job; `script` returns the behaviour of the pods of all its attempts (default: keep running)."""
        if script is not None:
            self.scripts[name] = script
        try:
            self.rest.post(self.jobs, document(name, **spec))
        except Refused as refused:
            if refused.reason != "AlreadyExists":
                raise
            # The first try of a test that is run again left it behind.
            self.delete(name)
            self.rest.post(self.jobs, document(name, **spec))

    document = staticmethod(document)

    @property
    def jobs(self) -> str:
        return JOBS.format(self.namespace)

    def get(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.rest.get(f"{self.jobs}/{name}")
        return found

    def status(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.get(name).get("status", {})
        return found

    def condition(self, name: str, type: str) -> dict[str, Any]:
        """Return the condition, or an empty one."""
        return condition(self.status(name), type)

    def until(self, name: str, holds: Callable[[dict[str, Any]], Any], *, seconds: float = PATIENCE) -> dict[str, Any]:
        """Wait until `holds` accepts the job's status; return the status."""
        what = f"{name} in {self.namespace}"
        found: dict[str, Any] = eventually(lambda: self.status(name), holds, what=what, seconds=seconds)
        return found

    def phase(self, name: str, *phases: str, seconds: float = PATIENCE) -> dict[str, Any]:
        """Wait until the status is in one of these phases; return it."""
        return self.until(name, lambda status: status.get("phase") in phases, seconds=seconds)

    def running(self, name: str, attempt: int = 1, seconds: float = PATIENCE) -> dict[str, Any]:
        """Wait until all workers of that attempt run; return the status."""
        return self.until(
            name,
            lambda status: status.get("currentAttempt") == attempt and status.get("phase") == "Running",
            seconds=seconds,
        )

    def waits(self, name: str, reason: str, words: str = "") -> str:
        """Wait until the condition Running has that reason and its message contains `words`; return the message."""

        def holds(status: dict[str, Any]) -> bool:
            found = condition(status, "Running")
            return found.get("reason") == reason and words in found["message"]

        return str(condition(self.until(name, holds), "Running")["message"])

    def patch(self, name: str, change: Mapping[str, Any], subresource: str = "") -> dict[str, Any]:
        path = f"{self.jobs}/{name}" + (f"/{subresource}" if subresource else "")
        changed: dict[str, Any] = self.rest.patch(path, dict(change), kind=MERGE)
        return changed

    def delete(self, name: str) -> None:
        self.rest.delete(f"{self.jobs}/{name}")

    # -- children -----------------------------------------------------------------------------------------------

    def child(self, kind: str, name: str) -> dict[str, Any] | None:
        """Return one object of the namespace, or None: `child("batch/v1 jobs", "flowers-1")`."""
        group, plural = kind.split() if " " in kind else ("v1", kind)
        prefix = f"/apis/{group}" if "/" in group else f"/api/{group}"
        try:
            found: dict[str, Any] = self.rest.get(f"{prefix}/namespaces/{self.namespace}/{plural}/{name}")
        except Refused as refused:
            if refused.code == 404:
                return None
            raise
        return found

    def batch_jobs(self, name: str) -> list[dict[str, Any]]:
        """Return the Indexed Jobs of the job, by attempt."""
        query = {"labelSelector": f"mptraining.dev/job={name},mptraining.dev/attempt"}
        listed = self.rest.get(f"/apis/batch/v1/namespaces/{self.namespace}/jobs", query)["items"]
        return sorted(listed, key=lambda each: int(each["metadata"]["labels"]["mptraining.dev/attempt"]))

    def wait(self, look: Callable[[], Any], holds: Callable[[Any], Any], seconds: float = PATIENCE) -> Any:
        """Wait until `holds` accepts the result of `look`; return that result."""
        return eventually(look, holds, seconds=seconds)

    def released(self, name: str) -> None:
        """Wait until no Indexed Job and no pod of the job runs."""

        def alive() -> list[str]:
            pods = self.control_plane.pods.select(self.namespace, **{"mptraining.dev/job": name})
            jobs = [job for job in self.batch_jobs(name) if not job.get("status", {}).get("conditions")]
            return [*(job["metadata"]["name"] for job in jobs), *(pod.name for pod in pods if not pod.ended)]

        self.wait(alive, lambda left: not left)

    def events(self, name: str) -> list[str]:
        """Return `Reason: message` of the Kubernetes events about the job. They are written after the status: see
        `wait_for_event`.
        """
        query = {"fieldSelector": f"involvedObject.kind=MPTrainingJob,involvedObject.name={name}"}
        listed = self.rest.get(f"/api/v1/namespaces/{self.namespace}/events", query)["items"]
        return [f"{each['reason']}: {each['message']}" for each in listed]

    def wait_for_event(self, name: str, words: str) -> list[str]:
        """Wait until one of the events begins with these words; return all of them."""
        found: list[str] = self.wait(
            lambda: self.events(name), lambda events: any(event.startswith(words) for event in events)
        )
        return found

    def end(self, name: str, behaviour: Behaviour) -> None:
        """Change the behaviour of all pods of the attempt's Indexed Job `name`. A pod that ends after a fixed time may
        end before a test has seen it run.
        """
        assert self.kubelet is not None
        self.kubelet.tell_job(self.namespace, name, behaviour)

    def lease(self, name: str) -> dict[str, Any]:
        """Return the spec of the operators' Lease `name`."""
        found: dict[str, Any] = self.rest.get(f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases/{name}")["spec"]
        return found

    def _behaviour(self, pod: Pod) -> Behaviour:
        script = self.scripts.get(pod.job.rpartition("-")[0])
        return script(pod) if script else Run()


def condition(status: Mapping[str, Any], type: str) -> dict[str, Any]:
    """Return the condition of a status, or an empty one."""
    return next((dict(each) for each in status.get("conditions", ()) if each["type"] == type), {})


def eventually(
    look: Callable[[], Any], holds: Callable[[Any], Any], *, what: str = "it", seconds: float = PATIENCE
) -> Any:
    """Wait until `holds` accepts the result of `look` and return it; fail with the last result."""
    deadline = time.monotonic() + seconds
    while True:
        seen = look()
        if holds(seen):
            return seen
        assert time.monotonic() < deadline, f"{what} after {seconds:g} s: {seen}"
        time.sleep(0.05)


@pytest.fixture(scope="session")
def new_namespace(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., OperatorNamespace]:
    """Creates an `OperatorNamespace` on any control plane: `new_namespace(control_plane, "namespace", **settings)`."""

    def make(control_plane: ControlPlane, namespace: str, **settings: Any) -> OperatorNamespace:
        return OperatorNamespace(
            control_plane, control_plane.namespace(namespace), tmp_path_factory.mktemp(namespace), **settings
        )

    return make


@pytest.fixture(scope="session")
def node_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeServer]:
    """The server of logs and exec for all pods."""
    with NodeServer(tmp_path_factory.mktemp("node-server")) as started:
        yield started


@pytest.fixture(scope="session")
def installed(control_plane: ControlPlane, node_server: NodeServer) -> ControlPlane:
    """The control plane with the operator's namespace, account and rights; no node runs its Deployment."""
    install(control_plane)
    control_plane.nodes.create("cluster-node", server=node_server)
    return control_plane


@pytest.fixture(scope="session")
def shared(installed: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperatorNamespace]:
    """One operator for all tests that neither stop nor reconfigure it."""
    ns = OperatorNamespace(installed, installed.namespace("life"), tmp_path_factory.mktemp("life")).with_kubelet()
    try:
        ns.operator()
        yield ns
    finally:
        ns.close()
    for operator in ns.operators:
        assert "Traceback" not in operator.log, operator.log[-3000:]


@pytest.fixture(scope="session")
def with_scheduler(tmp_path_factory: pytest.TempPathFactory, control_plane_servers: None) -> Iterator[ControlPlane]:
    """A control plane with the real scheduler; KWOK is the kubelet of the nodes that are created with `kwok=True`."""
    if not (STAGES.is_dir() and binary("kwok").exists()):
        leave_out("no kwok in build/bin: run `make servers` (needs Go)")
    folder = tmp_path_factory.mktemp("scheduled")
    with ControlPlane(folder, Options(scheduler=True)) as started, start_kwok(started):
        install(started)
        yield started


@pytest.fixture(scope="module")
def scheduled(with_scheduler: ControlPlane) -> Iterator[ControlPlane]:
    """The same for the tests of one module, whose nodes are deleted after it.

    They share it: nodes that only some pods may use have a taint.
    """

    def nodes() -> set[str]:
        return {each["metadata"]["name"] for each in with_scheduler.rest.get("/api/v1/nodes")["items"]}

    before = nodes()
    yield with_scheduler
    for name in nodes() - before:
        with_scheduler.nodes.remove(name)


@pytest.fixture
def alone(installed: ControlPlane, namespace: str, tmp_path: Path) -> Iterator[OperatorNamespace]:
    """A namespace without an operator; the test starts its own."""
    ns = OperatorNamespace(installed, namespace, tmp_path).with_kubelet()
    try:
        yield ns
    finally:
        ns.close()


@pytest.fixture
def ns(shared: OperatorNamespace) -> Iterator[OperatorNamespace]:
    """The namespace of the shared operator; jobs of this test are deleted after it."""
    before = {each["metadata"]["name"] for each in shared.rest.get(shared.jobs)["items"]}
    yield shared
    for each in shared.rest.get(shared.jobs)["items"]:
        if each["metadata"]["name"] not in before:
            shared.delete(each["metadata"]["name"])
