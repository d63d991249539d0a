"""The kind cluster's nodes: whether they are well, and the kubeconfig that leads to them."""

from __future__ import annotations

import json
import shutil
import time
from datetime import UTC, datetime, timedelta
from typing import Any

from hack.cluster.engine import BIN, Engine, Failed, say
from hack.cluster.kubectl import KUBECONFIG, kubectl

NAME = "mptraining"
CONTROL_PLANE = f"{NAME}-control-plane"
WORKERS = (f"{NAME}-worker", f"{NAME}-worker2")
NODES = (CONTROL_PLANE, *WORKERS)
KIND = "v0.30.0"


def kind() -> str:
    """kind's program; built from its Go module where there is none of this version."""
    program = BIN / "kind"
    if not program.exists():
        if shutil.which("go") is None:
            raise Failed("Go is needed to build kind")
        say(f"building kind {KIND}")
        Engine("go", {"GOBIN": str(BIN), "CGO_ENABLED": "0"})("install", f"sigs.k8s.io/kind@{KIND}")
    return str(program)


# A new node's kube-proxy has its rules after a few seconds.
_PROXY_SECONDS = 20.0
# Every hour kube-proxy writes all of its rules again over those that are there. With the nft of Debian 12 all Services
# are lost by it (seen with Kubernetes 1.34.4 and nft 1.0.6), unless the rules are taken away before.
_PROXY = ("-n", "kube-system", "-l", "k8s-app=kube-proxy")
_RENEWED_AFTER = timedelta(minutes=10)


def export_kubeconfig(engine: Engine) -> None:
    """To the checkout, never to the home folder."""
    KUBECONFIG.parent.mkdir(parents=True, exist_ok=True)
    KUBECONFIG.unlink(missing_ok=True)
    engine.run(kind(), "export", "kubeconfig", "--name", NAME, "--kubeconfig", str(KUBECONFIG))
    KUBECONFIG.chmod(0o600)


def obtain_kubectl(engine: Engine) -> None:
    """Where there is none on PATH, the one that the nodes carry is copied to build/bin."""
    program = BIN / "kubectl"
    if shutil.which("kubectl") or program.exists():
        return
    say("no kubectl on PATH: the nodes' own goes to build/bin")
    inside = engine("exec", CONTROL_PLANE, "readlink", "-f", "/usr/bin/kubectl").strip()
    BIN.mkdir(parents=True, exist_ok=True)
    engine("cp", f"{CONTROL_PLANE}:{inside}", str(program))
    program.chmod(0o755)


def why_not_well(engine: Engine) -> str | None:
    """What is wrong with a cluster that exists, or None. Writes the kubeconfig to ask the API server."""
    for node in NODES:
        state = engine.asked("container", "inspect", "--format", "{{.State.Status}}", node)
        if state != "running":
            return f"{node} is {state or 'missing'}"
    try:
        export_kubeconfig(engine)
        obtain_kubectl(engine)
        ready = _ready()
    except (Failed, json.JSONDecodeError) as failed:
        return f"its API server does not answer ({failed})"
    away = sorted(set(NODES) - ready)
    if away:
        return f"{', '.join(away)} not Ready"
    try:
        _renew_services(engine)
    except Failed as failed:
        return f"kube-proxy does not restart ({failed})"
    deaf = _deaf(engine)
    return f"Services do not answer on {deaf}" if deaf else None


def _renew_services(engine: Engine) -> None:
    """Starts kube-proxy on clean ground, for the hour that comes; Services are away for a few seconds."""
    began = [datetime.fromisoformat(pod["status"]["startTime"]) for pod in _asked("pods", *_PROXY)["items"]]
    table = ("table", "ip", "kube-proxy")
    used = engine.asked("exec", CONTROL_PLANE, "nft", "list", *table)
    if not used or not began or datetime.now(UTC) - min(began) < _RENEWED_AFTER:
        return
    say("kube-proxy restarts with this setting, or it would lose all Services after an hour")
    for node in NODES:
        engine.asked("exec", node, "nft", "delete", *table)
    kubectl("delete", "pods", *_PROXY)
    kubectl("rollout", "status", "daemonset/kube-proxy", "-n", "kube-system", "--timeout=120s")


def _deaf(engine: Engine) -> str | None:
    """The first node from which the API server's Service does not answer: Ready says nothing of kube-proxy, whose
    rules take a moment on a new node.
    """
    address = _asked("service", "kubernetes")["spec"]["clusterIP"]
    call = ["curl", "--silent", "--insecure", "--noproxy", "*", "--max-time", "3", f"https://{address}/livez"]
    patience = time.monotonic() + _PROXY_SECONDS
    for node in NODES:
        while engine.asked("exec", node, *call) != "ok":
            if time.monotonic() > patience:
                return node
            time.sleep(0.5)
    return None


def _ready() -> set[str]:
    return {
        node["metadata"]["name"]
        for node in _asked("nodes")["items"]
        if ("Ready", "True") in {(condition["type"], condition["status"]) for condition in node["status"]["conditions"]}
    }


def _asked(*what: str) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(kubectl("get", *what, "-o", "json", "--request-timeout=5s", seconds=20))
    return answer
