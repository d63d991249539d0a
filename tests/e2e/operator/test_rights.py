"""The operator's rights as installations replace each other."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.testbed import ControlPlane
from tests.testbed.binaries import binary, missing
from tests.testbed.kubernetes.access import may
from tests.testbed.kubernetes.chart import CHART, REGISTRY, RELEASE
from tests.testbed.kubernetes.installation import OPERATOR, SYSTEM, install
from tests.testbed.kubernetes.operator_namespace import eventually


def test_an_installation_for_some_namespaces_takes_the_rights_of_install_yaml_away(
    tmp_path: Path, control_plane_servers: None
) -> None:
    if absent := missing(["helm"]):
        pytest.skip(absent)
    everywhere = may(f"system:serviceaccount:{SYSTEM}:{OPERATOR}", "create", "batch", "jobs", "kube-system")
    with ControlPlane(tmp_path) as control_plane:

        def helm(*arguments: str) -> None:
            command = [str(binary("helm")), *arguments, "--namespace", SYSTEM, "--kubeconfig"]
            done = subprocess.run(
                [*command, str(control_plane.admin_kubeconfig)], capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, done.stderr

        def allowed() -> bool:
            path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
            return bool(control_plane.rest.post(path, everywhere)["status"].get("allowed"))

        install(control_plane)
        eventually(allowed, bool)
        control_plane.rest.post("/api/v1/namespaces", {"metadata": {"name": "team"}})
        chart = (str(CHART), "--set", f"crds.install=false,global.imageRegistry={REGISTRY}")
        helm("install", RELEASE, *chart, "--take-ownership", "--set", "settings.namespaces={team}")
        eventually(allowed, lambda yes: not yes)
        helm("upgrade", RELEASE, *chart)
        eventually(allowed, bool)
        helm("rollback", RELEASE, "1")
        eventually(allowed, lambda yes: not yes)
