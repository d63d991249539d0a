"""`mptj submit` from flags alone: the program is uploaded, and the cluster has the job that the flags describe."""

from __future__ import annotations

import base64
import hashlib
import io
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.testbed import ControlPlane

Typed = Callable[..., dict[str, Any]]


@pytest.fixture
def typed(control_plane: ControlPlane, namespace: str, mptj: Any, use: Any, tmp_path: Path) -> Typed:
    """Submits in a folder with a script and a module; returns the job as the API server has it."""
    (tmp_path / "train.py").write_text("print('trains')\n")
    (tmp_path / "flowers").mkdir()
    (tmp_path / "flowers" / "__init__.py").touch()
    (tmp_path / "flowers" / "model.py").write_text("def build(): ...\n")
    use(control_plane, namespace)

    def submit(*arguments: str) -> dict[str, Any]:
        ended = mptj("submit", "--output", "yaml", *arguments)
        assert ended.returncode == 0, ended.stderr
        found: dict[str, Any] = yaml.safe_load(ended.stdout)
        return found

    return submit


def test_a_script_with_its_folder(typed: Typed, control_plane: ControlPlane, namespace: str) -> None:
    made = typed("train.py", "--accelerator", "t4", "--count", "4", "--run-folder", "gs://b/run", "--", "--lr=0.1")
    assert made["metadata"]["name"].startswith("train-")
    spec = made["spec"]
    assert spec["accelerator"] == {"type": "t4", "countPerWorker": 4}
    assert spec["program"] == {"script": {"path": "train.py", "arguments": ["--lr=0.1"]}}
    assert spec["output"] == {"uri": "gs://b/run"}
    name = spec["source"]["configMap"]["name"]
    config_map = control_plane.rest.get(f"/api/v1/namespaces/{namespace}/configmaps/{name}")
    (owner,) = config_map["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("MPTrainingJob", made["metadata"]["uid"])
    (archive,) = config_map["binaryData"].values()
    with tarfile.open(fileobj=io.BytesIO(base64.b64decode(archive))) as tar:
        assert {"train.py", "flowers/model.py"} <= set(tar.getnames())


def test_a_dry_run_sends_nothing(typed: Typed, control_plane: ControlPlane, namespace: str) -> None:
    assert typed("ResNet50", "--data", "gs://b/train-*", "--dry-run")["metadata"] == {"name": "resnet50"}
    assert control_plane.rest.get(f"/apis/mptraining.dev/v1alpha1/namespaces/{namespace}/mptrainingjobs")["items"] == []


def test_a_dry_run_prints_what_kubectl_applies(
    typed: Typed, mptj: Any, control_plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    del typed  # the folder with the script
    printed = mptj("submit", "train.py", "--dry-run")
    config_map, job = yaml.safe_load_all(printed.stdout)
    assert (printed.stderr, config_map["metadata"]["name"]) == ("", f"{job['metadata']['name']}-source")
    (tmp_path / "printed.yaml").write_text(printed.stdout)
    control_plane.kubectl("apply", "--namespace", namespace, "--filename", str(tmp_path / "printed.yaml"))
    path = f"/apis/mptraining.dev/v1alpha1/namespaces/{namespace}/mptrainingjobs/{job['metadata']['name']}"
    source = control_plane.rest.get(path)["spec"]["source"]["configMap"]
    stored = control_plane.rest.get(f"/api/v1/namespaces/{namespace}/configmaps/{source['name']}")
    (archive,) = stored["binaryData"].values()
    assert hashlib.sha256(base64.b64decode(archive)).hexdigest() == source["sha256"]
