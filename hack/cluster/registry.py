"""A registry on the host, under the same name on the host and on the nodes: localhost:PORT.

As in kind's documentation (https://kind.sigs.k8s.io/docs/user/local-registry/): a node's containerd is told by a
hosts.toml that this name is the host of the cluster's network.
"""

from __future__ import annotations

import json

from hack.cluster.engine import Engine, Failed
from hack.cluster.nodes import NODES

_NETWORK = "kind"


def connect(engine: Engine, port: int) -> str:
    """Tell every node of the registry at the host's `port`, and return the registry's name.

    Raises Failed if a node does not reach it: the registry must listen on the address of the network's gateway.
    """
    name = f"localhost:{port}"
    gateway = gateway_of(engine)
    hosts = f'server = "http://{name}"\n[host."http://{gateway}:{port}"]\n  capabilities = ["pull", "resolve"]\n'
    for node in NODES:
        folder = f"/etc/containerd/certs.d/{name}"
        engine("exec", node, "mkdir", "-p", folder)
        engine.run(engine.name, "exec", "-i", node, "tee", f"{folder}/hosts.toml", text=hosts)
        call = ("curl", "--silent", "--fail", "--noproxy", "*", "--max-time", "5", f"http://{gateway}:{port}/v2/")
        if engine.asked("exec", node, *call) is None:
            raise Failed(f"{node} does not reach the registry at {gateway}:{port}")
    return name


def gateway_of(engine: Engine) -> str:
    """Return the host's IPv4 address in the network of the cluster."""
    (network,) = json.loads(engine("network", "inspect", _NETWORK))
    # Podman's form, then Docker's.
    ranges = network.get("subnets") or network["IPAM"]["Config"]
    for each in ranges:
        gateway = str(each.get("gateway") or each.get("Gateway") or "")
        if "." in gateway:
            return gateway
    raise Failed(f"the network {_NETWORK} has no IPv4 gateway")
