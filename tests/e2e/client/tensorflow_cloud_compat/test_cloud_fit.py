"""`cloud_fit`: the files and objects that a call writes, and the job that trains from them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mptraining.tensorflow_cloud as tfc
from mptraining.cluster import submit as cluster_submit
from mptraining.tensorflow_cloud_compat import cloud_fit
from mptraining_api.problems import InvalidProgram

X = np.arange(24, dtype="float32").reshape(8, 3) / 24
Y = X.sum(axis=1, keepdims=True)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[dict[str, Any]]:
    """The documents that a cluster received."""
    documents: list[dict[str, Any]] = []

    class Job(dict[str, Any]):
        warnings = ()

    def submit(document: dict[str, Any], **_: Any) -> Job:
        documents.append(cluster_submit.check(document).document)
        return Job(job_id=document["metadata"]["name"])

    monkeypatch.setattr(cluster_submit, "submit", submit)
    monkeypatch.setattr(cloud_fit, "_remote", lambda folder, local: str(tmp_path / "bucket"))
    for name in ("TF_KERAS_RUNNING_REMOTELY", "MPTRAINING_JOB_FILE", "MPTRAINING_BACKEND", "TF_USE_LEGACY_KERAS"):
        monkeypatch.delenv(name, raising=False)
    return documents


def model(**compiled: Any) -> Any:
    import keras

    made = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    made.compile(**({"optimizer": "sgd", "loss": "mse"} | compiled))
    return made


def test_the_job_of_a_call(made: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]) -> None:
    name = tfc.cloud_fit(model(), "gs://b/d", region="us", x=X, y=Y, epochs=2, job_id="My_fit")
    (document,) = made
    assert name.startswith("my-fit-")
    assert name.job["job_id"] == name == document["metadata"]["name"]
    spec = document["spec"]
    assert spec["accelerator"] == {"type": "cpu"}
    assert "nodes" not in spec
    assert spec["keras"] == "Keras3"
    assert spec["precision"] == {"policy": "float32"}
    assert spec["output"]["uri"].endswith("/bucket/run")
    assert spec["podTemplate"]["resources"] == {"requests": {"cpu": 4, "memory": "15000M"}}
    out = capsys.readouterr().out
    assert "note: a model of Keras 3 trains on one node, not on 2" in out
    assert "note: region is not used" in out


def test_ai_platform_s_machines(made: list[dict[str, Any]]) -> None:
    master = {"acceleratorConfig": {"type": "NVIDIA_TESLA_K80", "count": "4"}}
    spec = {
        "job_id": "tuned",
        "trainingInput": {"masterType": "n1-standard-16", "masterConfig": master, "workerCount": 3},
    }
    tfc.cloud_fit(model(), "gs://b/d", job_spec=spec, distribution_strategy="MirroredStrategy", x=X, y=Y)
    (document,) = made
    assert document["spec"]["accelerator"] == {"type": "nvidia-tesla-t4", "countPerNode": 4}
    assert document["spec"]["podTemplate"]["resources"] == {"requests": {"cpu": 16, "memory": "60000M"}}
    assert document["metadata"]["name"].startswith("tuned-")
    master["acceleratorConfig"]["type"] = "MOON"
    with pytest.raises(ValueError, match=r"Invalid `job_spec` input.*Received MOON"):
        tfc.cloud_fit(model(), "gs://b/d", job_spec=spec, x=X, y=Y)


def test_what_cannot_be_sent_is_refused_before_anything_is_written(made: list[dict[str, Any]], tmp_path: Path) -> None:
    import keras

    class Own(keras.callbacks.Callback):  # type: ignore[misc]
        pass

    def own_loss(y: Any, p: Any) -> Any:
        return keras.ops.mean(y - p)

    def refused(error: type[Exception], match: str, given: Any, **arguments: Any) -> None:
        with pytest.raises(error, match=match):
            tfc.cloud_fit(given, "gs://b/d", **({"x": X, "y": Y} | arguments))
        assert not (tmp_path / "bucket").exists()

    plain = model()
    refused(
        ValueError, "TPUStrategy is not supported. Supported Strategies are", plain, distribution_strategy="TPUStrategy"
    )
    refused(NotImplementedError, "Generators are not currently supported!", plain, x=(each for each in X))
    refused(TypeError, "Invalid `x` input.*Received object", plain, x=object())
    refused(TypeError, "Expected a compiled keras.Model. Received str", "model")
    refused(InvalidProgram, "it is not compiled", keras.Sequential([keras.layers.Dense(1)]))
    refused(
        InvalidProgram,
        r"callbacks: a Own cannot be sent; expected one of Keras' own: CSVLogger",
        plain,
        callbacks=[Own()],
    )
    scheduler = keras.callbacks.LearningRateScheduler(lambda epoch: 0.1)
    refused(InvalidProgram, "callbacks: a LearningRateScheduler cannot be sent", plain, callbacks=[scheduler])
    refused(InvalidProgram, "model: own_loss: code of your own, which Keras 3 does not save", model(loss=own_loss))
    lambdas = keras.Sequential([keras.Input((3,)), keras.layers.Lambda(lambda z: z)])
    lambdas.compile("sgd", "mse")
    refused(InvalidProgram, "model: a lambda: code of your own", lambdas)
    assert made == []


def test_a_cluster_needs_a_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"Invalid `remote_dir` input. Expected a folder in a bucket"):
        tfc.cloud_fit(model(), "here", x=X, y=Y)


TRAINED = """
import os, sys
import numpy as np
import tensorflow as tf
import mptraining.colab
mptraining.colab.run_here()
from tensorflow_cloud.tuner import cloud_fit_client as client
import mptraining.tensorflow_cloud_compat.run

x, y = np.load("x.npy"), np.load("y.npy")

def fresh():
    tf.keras.utils.set_random_seed(1)
    model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(3,))])
    model.compile(tf.keras.optimizers.SGD(0.1), "mse")
    return model

if legacy := "tf_keras" in type(fresh()).__mro__[1].__module__:
    data = tf.data.Dataset.from_tensor_slices((x, y)).map(lambda a, b: (a * 2.0, b)).batch(4)
    given, ending = dict(x=data), ""
else:
    given, ending = dict(x=x, y=y, batch_size=4, shuffle=False), ".keras"
plain = fresh()
plain.fit(**given, epochs=30, verbose=0, validation_data=(x, y),
          callbacks=[tf.keras.callbacks.EarlyStopping(monitor="loss", mode="max", patience=1, min_delta=0.0)])
epochs = len(plain.history.epoch)
assert epochs < 30
k = tf.keras.callbacks
given_callbacks = [
    k.EarlyStopping(monitor="loss", mode="max", patience=1, min_delta=0.0),
    k.ReduceLROnPlateau(monitor="loss", patience=50),
    k.CSVLogger(os.path.abspath("log.csv"), separator=";"),
]
made = client.cloud_fit(
    fresh(), "remote", distribution_strategy="MirroredStrategy", epochs=30, verbose=2, callbacks=given_callbacks,
    validation_data=(x, y), **given)
for name in ("checkpoint", "output"):
    trained = tf.keras.models.load_model(f"remote/{name}{ending}")
    for ours, theirs in zip(trained.get_weights(), plain.get_weights()):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
assert made.job.status().succeeded
rows = open("log.csv").read().splitlines()
assert len(rows) == epochs + 1 and ";" in rows[0], rows
assert "val_loss" in made.job.history.points[-1].metrics
print("as plain")
"""


@pytest.mark.parametrize("legacy", ["0", "1"])
def test_it_trains_as_fit_does(tmp_path: Path, legacy: str) -> None:
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "y.npy", Y)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MPTRAINING_")}
    environment |= {"TF_USE_LEGACY_KERAS": legacy, "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(
        [sys.executable, "-c", TRAINED], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    assert done.stdout.splitlines()[-1] == "as plain"
    files = json.loads((tmp_path / "remote" / "training_assets" / "fit.json").read_text())
    assert files["saves"] == (["output", "checkpoint"] if legacy == "1" else ["output.keras", "checkpoint.keras"])
