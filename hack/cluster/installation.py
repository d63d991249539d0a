"""The operator on the kind cluster: `manifests/install.yaml`, with the settings that a test or soak wants."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

import yaml

from hack.cluster.engine import ROOT, Failed
from hack.cluster.kubectl import kubectl

SYSTEM, OPERATOR = "mptraining-system", "mptraining-operator"
_FILE = "/etc/mptraining/settings.yaml"
# The operator's image has no shell and no `cat`.
_READ = ("python", "-c", f"print(open({_FILE!r}).read(), end='')")
# What a replica may take to leave after SIGTERM, twice.
_TO_LEAVE = 300.0


def _manifest() -> str:
    text = (ROOT / "manifests" / "install.yaml").read_text(encoding="utf-8")
    # The nodes have the images.
    return text.replace("registry.invalid/", "docker.io/")


def install() -> None:
    """As an administrator would. The settings stay those of the file until `configure`."""
    kubectl("apply", "-f", "-", text=_manifest())


def configure(settings: Mapping[str, Any]) -> None:
    """Restarts all replicas with these settings in place of the installed ones of the same names; afterwards no replica
    decides by others. Raises Failed.
    """
    manifests = filter(None, yaml.safe_load_all(_manifest()))
    texts = (manifest["data"].get("settings.yaml") for manifest in manifests if manifest["kind"] == "ConfigMap")
    installed = next(yaml.safe_load(text) for text in texts if text)
    text = yaml.safe_dump({**installed, **settings})
    data = json.dumps({"data": {"settings.yaml": text}})
    kubectl("patch", "configmap", OPERATOR, "-n", SYSTEM, "--type=merge", "-p", data)
    kubectl("rollout", "restart", f"deployment/{OPERATOR}", "-n", SYSTEM)
    until = time.monotonic() + _TO_LEAVE
    while True:
        kubectl("rollout", "status", f"deployment/{OPERATOR}", "-n", SYSTEM, "--timeout=600s", seconds=660)
        late = _late(text)
        if not late:
            return
        if time.monotonic() > until:
            raise Failed(f"{', '.join(late)}: still there, or with other settings, after {_TO_LEAVE:g} s")
        time.sleep(0.5)


def _late(text: str) -> list[str]:
    """Replicas that were told to leave and have not, which `rollout status` does not count, and those that a kubelet
    gave the settings it still knew: these are deleted.
    """
    query = ("get", "pods", "-n", SYSTEM, "-l", f"app.kubernetes.io/name={OPERATOR}", "-o", "json")
    late = []
    for pod in json.loads(kubectl(*query))["items"]:
        name = pod["metadata"]["name"]
        if "deletionTimestamp" in pod["metadata"]:
            late.append(name)
        elif kubectl("exec", "-n", SYSTEM, name, "--", *_READ, check=False) != text:
            kubectl("delete", "pod", "-n", SYSTEM, name, "--wait=false", check=False)
            late.append(name)
    return late
