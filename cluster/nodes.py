"""The kind cluster's nodes: whether they are well, and the kubeconfig that leads to them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

from cluster.engine import BIN, ROOT, Engine, Failed, say

NAME = "mptraining"
CONTROL_PLANE = f"{NAME}-control-plane"
WORKERS = (f"{NAME}-worker", f"{NAME}-worker2")
NODES = (CONTROL_PLANE, *WORKERS)
KUBECONFIG = ROOT / "build" / "cluster" / "kubeconfig"
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


def export_kubeconfig(engine: Engine) -> None:
    """To the checkout, never to the home folder."""
    KUBECONFIG.parent.mkdir(parents=True, exist_ok=True)
    KUBECONFIG.unlink(missing_ok=True)
    engine.run(kind(), "export", "kubeconfig", "--name", NAME, "--kubeconfig", str(KUBECONFIG))
    KUBECONFIG.chmod(0o600)


def kubectl(engine: Engine) -> str:
    """kubectl from PATH, or the one that the nodes carry, copied to build/bin."""
    found = shutil.which("kubectl")
    if found:
        return found
    program = BIN / "kubectl"
    if not program.exists():
        say("no kubectl on PATH: the nodes' own goes to build/bin")
        inside = engine("exec", CONTROL_PLANE, "readlink", "-f", "/usr/bin/kubectl").strip()
        BIN.mkdir(parents=True, exist_ok=True)
        engine("cp", f"{CONTROL_PLANE}:{inside}", str(program))
        program.chmod(0o755)
    return str(program)


def why_not_well(engine: Engine) -> str | None:
    """What is wrong with a cluster that exists, or None. Writes the kubeconfig to ask the API server."""
    for node in NODES:
        state = engine.asked("container", "inspect", "--format", "{{.State.Status}}", node)
        if state != "running":
            return f"{node} is {state or 'missing'}"
    try:
        export_kubeconfig(engine)
        ready = _ready(engine)
    except (Failed, subprocess.CalledProcessError, subprocess.TimeoutExpired, json.JSONDecodeError) as failed:
        return f"its API server does not answer ({failed})"
    away = sorted(set(NODES) - ready)
    return f"{', '.join(away)} not Ready" if away else None


def _ready(engine: Engine) -> set[str]:
    command = [kubectl(engine), "--kubeconfig", str(KUBECONFIG), "--request-timeout=5s", "get", "nodes", "-o", "json"]
    asked = subprocess.run(command, capture_output=True, check=True, text=True, timeout=20, env=os.environ)
    return {
        item["metadata"]["name"]
        for item in json.loads(asked.stdout)["items"]
        if any(each["type"] == "Ready" and each["status"] == "True" for each in item["status"]["conditions"])
    }


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))
