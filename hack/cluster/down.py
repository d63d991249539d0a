"""`make cluster-down`: the cluster and what was written to its claims go; the node image stays."""

from __future__ import annotations

import shutil

from hack.cluster.engine import CLAIMS, engines, finish, say
from hack.cluster.kubectl import KUBECONFIG
from hack.cluster.nodes import NAME, NODES
from hack.cluster.up import remove


def main() -> None:
    having = [engine for engine in engines() if any(engine.has_container(node) for node in NODES)]
    for engine in having:
        remove(engine)
    KUBECONFIG.unlink(missing_ok=True)
    shutil.rmtree(CLAIMS, ignore_errors=True)
    say(f"{NAME} is gone" if having else f"there is no {NAME}")


if __name__ == "__main__":
    finish(main)
