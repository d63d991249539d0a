"""KWOK: thousands of pods on simulated nodes, in a separate program.

For numbers at which the `Kubelet` of this package would be the slowest part. All of its pods behave alike.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from tests.testbed.binaries import FOLDER, binary
from tests.testbed.kubernetes.control_plane import ControlPlane
from tests.testbed.nodes.nodes import KWOK_ANNOTATION
from tests.testbed.processes import NotStarted, Server, free_ports

STAGES = FOLDER.parent / "kwok-stages"


def start_kwok(control_plane: ControlPlane, *, complete: bool = False) -> Server:
    """Start the kubelet of nodes created with `kwok=True`: pods run as soon as they are bound, and are removed as soon
    as they are deleted; with `complete` they succeed as soon as they run. Stop the server, or use it as
    a context manager.
    """
    if not STAGES.is_dir():
        raise NotStarted("no build/kwok-stages: run `make servers`")
    stages = control_plane.folder / "kwok-stages.yaml"
    stages.write_text(yaml.safe_dump_all(_stages(complete), sort_keys=False), encoding="utf-8")
    (port,) = free_ports(1)
    return Server(
        [
            binary("kwok"),
            f"--kubeconfig={control_plane.admin_kubeconfig}",
            "--manage-all-nodes=false",
            f"--manage-nodes-with-annotation-selector={KWOK_ANNOTATION}=fake",
            f"--config={stages}",
            f"--server-address=127.0.0.1:{port}",
            # No heartbeat: the controllers that need it do not run.
            "--node-lease-duration-seconds=0",
        ],
        log=control_plane.logs / "kwok.log",
    )


def _stages(complete: bool) -> list[dict[str, Any]]:
    found = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in sorted(Path(STAGES).glob("*.yaml"))]
    by_name = {stage["metadata"]["name"]: stage for stage in found if stage["kind"] == "Stage"}
    if complete:
        # KWOK's own selector would complete only a Job's pods; an operator's own pods must succeed as well.
        expressions = by_name["pod-complete"]["spec"]["selector"]["matchExpressions"]
        expressions[:] = [expression for expression in expressions if "ownerReferences" not in expression["key"]]
    else:
        del by_name["pod-complete"]
    return list(by_name.values())
