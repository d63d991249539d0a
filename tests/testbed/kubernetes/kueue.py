"""The real Kueue as a process beside a control plane: its chart's CRDs, roles and webhooks, its own certificates.

    with ControlPlane(folder) as control_plane, Kueue(control_plane) as kueue:
        kueue.queue("team-a", "gpus", {"cpu": 4})

`make build/kueue/kueue` builds it from its Go module. The API server reaches the webhooks by a Service of type
ExternalName, which its resolver accepts; the certificates come from Kueue's Secret, as a kubelet would mount them.
"""

from __future__ import annotations

import base64
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import yaml

from mptraining_api.status import format_time
from tests.testbed.binaries import FOLDER, binary
from tests.testbed.kubernetes.access import apply_crd
from tests.testbed.kubernetes.control_plane import ControlPlane
from tests.testbed.kubernetes.operator_namespace import condition
from tests.testbed.kubernetes.rest import APPLY, Object, Refused
from tests.testbed.processes import Server, free_ports

BUILT = FOLDER.parent / "kueue"
SYSTEM = "kueue-system"
GROUP = "kueue.x-k8s.io"
API = f"/apis/{GROUP}/v1beta2"
_PATHS = {
    "Service": f"/api/v1/namespaces/{SYSTEM}/services",
    "Secret": f"/api/v1/namespaces/{SYSTEM}/secrets",
    "MutatingWebhookConfiguration": "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations",
    "ValidatingWebhookConfiguration": "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations",
}
# Of the kinds that tests create; the webhooks of other frameworks would only slow the API server down.
_WEBHOOKS = ("job", "workload", "clusterqueue", "resourceflavor", "cohort", "localqueue")


class Kueue:
    """Starts with `with`, in about ten seconds."""

    def __init__(self, control_plane: ControlPlane) -> None:
        self.control_plane = control_plane
        self.rest = control_plane.rest
        self._folder = control_plane.folder / "kueue"
        self._webhook, self._health = free_ports(2)

    def __enter__(self) -> Self:
        """Install the chart and start the controller. Raises NotStarted with the end of its log."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self.control_plane.namespace(SYSTEM)
        for document in self._documents():
            if document["kind"] == "CustomResourceDefinition":
                # Its conversion webhook is not running yet; without its authority the API server refuses none.
                apply_crd(self.rest, document)
            else:
                name = document["metadata"]["name"]
                path = _PATHS[document["kind"]]
                self.rest.patch(f"{path}/{name}", document, kind=APPLY, query={"fieldManager": "testbed"})
        self._run()
        return self

    def _run(self) -> None:
        file = self._folder / "configuration.yaml"
        certificates = self._folder / "certificates"
        certificates.mkdir(exist_ok=True)
        settings = {
            "apiVersion": "config.kueue.x-k8s.io/v1beta2",
            "kind": "Configuration",
            "namespace": SYSTEM,
            "health": {"healthProbeBindAddress": f"127.0.0.1:{self._health}"},
            "metrics": {"bindAddress": "0"},
            "webhook": {"port": self._webhook, "host": "127.0.0.1", "certDir": str(certificates)},
            "leaderElection": {"leaderElect": False},
            "clientConnection": {"qps": 300, "burst": 500},
            "internalCertManagement": {
                "enable": True,
                "webhookServiceName": "kueue-webhook-service",
                "webhookSecretName": "kueue-webhook-server-cert",
            },
            "integrations": {"frameworks": ["batch/job"]},
            # MultiKueue watches files, and a machine has few inotify instances.
            "featureGates": {"VisibilityOnDemand": False, "MultiKueue": False},
        }
        file.write_text(yaml.safe_dump(settings), encoding="utf-8")
        environment = {"KUBECONFIG": str(self.control_plane.admin_kubeconfig), "POD_NAMESPACE": SYSTEM}
        log = self.control_plane.logs / "kueue.log"
        self._server = Server(
            [BUILT / "kueue", f"--config={file}", "--zap-log-level=2"], log=log, environment=environment
        )
        self._server.wait_until(lambda: self._mount(certificates) and self._ready(), seconds=180)

    def _mount(self, folder: Path) -> bool:
        """Write the certificates of Kueue's Secret to its folder; return whether it has them."""
        if (folder / "tls.crt").exists():
            return True
        data = self.rest.get(f"/api/v1/namespaces/{SYSTEM}/secrets/kueue-webhook-server-cert").get("data") or {}
        for name in ("ca.crt", "tls.key", "tls.crt"):
            if name in data:
                (folder / name).write_bytes(base64.b64decode(data[name]))
        return bool(data)

    def _ready(self) -> bool:
        """Return whether its webhooks answer: a ResourceFlavor is created by way of two of them."""
        try:
            self.rest.post(f"{API}/resourceflavors", _object("ResourceFlavor", "ready", {}))
        except Refused as refused:
            return refused.code == 409
        return True

    def restart(self) -> None:
        """Kill the controller and start it again."""
        self._server.stop(seconds=0)
        self._run()

    def _documents(self) -> Iterable[Object]:
        """Return the chart's objects, with this process in the place of its Deployment."""
        done = subprocess.run(
            [binary("helm"), "template", "kueue", BUILT / "chart", f"--namespace={SYSTEM}"],
            capture_output=True,
            text=True,
            check=True,
        )
        for document in yaml.load_all(done.stdout, Loader=yaml.CSafeLoader):
            # Its account is the administrator's, so that its roles are not needed.
            if not document or document["kind"] not in ("CustomResourceDefinition", *_PATHS):
                continue
            kind, name = document["kind"], document["metadata"]["name"]
            if kind == "Service":
                if "webhook" not in name:
                    continue
                document["spec"] = {"type": "ExternalName", "externalName": "localhost"}
            for webhook in document.get("webhooks", ()):
                webhook["clientConfig"]["service"]["port"] = self._webhook
            if "webhooks" in document:
                document["webhooks"] = [
                    each for each in document["webhooks"] if each["name"][1:].removesuffix(".kb.io") in _WEBHOOKS
                ]
            conversion = document.get("spec", {}).get("conversion", {}) if "Definition" in kind else {}
            if conversion.get("strategy") == "Webhook":
                conversion["webhook"]["clientConfig"]["service"]["port"] = self._webhook
            yield document

    def __exit__(self, *_: object) -> None:
        self._server.stop(seconds=1)

    # -- queues -------------------------------------------------------------------------------------------------

    def flavor(self, name: str, labels: Mapping[str, str]) -> None:
        """Create a ResourceFlavor: the nodes with these labels."""
        self.rest.post(f"{API}/resourceflavors", _object("ResourceFlavor", name, {"nodeLabels": dict(labels)}))

    def queue(
        self,
        namespace: str,
        name: str,
        quota: Mapping[str, Any],
        *,
        flavors: Sequence[str],
        checks: Sequence[str] = (),
        **spec: Any,
    ) -> None:
        """Create a ClusterQueue with this quota for each flavor, and the LocalQueue of the same name for it."""
        resources = [{"name": each, "nominalQuota": value} for each, value in quota.items()]
        groups = [
            {
                "coveredResources": list(quota),
                "flavors": [{"name": flavor, "resources": resources} for flavor in flavors],
            }
        ]
        body: Object = {"namespaceSelector": {}, "resourceGroups": groups, **spec}
        if checks:
            body["admissionChecksStrategy"] = {"admissionChecks": [{"name": check} for check in checks]}
        self.rest.post(f"{API}/clusterqueues", _object("ClusterQueue", name, body))
        local = _object("LocalQueue", name, {"clusterQueue": name})
        self.rest.post(f"{API}/namespaces/{namespace}/localqueues", local)

    def set_quota(self, name: str, flavor: str, quota: Mapping[str, Any]) -> None:
        """Change the quota of one flavor of the ClusterQueue."""
        groups = self.rest.get(f"{API}/clusterqueues/{name}")["spec"]["resourceGroups"]
        for each in (each for group in groups for each in group["flavors"] if each["name"] == flavor):
            each["resources"] = [{"name": name, "nominalQuota": value} for name, value in quota.items()]
        self.rest.patch(f"{API}/clusterqueues/{name}", {"spec": {"resourceGroups": groups}})

    def check(self, name: str) -> None:
        """Create an AdmissionCheck, active, whose controller is the test."""
        self.rest.post(f"{API}/admissionchecks", _object("AdmissionCheck", name, {"controllerName": "tests/check"}))
        active = {"type": "Active", "status": "True", "reason": "Active", "message": "", "lastTransitionTime": _now()}
        self.rest.patch(f"{API}/admissionchecks/{name}/status", {"status": {"conditions": [active]}})

    def decide(self, namespace: str, workload: str, check: str, state: str, **updates: Any) -> None:
        """Write the state of a check of a Workload; `updates` are those of its pod set."""
        found: Object = {"name": check, "state": state, "message": "", "lastTransitionTime": _now()}
        found["podSetUpdates"] = [{"name": "main", **updates}]
        path = f"{API}/namespaces/{namespace}/workloads/{workload}/status"
        self.rest.patch(path, {"status": {"admissionChecks": [found]}})

    def priority(self, name: str, value: int) -> None:
        """Create a WorkloadPriorityClass."""
        body = {**_object("WorkloadPriorityClass", name, {}), "value": value}
        del body["spec"]
        self.rest.post(f"{API}/workloadpriorityclasses", body)

    def workloads(self, namespace: str) -> list[Object]:
        """Return the namespace's Workloads, oldest first."""
        listed = self.rest.get(f"{API}/namespaces/{namespace}/workloads")["items"]
        return sorted(listed, key=lambda each: (each["metadata"]["creationTimestamp"], each["metadata"]["name"]))

    def set_active(self, namespace: str, workload: str, active: bool) -> None:
        """Deactivate a Workload, by which Kueue evicts it, or activate it again."""
        self.rest.patch(f"{API}/namespaces/{namespace}/workloads/{workload}", {"spec": {"active": active}})


def holds(workload: Object, type: str) -> bool:
    """Return whether the condition of a Workload is true."""
    return bool(condition(workload.get("status", {}), type).get("status") == "True")


def _now() -> str:
    return format_time(time.time())


def _object(kind: str, name: str, spec: Object) -> Object:
    return {"apiVersion": f"{GROUP}/v1beta2", "kind": kind, "metadata": {"name": name}, "spec": spec}
