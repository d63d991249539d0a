"""Where the servers' programs lie: build/bin, which `make servers` and `make bench-operator` fill."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "build" / "bin"

CONTROL_PLANE = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")
PEER = "training-operator.v1"


def binary(name: str) -> Path:
    """The program's path, there or not."""
    return FOLDER / name


def missing(names: Iterable[str] = CONTROL_PLANE) -> str | None:
    """None when all are there; else a sentence that says which is not and what to do."""
    absent = [name for name in names if not binary(name).exists()]
    return f"no {', '.join(absent)} in build/bin: run `make servers`" if absent else None
