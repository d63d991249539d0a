"""A real Kubernetes control plane without a node: etcd, API server, controller manager, and on demand the scheduler."""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import urllib3
import yaml

from tests.testbed.binaries import binary
from tests.testbed.credentials import (
    ADMIN_TOKEN,
    create_server_keys,
    create_service_account_key,
    write_kubeconfig,
    write_tokens,
)
from tests.testbed.faults.proxy import FaultProxy
from tests.testbed.kubernetes import audit
from tests.testbed.kubernetes.access import apply_crd, created, may, wait_until_allowed
from tests.testbed.kubernetes.rest import Refused, Rest
from tests.testbed.nodes.behaviours import Script, keep_running
from tests.testbed.nodes.kubelet import Kubelet
from tests.testbed.nodes.nodes import Nodes
from tests.testbed.nodes.pods import Pods
from tests.testbed.processes import NotStarted, Server, free_ports

_CHART_FILES = Path(__file__).resolve().parents[3] / "charts" / "mptraining" / "files"
CRDS = (_CHART_FILES / "crd.yaml", _CHART_FILES / "crd-sweeps.yaml")

PolicyRule = Mapping[str, Sequence[str]]
_RBAC = "/apis/rbac.authorization.k8s.io/v1"
_MANAGER_TOKEN = "testbed-controller-manager"
_SCHEDULER_TOKEN = "testbed-scheduler"
_COMPONENTS = {
    _MANAGER_TOKEN: ("system:kube-controller-manager", "system:masters"),
    _SCHEDULER_TOKEN: ("system:kube-scheduler", "system:masters"),
}
# The admission plugins and controllers that jobs, quotas and garbage collection need. Without a kubelet's heartbeat the
# node controllers would mark every node as lost; a test of them adds "node-lifecycle-controller" and
# "taint-eviction-controller".
CONTROLLERS = (
    *(
        "job-controller",
        "ttl-after-finished-controller",
        "garbage-collector-controller",
        "pod-garbage-collector-controller",
    ),
    *("namespace-controller", "resourcequota-controller", "endpointslice-controller"),
    *("serviceaccount-controller", "root-ca-certificate-publisher-controller", "clusterrole-aggregation-controller"),
)


@dataclass(frozen=True)
class Options:
    """Options of the servers. `client_qps` limits the controllers' calls a second, by Kubernetes' default to 20."""

    controller_manager: bool = True
    scheduler: bool = False
    controllers: Sequence[str] = CONTROLLERS
    client_qps: int = 500
    concurrent_syncs: int = 10
    audit: bool = False
    crd: bool = True


class ControlPlane:
    """Starts with `start()` or `with`, in about five seconds; all of its files are below `folder`."""

    def __init__(self, folder: Path, options: Options = Options()) -> None:
        self.folder = folder
        self.options = options
        self.logs = folder / "logs"
        self._keys = create_server_keys(folder / "keys", "kubernetes.default.svc")
        self._account_key = create_service_account_key(folder / "keys" / "service-accounts.key")
        self._tokens = write_tokens(folder / "keys" / "tokens.csv", _COMPONENTS)
        self._etcd_port, self._peer_port, self._port, *self._others = free_ports(5)
        self.server = f"https://127.0.0.1:{self._port}"
        self.admin_kubeconfig = self.kubeconfig("admin", ADMIN_TOKEN)
        self.rest = self.rest_client(ADMIN_TOKEN)
        self.pods = Pods(self.rest)
        self.nodes = Nodes(self.rest)
        self._running = ExitStack()
        self._servers: dict[str, Server] = {}

    # -- life ---------------------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Start all servers and establish the CRDs. Raises NotStarted with the end of the server's log."""
        try:
            self._start_etcd()
            self._start_api_server()
            if self.options.controller_manager:
                self._start_controller_manager()
            if self.options.scheduler:
                self._start_scheduler()
            if self.options.crd:
                for file in CRDS:
                    self.apply_crd(file)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Stop the servers, last first. Their files remain."""
        self._running.close()
        self.rest.close()

    def process(self, name: str) -> Server:
        """Return the running server `etcd`, `kube-apiserver`, `kube-controller-manager` or `kube-scheduler`."""
        return self._servers[name]

    def stop_api_server(self) -> None:
        """Begin an outage: connections are closed, new ones refused, until `start_api_server`."""
        self._servers["kube-apiserver"].stop(seconds=0)

    def start_api_server(self) -> None:
        """End the outage: the same port, the same data."""
        self._start_api_server()

    def kubeconfig(self, name: str, token: str, *, server: str | None = None, namespace: str = "default") -> Path:
        """Write a kubeconfig for `token`; `server` names another than the API server's own, such as a fault proxy."""
        return write_kubeconfig(
            self.folder / f"{name}.kubeconfig",
            server=server or self.server,
            token=token,
            authority=self._keys.authority,
            namespace=namespace,
        )

    def rest_client(self, token: str, *, agent: str = "testbed", server: str | None = None) -> Rest:
        """Return a raw client that is `token`'s owner; `server` as in `kubeconfig`."""
        return Rest(server or self.server, token=token, authority=self._keys.authority, agent=agent)

    def client(self, kubeconfig: Path | None = None) -> Any:
        """Return the official client's `kubernetes.client.ApiClient`, as admin without `kubeconfig`."""
        from kubernetes import config

        return config.new_client_from_config(str(kubeconfig or self.admin_kubeconfig))

    def kubectl(
        self, *arguments: str, text: str | None = None, check: bool = True, kubeconfig: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run the real kubectl; `text` is its standard input. With `check` a failure raises RuntimeError."""
        done = subprocess.run(
            [binary("kubectl"), f"--kubeconfig={kubeconfig or self.admin_kubeconfig}", *arguments],
            input=text,
            capture_output=True,
            text=True,
            check=False,
            timeout=180,
        )
        if check and done.returncode:
            raise RuntimeError(f"kubectl {' '.join(arguments)}: {done.stderr}")
        return done

    def service_account(
        self, namespace: str, name: str, *, rules: Sequence[PolicyRule] = (), cluster_wide: bool = False
    ) -> str:
        """Create a service account with `rules` (of a Role, or of the ClusterRole NAMESPACE-NAME); return a token."""
        created(self.rest, f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": name}})
        scope, kind = (_RBAC, "ClusterRole") if cluster_wide else (f"{_RBAC}/namespaces/{namespace}", "Role")
        metadata = {"name": f"{namespace}-{name}" if cluster_wide else name}
        given = [{key: list(value) for key, value in rule.items()} for rule in rules]
        created(self.rest, f"{scope}/{kind.lower()}s", {"metadata": metadata, "rules": given})
        reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, **metadata}
        subject = {"kind": "ServiceAccount", "namespace": namespace, "name": name}
        body = {"metadata": metadata, "roleRef": reference, "subjects": [subject]}
        created(self.rest, f"{scope}/{kind.lower()}bindings", body)
        # The API server's caches of roles and bindings are updated a moment after they were created.
        for rule in rules:
            resource, _, subresource = rule["resources"][-1].partition("/")
            user, where = f"system:serviceaccount:{namespace}:{name}", None if cluster_wide else namespace
            only = next(iter(rule.get("resourceNames", ())), None)
            asked = may(user, rule["verbs"][-1], rule["apiGroups"][-1], resource, where, only, subresource)
            wait_until_allowed(self.rest, asked)
        return self.token(namespace, name)

    def token(
        self,
        namespace: str,
        service_account: str,
        *,
        audiences: Sequence[str] = (),
        seconds: int = 3600,
        pod: tuple[str, str] | None = None,
    ) -> str:
        """Return a token as the kubelet projects it, for the API server itself without `audiences`; `pod` is the name
        and uid that it is bound to.
        """
        spec: dict[str, Any] = {"audiences": list(audiences), "expirationSeconds": seconds}
        if pod:
            spec["boundObjectRef"] = {"apiVersion": "v1", "kind": "Pod", "name": pod[0], "uid": pod[1]}
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{service_account}/token"
        return str(self.rest.post(path, {"spec": spec})["status"]["token"])

    def namespace(self, name: str, *, labels: dict[str, str] | None = None) -> str:
        """Create a namespace in which pods can be created at once; `labels` for pod security levels."""
        self.rest.post("/api/v1/namespaces", {"metadata": {"name": name, "labels": labels or {}}})
        # Without it no pod is admitted.
        created(self.rest, f"/api/v1/namespaces/{name}/serviceaccounts", {"metadata": {"name": "default"}})
        return name

    def apply_crd(self, path: Path) -> None:
        """Apply a CustomResourceDefinition's file and wait until the API server serves it."""
        apply_crd(self.rest, yaml.safe_load(path.read_text(encoding="utf-8")))

    def kubelet(self, script: Script = keep_running, *, bind: bool = True, namespace: str | None = None) -> Kubelet:
        """Return a kubelet to start with `with`, whose pods behave as `script` returns."""
        return Kubelet(self.rest, script, bind=bind, namespace=namespace)

    def fault_proxy(self) -> FaultProxy:
        """Return a proxy to start with `with`; give clients a `kubeconfig` with its `url` as server."""
        keys = self._keys
        return FaultProxy(self.server, authority=keys.authority, certificate=keys.certificate, key=keys.key)

    def stored(self, prefix: str) -> list[dict[str, Any]]:
        """Return the objects below `prefix` as etcd stores them; only of custom resources, which it stores as JSON."""
        first = f"/registry/{prefix}/".encode()
        asked = {"key": first, "range_end": first[:-1] + bytes([first[-1] + 1])}
        body = json.dumps({name: base64.b64encode(value).decode() for name, value in asked.items()})
        url = f"http://127.0.0.1:{self._etcd_port}/v3/kv/range"
        answer = urllib3.request("POST", url, body=body, headers={"Content-Type": "application/json"}, timeout=60)
        return [json.loads(base64.b64decode(each["value"])) for each in answer.json().get("kvs", ())]

    def requests(self) -> list[audit.Request]:
        """Return all requests so far, in the order of their ends; only with `Options(audit=True)`."""
        return list(audit.read(self.folder / "audit.log"))

    # -- servers ------------------------------------------------------------------------------------------------

    def _start_etcd(self) -> None:
        client, peer = (f"http://127.0.0.1:{port}" for port in (self._etcd_port, self._peer_port))
        # The API server's readiness includes etcd's.
        self._run(
            "etcd",
            *(f"--data-dir={self.folder / 'etcd'}", "--log-level=warn", "--unsafe-no-fsync"),
            *(f"--listen-client-urls={client}", f"--advertise-client-urls={client}"),
            *(f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}"),
            f"--initial-cluster=default={peer}",
            "--quota-backend-bytes=8589934592",
        )

    def _start_api_server(self) -> None:
        keys, options = self._keys, self.options
        extra = audit.flags(self.folder) if options.audit else []
        server = self._run(
            "kube-apiserver",
            *(f"--etcd-servers=http://127.0.0.1:{self._etcd_port}", "--bind-address=127.0.0.1"),
            *(f"--secure-port={self._port}", "--service-cluster-ip-range=10.96.0.0/16", "--allow-privileged"),
            *(f"--tls-cert-file={keys.certificate}", f"--tls-private-key-file={keys.key}"),
            *("--authorization-mode=RBAC", f"--token-auth-file={self._tokens}"),
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={self._account_key}",
            f"--service-account-signing-key-file={self._account_key}",
            "--shutdown-delay-duration=0s",
            *extra,
        )
        server.wait_until(self._ready, seconds=180)

    def _ready(self) -> bool:
        try:
            return bool(self.rest.get("/readyz") == "ok")
        except Refused:
            return False

    def _start_controller_manager(self) -> None:
        options, port = self.options, self._others[0]
        self._run(
            "kube-controller-manager",
            f"--kubeconfig={self.kubeconfig('controller-manager', _MANAGER_TOKEN)}",
            *("--leader-elect=false", "--bind-address=127.0.0.1", f"--secure-port={port}"),
            f"--controllers={','.join(options.controllers)}",
            f"--root-ca-file={self._keys.authority}",
            *(f"--kube-api-qps={options.client_qps}", f"--kube-api-burst={2 * options.client_qps}"),
            f"--concurrent-job-syncs={options.concurrent_syncs}",
            f"--concurrent-gc-syncs={2 * options.concurrent_syncs}",
            f"--cert-dir={self.folder / 'keys'}",
        )
        # Its own readiness check is too early; a namespace's service account shows that controllers run.
        self._wait_for_controllers()

    def _wait_for_controllers(self) -> None:
        def published() -> bool:
            try:
                self.rest.get("/api/v1/namespaces/default/serviceaccounts/default")
            except Refused:
                return False
            return True

        self.process("kube-controller-manager").wait_until(published, seconds=180)

    def _start_scheduler(self) -> None:
        options, port = self.options, self._others[1]
        configuration = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "clientConnection": {
                "kubeconfig": str(self.kubeconfig("scheduler", _SCHEDULER_TOKEN)),
                "qps": options.client_qps,
                "burst": 2 * options.client_qps,
            },
            "leaderElection": {"leaderElect": False},
        }
        file = self.folder / "scheduler.yaml"
        file.write_text(yaml.safe_dump(configuration), encoding="utf-8")
        self._run(
            "kube-scheduler",
            *(f"--config={file}", "--bind-address=127.0.0.1", f"--secure-port={port}"),
            f"--cert-dir={self.folder / 'keys'}",
        )

    def _run(self, name: str, *arguments: str) -> Server:
        program = binary(name)
        if not program.exists():
            raise NotStarted(f"no {name} in build/bin: run `make servers`")
        server = Server([program, *arguments], log=self.logs / f"{name}.log")
        # No process outlives the test: a second for a clean end, since the API server would wait for watches to end.
        self._running.callback(server.stop, seconds=1)
        self._servers[name] = server
        return server

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
