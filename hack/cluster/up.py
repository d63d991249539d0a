"""`make cluster`: a kind cluster, one control plane and two workers, that stays until `make cluster-down`.

Docker with kind's own node image where they are to be had; else Podman with a node image from the archive that
MPTRAINING_KIND_IMAGE_ARCHIVE names, or one that is built here from Go modules and Debian packages.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from typing import Any

from hack.cluster.binaries import ARCHIVE_VARIABLE, TESTED, NotHere, archive
from hack.cluster.engine import CLAIMS, ROOT, Engine, Failed, docker, finish, podman, say
from hack.cluster.kubectl import KUBECONFIG
from hack.cluster.nodes import CONTROL_PLANE, NAME, NODES, WORKERS, export_kubeconfig, kind, why_not_well

# Where Kubernetes' own host-path provisioner, the default class of the node image, makes folders.
_ON_NODES = "/tmp/hostpath_pv"
_NODE_IMAGE = f"localhost/kindest-node:v{TESTED}"


def main() -> None:
    began = time.monotonic()
    engine = docker()
    if engine and not os.environ.get(ARCHIVE_VARIABLE):
        image = None
    else:
        engine, image = podman(), _NODE_IMAGE
    if any(engine.has_container(node) for node in NODES):
        wrong = why_not_well(engine)
        if wrong is None:
            say(f"{NAME} is up; export KUBECONFIG={KUBECONFIG}")
            return
        say(f"{NAME} exists, but {wrong}: created again")
        remove(engine)
    if image:
        obtain(engine, image)
    create(engine, image)
    say(f"ready after {time.monotonic() - began:.0f} s; export KUBECONFIG={KUBECONFIG}")


def obtain(engine: Engine, image: str) -> None:
    """The node image: at hand, out of the archive, or built."""
    if engine.has_image(image):
        return
    try:
        packed = archive()
    except NotHere as problem:
        raise Failed(str(problem)) from None
    if packed:
        say(f"loading the node image from {packed}")
        decompress = ["zstd", "--decompress", "--stdout", "--long=31", str(packed)]
        unpack = subprocess.Popen(decompress, stdout=subprocess.PIPE)
        engine.run(engine.name, "load", stdin=unpack.stdout)
        if unpack.wait() != 0 or not engine.has_image(image):
            raise Failed(f"{packed} holds no {image}")
        return
    say(f"building {image} from Go modules and Debian packages: 10 minutes; {ARCHIVE_VARIABLE} would save them")
    script = ROOT / "hack" / "cluster" / "node_image" / "build.sh"
    engine.run(str(script), str(ROOT / "build" / "node-image"), TESTED, shown=True)


def create(engine: Engine, image: str | None) -> None:
    say(f"creating {NAME} with {engine.name}: a control plane and {len(WORKERS)} workers")
    if image:
        CLAIMS.mkdir(parents=True, exist_ok=True)
    KUBECONFIG.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(configuration(shared_claims=image is not None), file)
        file.flush()
        asked = ["create", "cluster", "--config", file.name, "--kubeconfig", str(KUBECONFIG), "--wait", "150s"]
        engine.run(kind(), *asked, *(["--image", image] if image else []))
    export_kubeconfig(engine)
    if image:
        open_claims(engine)
    wrong = why_not_well(engine)
    if wrong:
        raise Failed(f"{NAME} was created, but {wrong}")


def configuration(*, shared_claims: bool) -> dict[str, Any]:
    """kind's configuration.

    `shared_claims`: one folder of the host is the provisioner's folder on every node and in the controller manager,
    which makes the folders there. kind's own node image has another provisioner and needs none of it.
    """
    # By default the controller manager makes 20 calls a second: creating many jobs at once would wait for it.
    manager: dict[str, Any] = {"extraArgs": {"kube-api-qps": "200", "kube-api-burst": "400"}}
    node: dict[str, Any] = {}
    networking: dict[str, Any] = {}
    patches: list[str] = []
    if shared_claims:
        # This node image's iptables cannot share calls among the endpoints of a Service: it lacks a library.
        networking["kubeProxyMode"] = "nftables"
        volume = {"name": "claims", "hostPath": _ON_NODES, "mountPath": _ON_NODES, "pathType": "Directory"}
        manager["extraVolumes"] = [volume]
        # Lets a node be told of a registry on the host: kind.registry. kind's own node image has it.
        registries = '[plugins."io.containerd.grpc.v1.cri".registry]\nconfig_path = "/etc/containerd/certs.d"'
        patches.append(registries)
        node["extraMounts"] = [{"hostPath": str(CLAIMS), "containerPath": _ON_NODES}]
    return {
        "kind": "Cluster",
        "apiVersion": "kind.x-k8s.io/v1alpha4",
        "name": NAME,
        "networking": networking,
        "containerdConfigPatches": patches,
        "kubeadmConfigPatches": [json.dumps({"kind": "ClusterConfiguration", "controllerManager": manager})],
        "nodes": [{"role": "control-plane", **node}, *({"role": "worker", **node} for _ in WORKERS)],
    }


def open_claims(engine: Engine) -> None:
    """Lets every user write to the claims: the provisioner makes folders that only root may write to.

    It has no setting for that, and as it asks for mode 0750, a default ACL would be masked as well.
    """
    script = (ROOT / "hack" / "cluster" / "open-claims.sh").read_text(encoding="utf-8")
    unit = ("[Service]", f"ExecStart=/kind/bin/open-claims {_ON_NODES}", "Restart=always")
    service = "\n".join([*unit, "[Install]", "WantedBy=multi-user.target", ""])
    for path, text in (("/kind/bin/open-claims", script), ("/etc/systemd/system/open-claims.service", service)):
        engine.run(engine.name, "exec", "-i", CONTROL_PLANE, "tee", path, text=text)
    engine("exec", CONTROL_PLANE, "chmod", "755", "/kind/bin/open-claims")
    engine("exec", CONTROL_PLANE, "systemctl", "enable", "--now", "--quiet", "open-claims")


def remove(engine: Engine) -> None:
    engine.run(kind(), "delete", "cluster", "--name", NAME, "--kubeconfig", str(KUBECONFIG))


if __name__ == "__main__":
    finish(main)
