"""kubectl on the kind cluster."""

from __future__ import annotations

import os
import subprocess

from hack.cluster.engine import BIN, ROOT, Failed

KUBECONFIG = ROOT / "build" / "cluster" / "kubeconfig"


def kubectl(*arguments: str, text: str | None = None, check: bool = True, seconds: float = 300.0) -> str:
    """Its standard output; `text` is its input. The program is that of PATH, or what `make cluster` left in build/bin.

    Raises Failed with what it complained about, unless not to `check`, and when it takes longer than `seconds`.
    """
    try:
        done = subprocess.run(
            ["kubectl", f"--kubeconfig={KUBECONFIG}", *arguments],
            env={**os.environ, "PATH": f"{os.environ['PATH']}:{BIN}"},
            input=text,
            capture_output=True,
            text=True,
            check=False,
            timeout=seconds,
        )
    except FileNotFoundError:
        raise Failed("no kubectl on PATH, nor in build/bin: run `make cluster`") from None
    except subprocess.TimeoutExpired:
        raise Failed(f"kubectl {' '.join(arguments[:4])}: no answer in {seconds:g} s") from None
    if check and done.returncode:
        raise Failed(f"kubectl {' '.join(arguments[:4])}: {done.stderr.strip()}")
    return done.stdout
