"""TFJobs on a real API server: it takes those of other people, and the jobs that `mptj convert-tfjob` makes of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from mptraining.cli.main import app
from tests.testbed import ControlPlane

ROOT = Path(__file__).parents[2]
TFJOB = ROOT / "build" / "peer-crds" / "kubeflow.org_tfjobs.yaml"
ENTRIES: list[dict[str, Any]] = [
    entry
    for entry in yaml.safe_load((ROOT / "tests/unit/client/tfjob/real_jobs.yaml").read_text(encoding="utf-8"))
    if "spec" in entry
]
STRICT = {"dryRun": "All", "fieldValidation": "Strict"}


def _in(document: dict[str, Any], namespace: str) -> dict[str, Any]:
    return {**document, "metadata": {**document["metadata"], "namespace": namespace}}


def test_the_jobs_are_accepted(control_plane: ControlPlane, namespace: str, tmp_path: Path) -> None:
    path = f"/apis/mptraining.dev/v1alpha1/namespaces/{namespace}/mptrainingjobs"
    for entry in ENTRIES:
        file = tmp_path / "tfjob.yaml"
        file.write_text(yaml.safe_dump(entry["tfjob"]), encoding="utf-8")
        done = CliRunner().invoke(app, ["convert-tfjob", str(file), *entry.get("flags", ())])
        assert done.exit_code == 0, done.output
        control_plane.rest.post(path, _in(yaml.safe_load(done.stdout), namespace), STRICT)


@pytest.mark.skipif(not TFJOB.exists(), reason="make build/peer-crds")
def test_the_tfjobs_are_accepted(control_plane: ControlPlane, namespace: str) -> None:
    control_plane.apply_crd(TFJOB)
    path = f"/apis/kubeflow.org/v1/namespaces/{namespace}/tfjobs"
    for entry in ENTRIES:
        # Older versions are served no more, and allowed fields that v1 of today does not have.
        old = {"cleanPodPolicy"} & set(entry["tfjob"]["spec"])
        if entry["tfjob"]["apiVersion"] == "kubeflow.org/v1" and not old:
            control_plane.rest.post(path, _in(entry["tfjob"], namespace), STRICT)
