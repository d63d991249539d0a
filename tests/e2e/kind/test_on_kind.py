"""Jobs that really train on a real cluster, and behaviour that only a real kubelet has."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import socket
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import Any

import keras
import nbformat
import pytest
from nbclient import NotebookClient

import mptraining
from hack.cluster.images import VERSION
from hack.cluster.installation import configure
from hack.cluster.nodes import NAME
from tests.testbed.kubernetes.operator_namespace import condition

EXAMPLES = Path(__file__).parents[3] / "manifests" / "examples"

DIGITS = {
    "train": ["/opt/mptraining/digits/train-*.tfrecord"],
    "validation": ["/opt/mptraining/digits/validation-*.tfrecord"],
}
CLAIM = {
    "volumes": [{"name": "runs", "persistentVolumeClaim": {"claimName": "runs"}}],
    "volumeMounts": [{"name": "runs", "mountPath": "/runs"}],
}


def fetched(kind: Any, job: str, into: Path) -> Path:
    """Fetch the run folder by a pod that mounts the claim, as a real kubelet runs it."""
    cluster = mptraining.Cluster(kubeconfig=str(kind.kubeconfig), namespace=kind.namespace)
    return Path(mptraining.attach(job, cluster).fetch(into / job))


def events(log: str, word: str) -> list[dict[str, Any]]:
    """Return the Events of one kind in a log."""
    found = [json.loads(line) for line in log.splitlines() if line.startswith('{"mptraining"')]
    return [each for each in found if each["kind"] == word]


@pytest.fixture(scope="module")
def claim(kind: Any) -> None:
    kind.kubectl("apply", "-n", kind.namespace, "-f", str(EXAMPLES / "digits.yaml"))


def test_the_digits_example_trains_and_exports_its_model(kind: Any, claim: None, tmp_path: Path) -> None:
    kind.finished("digits")
    # Progress has a writer of its own, which may write it after the end.
    status = kind.until("digits", lambda status: (status.get("progress") or {}).get("percentComplete") == 100)
    progress = status["progress"]
    assert (progress["percentComplete"], progress["step"], progress["totalSteps"]) == (100, 330, 330)
    metrics = {each["name"]: float(each["value"]) for each in progress["metrics"]}
    assert metrics["val_accuracy"] > 0.97
    folder = fetched(kind, "digits", tmp_path)
    assert {"model.json", "weights.npz"} <= {path.name for path in (folder / "model").iterdir()}
    assert mptraining.load_run(str(folder)).succeeded
    assert json.loads((folder / "result.json").read_text())["step"] == 330
    model = keras.models.load_model(folder / "model" / "model.keras")
    assert (model.dtype_policy.name, model.count_params() > 1000) == ("float32", True)


def test_two_workers_train_together_and_a_restarted_gang_resumes(kind: Any, claim: None, tmp_path: Path) -> None:
    """The job requests T4s and trains on CPUs; a worker is evicted, and the second attempt resumes from the first one's
    checkpoint.
    """
    kind.job(
        "pair",
        accelerator={"type": "t4"},
        workers=2,
        program={"application": {"name": "mlp", "classes": 10}},
        data=DIGITS,
        training={"epochs": 300, "batchSize": {"global": 64}, "seed": 7},
        checkpoint={"everySteps": 100},
        output={"uri": "/runs/pair"},
        podTemplate=CLAIM,
    )
    kind.until("pair", lambda status: status.get("phase") == "Running")
    deadline = time.monotonic() + 400
    while not events(kind.logs("pair"), "Saved"):
        assert time.monotonic() < deadline, kind.logs("pair")[-3000:]
        time.sleep(0.5)
    pod = kind.get("pods", "-l", "mptraining.dev/job=pair,batch.kubernetes.io/job-completion-index=1")["items"][0]
    name = pod["metadata"]["name"]
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
    kind.kubectl(
        "create", "--raw", f"/api/v1/namespaces/{kind.namespace}/pods/{name}/eviction", "-f", "-",
        text=json.dumps(eviction),
    )  # fmt: skip
    status = kind.finished("pair")
    assert [each["outcome"] for each in status["attempts"]] == ["Preempted", "Succeeded"]
    assert (status["infrastructureRestarts"], status["applicationFailures"]) == (1, 0)
    assert (status["workers"], status["replicasInSync"]) == (2, 2)
    started = events(kind.logs("pair", attempt=2), "Started")
    assert {each["worker"] for each in started} == {0, 1}
    assert all(each["firstStep"] >= 100 for each in started)
    result = json.loads((fetched(kind, "pair", tmp_path) / "result.json").read_text())
    assert (result["reason"], result["attempt"], result["workers"]) == ("Succeeded", 2, 2)
    assert result["metrics"]["val_accuracy"] > 0.9


SCRIPT = """
import keras
import numpy as np

x = np.random.default_rng(0).normal(size=(256, 4)).astype("float32")
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("adam", "mse")
model.fit(x, x.sum(axis=1), epochs=3, verbose=0)
"""


def test_a_script_of_a_config_map_trains_unchanged(kind: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    kind.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "code"}, "data": {"train.py": SCRIPT}})
    kind.job(
        "script",
        accelerator={"type": "cpu"},
        program={"script": {"path": "train.py"}},
        source={"configMap": {"name": "code"}},
    )
    # Without output.uri worker 0 keeps the model, until it is fetched by a real kubelet's exec.
    job = mptraining.attach("script", mptraining.Cluster(kubeconfig=str(kind.kubeconfig), namespace=kind.namespace))
    assert job.wait(600).succeeded
    saved = job.save_model(tmp_path / "model")
    assert {"model.json", "weights.npz"} <= {path.name for path in saved.iterdir()}
    kind.finished("script")
    assert events(kind.logs("script"), "Finished")[0]["reason"] == "Succeeded"


CELLS = """
import mptraining
cluster = mptraining.Cluster(kubeconfig=KUBECONFIG, namespace=NAMESPACE)

class TooHigh(Exception):
    pass

def train(rate):
    import numpy as np
    from tensorflow import keras

    if rate > 1:
        raise TooHigh(rate)
    x = np.ones((64, 3), "float32")
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(rate), "mse")
    return len(model.fit(x, x[:, :1], epochs=2, verbose=0).history["loss"])
---
value = mptraining.submit(train, args=[0.1], workers=2, name="function-value", cluster=cluster)
error = mptraining.submit(train, args=[3], workers=2, name="function-error", cluster=cluster)
---
assert value.result(900) == 2
try:
    error.result(900)
except TooHigh as raised:
    assert raised.args == (3,) and "TooHigh: 3" in raised.__notes__[0], raised.__notes__
else:
    raise AssertionError
"""
RESTARTED = (
    CELLS.partition("---")[0]
    + """
---
assert mptraining.attach("function-value", cluster).result(900) == 2
---
try:
    mptraining.attach("function-error", cluster).result(900)
except TooHigh as raised:
    assert raised.args == (3,)
else:
    raise AssertionError
"""
)


def test_a_function_returns_its_value_or_raises_its_own_exception_also_after_a_restart_of_the_kernel(
    kind: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Submitted by a real Jupyter kernel, on two workers, without a run folder: pods and logs keep the outcome."""
    for name in ("IPYTHONDIR", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))
    known = f"KUBECONFIG, NAMESPACE = {str(kind.kubeconfig)!r}, {kind.namespace!r}"
    for text in (CELLS, RESTARTED):
        cells = [nbformat.v4.new_code_cell(source) for source in (known, *text.split("---"))]
        notebook = nbformat.v4.new_notebook(cells=cells)
        place = {"metadata": {"path": str(tmp_path)}}
        NotebookClient(notebook, timeout=1200, kernel_name="python3", resources=place).execute()
    kind.finished("function-value")
    kind.finished("function-error", "Failed")


WAITS = """
import socket

with socket.create_server(("127.0.0.1", 5678)) as listener:
    connection, _ = listener.accept()
    with connection:
        connection.sendall(connection.recv(100).upper())
"""


def test_a_running_worker_is_reached_by_a_command_a_terminal_and_a_debugger(kind: Any) -> None:
    """A socket of the program stands for debugpy: it accepts one connection, then the program trains."""

    def mptj(*words: str) -> list[str]:
        place = ("--kubeconfig", str(kind.kubeconfig), "--namespace", kind.namespace)
        return [sys.executable, "-m", "mptraining", words[0], "reached", *place, *words[1:]]

    kind.apply(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "waits"}, "data": {"train.py": WAITS + SCRIPT}}
    )
    kind.job(
        "reached",
        accelerator={"type": "cpu"},
        program={"script": {"path": "train.py"}},
        source={"configMap": {"name": "waits"}},
        podTemplate={"env": [{"name": "MPTRAINING_MODEL_WAIT_SECONDS", "value": "0"}]},
    )
    with subprocess.Popen(mptj("debug"), stdout=subprocess.PIPE, text=True) as debug:
        assert debug.stdout is not None
        configuration = json.loads(debug.stdout.readline())
        assert configuration["pathMappings"][0]["remoteRoot"].startswith("/")

        command = mptj("exec", "--", "sh", "-c", "cat; echo warned >&2; exit 3")
        done = subprocess.run(command, input="typed", capture_output=True, text=True, check=False, timeout=120)
        assert (done.returncode, done.stdout, done.stderr) == (3, "typed", "warned\n")

        user, terminal = pty.openpty()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 132, 0, 0))
        shell = subprocess.Popen(mptj("exec"), stdin=terminal, stdout=terminal, stderr=terminal)
        assert os.read(user, 1000), "the prompt"
        os.write(user, b"stty size; exit 5\r")
        assert shell.wait(120) == 5
        assert b"50 132" in os.read(user, 10_000)
        for file in (user, terminal):
            os.close(file)

        address = configuration["connect"]
        with socket.create_connection((address["host"], address["port"]), timeout=60) as connection:
            connection.sendall(b"attach")
            assert connection.recv(100) == b"ATTACH"
        kind.finished("reached")
        assert debug.wait(60) == 0


def test_a_missing_image_and_a_missing_config_map_are_conditions_within_a_minute(kind: Any) -> None:
    began = time.monotonic()
    kind.job(
        "unmounted",
        accelerator={"type": "cpu"},
        program={"script": {"path": "train.py"}},
        source={"configMap": {"name": "no-such-code"}},
        runPolicy={"pendingTimeoutSeconds": 60},
    )
    kind.job(
        "unpullable",
        accelerator={"type": "cpu"},
        program={"application": {"name": "mlp", "classes": 10}},
        data=DIGITS,
        training={"epochs": 1, "batchSize": {"global": 64}},
        runPolicy={"pendingTimeoutSeconds": 45},
        podTemplate={"image": "mptraining/no-such-image:1"},
    )
    kind.until("unpullable", lambda status: condition(status, "Running").get("reason") == "ImagePullFailed", seconds=60)
    kind.until("unmounted", lambda status: condition(status, "Running").get("reason") == "VolumeNotMounted", seconds=60)
    assert time.monotonic() - began < 60
    for name, missing in (("unpullable", "no-such-image"), ("unmounted", 'configmap "no-such-code" not found')):
        failed = condition(kind.finished(name, "Failed"), "Failed")
        assert failed["reason"] == "PendingTimeout"
        assert missing in failed["message"]


def test_a_pod_that_sees_no_gpu_despite_its_request_reports_it(kind: Any) -> None:
    """A worker node advertises a T4: the real scheduler places the pod there, and its kubelet runs it."""
    node = f"{NAME}-worker"
    capacity = [{"op": "add", "path": "/status/capacity/nvidia.com~1gpu", "value": "1"}]
    kind.kubectl("label", "node", node, "cloud.google.com/gke-accelerator=nvidia-tesla-t4", "--overwrite")
    kind.kubectl("patch", "node", node, "--subresource=status", "--type=json", "-p", json.dumps(capacity))
    # The cluster has no image for GPUs.
    configure({"cpuFallback": False, "runtimes": {"default": {"images": {"gpu": f"mptraining/trainer:{VERSION}"}}}})
    try:
        kind.job(
            "promised",
            accelerator={"type": "t4"},
            program={"application": {"name": "mlp", "classes": 10}},
            data=DIGITS,
            training={"epochs": 1, "batchSize": {"global": 64}},
        )
        kind.job(
            "absent",
            accelerator={"type": "v100"},
            program={"application": {"name": "mlp", "classes": 10}},
            data=DIGITS,
            training={"epochs": 1, "batchSize": {"global": 64}},
        )
        failed = condition(kind.finished("promised", "Failed"), "Failed")
        assert failed["reason"] == "InvalidSpec"
        assert node in failed["message"]
        assert "cpuFallback" in failed["message"]
        words = "didn't match Pod's node affinity/selector"
        kind.until("absent", lambda status: words in condition(status, "Running").get("message", ""))
        assert condition(kind.status("absent"), "Running")["reason"] == "Unschedulable"
    finally:
        configure({"cpuFallback": True})
        remove = [{"op": "remove", "path": "/status/capacity/nvidia.com~1gpu"}]
        kind.kubectl("patch", "node", node, "--subresource=status", "--type=json", "-p", json.dumps(remove))
        kind.kubectl("label", "node", node, "cloud.google.com/gke-accelerator-")
