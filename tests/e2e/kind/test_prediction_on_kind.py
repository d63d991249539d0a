"""Predictions and an ensemble as jobs of a real cluster, of models in a bucket, against plain Keras on this machine."""

from __future__ import annotations

import base64
import io
import json
import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest

from hack.cluster.kubectl import BIN, KUBECONFIG
from tests.e2e.kind import buckets
from tests.e2e.kind.test_on_kind import DIGITS, image
from tests.testbed.nodes.pods import RESTRICTED

RUNS = "gs://my-bucket/runs"
PODS = {"env": [{"name": "STORAGE_EMULATOR_HOST", "value": buckets.ADDRESS}]}
HELD_OUT = """
import base64, glob, sys
files = sorted(glob.glob("/opt/mptraining/digits/validation-*.tfrecord"))
print(base64.b64encode(b"".join(open(file, "rb").read() for file in files)).decode())
"""


@pytest.fixture(scope="module")
def members(kind: Any, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Two runs of the digits in the bucket."""
    buckets.start(kind, tmp_path_factory.mktemp("buckets"))
    for seed in (7, 8):
        kind.job(
            f"member-{seed}",
            accelerator={"type": "cpu"},
            program={"application": {"name": "cnn", "classes": 10}},
            data=DIGITS,
            training={"epochs": 2, "batchSize": {"global": 64}, "seed": seed},
            output={"uri": f"{RUNS}/member-{seed}"},
            podTemplate=PODS,
        )
    for seed in (7, 8):
        kind.finished(f"member-{seed}")
    return [f"{RUNS}/member-{seed}" for seed in (7, 8)]


def stored(uri: str) -> bytes:
    """Return an object of the bucket, through the API server."""
    bucket, _, key = uri.removeprefix("gs://").partition("/")
    path = (
        f"/api/v1/namespaces/{buckets.NAMESPACE}/services/buckets:4443/proxy/storage/v1/b/{bucket}/o/{quote(key, '')}"
    )
    command = [str(BIN / "kubectl"), f"--kubeconfig={KUBECONFIG}", "get", "--raw", f"{path}?alt=media"]
    return subprocess.run(command, check=True, capture_output=True, timeout=120).stdout


@pytest.fixture(scope="module")
def held_out(kind: Any, members: list[str]) -> tuple[Any, Any]:
    """The images and labels of the image's validation records, by TensorFlow's own reader."""
    import tensorflow as tf

    container = {
        "name": "read",
        "image": image(kind),
        "command": ["python", "-c", HELD_OUT],
        "securityContext": RESTRICTED,
    }
    pod = {"restartPolicy": "Never", "containers": [container]}
    kind.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "held-out"}, "spec": pod})
    succeeded = "--for=jsonpath={.status.phase}=Succeeded"
    kind.kubectl("wait", "-n", kind.namespace, "pod/held-out", succeeded, "--timeout=300s")
    raw = base64.b64decode(kind.kubectl("logs", "-n", kind.namespace, "held-out").splitlines()[-1])
    images, labels, at = [], [], 0
    while at < len(raw):
        length = int.from_bytes(raw[at : at + 8], "little")
        features = tf.train.Example.FromString(raw[at + 12 : at + 12 + length]).features.feature
        images.append(np.frombuffer(features["image"].bytes_list.value[0], np.uint8).reshape(8, 8, 1))
        labels.append(features["label"].int64_list.value[0])
        at += 16 + length
    return np.stack(images), np.array(labels)


def loaded(uri: str, folder: Path) -> Any:
    import keras

    path = folder / "model.keras"
    path.write_bytes(stored(f"{uri}/model/model.keras"))
    return keras.models.load_model(path)


def outputs(uri: str, images: Any, folder: Path) -> Any:
    assert json.loads(stored(f"{uri}/model/model.json"))["preprocess"] is None
    return loaded(uri, folder).predict(images, verbose=0)


def test_two_workers_predict_what_plain_keras_predicts(
    kind: Any, members: list[str], held_out: tuple[Any, Any], tmp_path: Path
) -> None:
    import pyarrow.parquet as parquet

    to = "gs://my-bucket/predictions/member-7.parquet"
    kind.job(
        "predict-member-7",
        accelerator={"type": "cpu"},
        nodes=2,
        program={"prediction": {"model": members[0], "to": to, "evaluate": True}},
        data={"predict": DIGITS["validation"]},
        output={"uri": f"{to}.run"},
        podTemplate=PODS,
    )
    kind.finished("predict-member-7")
    table = parquet.read_table(io.BytesIO(stored(to)))
    images, labels = held_out
    wanted = outputs(members[0], images, tmp_path)
    np.testing.assert_allclose(np.array(table.column("output").to_pylist()), wanted, atol=1e-5)
    assert table.column("class").to_pylist() == wanted.argmax(1).tolist()
    assert np.mean(wanted.argmax(1) == labels) > 0.5


def test_an_ensemble_of_runs_in_a_bucket_is_their_mean(
    kind: Any, members: list[str], held_out: tuple[Any, Any], tmp_path: Path
) -> None:
    images, _ = held_out
    kind.job(
        "ensemble",
        accelerator={"type": "cpu"},
        program={"ensemble": {"members": members}},
        data=DIGITS,
        output={"uri": f"{RUNS}/ensemble"},
        podTemplate=PODS,
    )
    kind.finished("ensemble")
    mean = np.stack([outputs(member, images, tmp_path) for member in members]).mean(0)
    np.testing.assert_allclose(outputs(f"{RUNS}/ensemble", images, tmp_path), mean, atol=1e-5)
