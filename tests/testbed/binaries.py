"""The folder of the servers' programs: build/bin, which `make servers` and `make bench BENCH=operator` fill.

With MPTRAINING_KUBERNETES=1.33 in the environment the control plane is that of build/kubernetes-1.33, of the oldest
supported Kubernetes, and with 1.36 that of the newest: `python hack/cluster/binaries.py --kubernetes 1.33` compiles it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "build" / "bin"

CONTROL_PLANE = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")
PEER = "training-operator.v1"
VERSION_VARIABLE = "MPTRAINING_KUBERNETES"


def other() -> str | None:
    """Return the release of the control plane from the environment, such as 1.33; None for the one in build/bin."""
    return os.environ.get(VERSION_VARIABLE) or None


def binary(name: str) -> Path:
    """Return the program's path; it may not exist."""
    version = other() if name in CONTROL_PLANE else None
    return (FOLDER.parent / f"kubernetes-{version}" if version else FOLDER) / name


def missing(names: Iterable[str] = CONTROL_PLANE) -> str | None:
    """Return None when all exist; else a sentence that names the missing one and the command to get it."""
    absent = [binary(name) for name in names if not binary(name).exists()]
    if not absent:
        return None
    make = f"python hack/cluster/binaries.py --kubernetes {other()}" if other() else "make servers"
    return f"no {', '.join(path.name for path in absent)} in build/{absent[0].parent.name}: run `{make}`"
