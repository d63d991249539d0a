"""`tensorflow_cloud.run` against the real API server: the job and its source exist, and the call returns the job."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

import mptraining
import mptraining.tensorflow_cloud as tfc
from mptraining.packaging.package import CONFIG_MAP_BYTES
from mptraining_api.kubernetes_api import JOBS
from mptraining_api.problems import InvalidProgram
from mptraining_storage import storage
from tests.testbed import ControlPlane


@pytest.fixture(autouse=True)
def here(control_plane: ControlPlane, namespace: str, use: Any, tmp_path: Path) -> Path:
    use(control_plane, namespace)
    cells = [{"cell_type": "code", "source": source} for source in ("!pip install einops", "print('trains')")]
    (tmp_path / "train.ipynb").write_text(json.dumps({"cells": cells}))
    (tmp_path / "flowers").mkdir()
    (tmp_path / "flowers" / "model.py").write_text("")
    return tmp_path


def test_a_notebook_becomes_a_job(
    control_plane: ControlPlane, namespace: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Other tests create nodes in this control plane.
    monkeypatch.setattr(
        "mptraining.cluster.submission.accelerator_warnings", lambda server, job: (f"no {job.accelerator.type} now",)
    )
    job: Any = tfc.run("train.ipynb", chief_config=tfc.COMMON_MACHINE_CONFIGS["T4_4X"], job_labels={"team": "vision"})
    assert "advice: no t4 now\n" in capsys.readouterr().out
    assert job["job_id"] == job.name
    assert mptraining.attach(job.name) == job.job
    path = f"/apis/mptraining.dev/v1alpha1/namespaces/{namespace}/mptrainingjobs/{job.name}"
    made = control_plane.rest.get(path)
    assert made["metadata"]["labels"] == {"team": "vision"}
    assert made["spec"]["accelerator"] == {"type": "t4", "countPerWorker": 4}
    assert made["spec"]["program"] == {"script": {"path": "train_notebook.py"}}
    source = made["spec"]["source"]
    assert source["requirements"] == "requirements-of-the-job.txt"
    held = control_plane.rest.get(f"/api/v1/namespaces/{namespace}/configmaps/{source['configMap']['name']}")
    archive = base64.b64decode(held["binaryData"]["source.tgz"])
    assert hashlib.sha256(archive).hexdigest() == source["configMap"]["sha256"]
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        assert tar.getnames() == ["flowers/model.py", "requirements-of-the-job.txt", "train_notebook.py"]
    assert [owner["uid"] for owner in held["metadata"]["ownerReferences"]] == [job.uid]


def test_a_large_package_goes_into_a_bucket(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    noise = b"".join(hashlib.sha256(str(number).encode()).digest() for number in range(CONFIG_MAP_BYTES // 32 + 1))
    (here / "weights.bin").write_bytes(noise)
    with pytest.raises(InvalidProgram, match=r"the biggest files: weights\.bin"):
        tfc.run("train.ipynb")
    monkeypatch.setattr(storage, "exists", lambda uri: False)
    written: dict[str, bytes] = {}
    monkeypatch.setattr(storage, "write", written.__setitem__)
    job: Any = tfc.run("train.ipynb", docker_config=tfc.DockerConfig(image_build_bucket="builds"))
    ((uri, archive),) = written.items()
    digest = hashlib.sha256(archive).hexdigest()
    assert uri == f"gs://builds/mptraining/source/{digest}.tgz"
    assert job.server.get(JOBS, job.name)["spec"]["source"]["archive"] == {
        "uri": uri, "sha256": digest,
    }  # fmt: skip
