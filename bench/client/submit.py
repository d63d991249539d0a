"""Processes that do what a notebook does, and the folders and clusters that they use."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import yaml

from bench.figures import progress
from bench.rounds import ROOT
from kind.engine import Failed
from kind.kubectl import KUBECONFIG, kubectl
from tests.testbed import ControlPlane, Options
from tests.testbed.credentials import ADMIN_TOKEN

NAMESPACE = "bench-clients"

_IMPORT = "import time; began = time.process_time(); import {}; print(time.process_time() - began)"
# Two layers, one step: the time before it is measured.
_TRAIN = """
import keras
import numpy as np

model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
model.compile("adam", "mse")
said = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: print("first step done", flush=True))
model.fit(np.ones((32, 3), "float32"), np.ones((32, 1), "float32"), epochs=1, verbose=0, callbacks=[said])
"""
# This model is not fetched.
_SPEC = {"podTemplate": {"env": [{"name": "MPTRAINING_MODEL_WAIT_SECONDS", "value": "0"}]}}
_RUN = """
import sys, time
import mptraining.tensorflow_cloud as tfc

began, spent = time.monotonic(), time.process_time()
job = tfc.run("train.py", chief_config=tfc.COMMON_MACHINE_CONFIGS["CPU"], spec={spec!r})
if sys.argv[1] == "first step":
    assert any("first step done" in line for line in job.log_lines(follow=True)), job.status()
seconds, cpu = time.monotonic() - began, time.process_time() - spent
job.cancel()
print(seconds, cpu)
"""


@dataclass(frozen=True)
class Place:
    """A folder with `train.py`, and the kubeconfig of a namespace, to submit a program."""

    folder: Path
    kubeconfig: Path


def cpu_of_import(module: str) -> float:
    """Return the CPU seconds, of all threads, that `import module` takes in a new interpreter."""
    return float(_output([sys.executable, "-c", _IMPORT.format(module)]))


def seconds_to(moment: Literal["created", "first step"], place: Place) -> float:
    """Return the seconds from the call of `tfc.run` in a new process, after the module was imported. Prints the CPU
    time.
    """
    command = [sys.executable, "-c", _RUN.format(spec=_SPEC), moment]
    output = _output(command, folder=place.folder, KUBECONFIG=str(place.kubeconfig))
    seconds, cpu = map(float, output.splitlines()[-1].split())
    progress(f"  {moment}: {seconds:.2f} s, of which this process computed {cpu:.2f} s")
    return seconds


@contextmanager
def on_control_plane(folder: Path) -> Iterator[Place]:
    """Use etcd and API server of this machine alone: no operator reconciles the jobs."""
    with ControlPlane(folder / "servers", Options(controller_manager=False)) as servers:
        servers.rest.post("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        kubeconfig = servers.kubeconfig("bench", ADMIN_TOKEN, namespace=NAMESPACE)
        yield Place(_program(folder), kubeconfig)


@contextmanager
def on_kind(folder: Path) -> Iterator[Place | None]:
    """Use a separate namespace on the cluster of `make cluster`; None without one that serves MPTrainingJobs."""
    try:
        kubectl("get", "crd/mptrainingjobs.mptraining.dev", "--request-timeout=10s")
    except Failed as failed:
        progress(str(failed))
        yield None
        return
    document = yaml.safe_load(KUBECONFIG.read_text(encoding="utf-8"))
    for each in document["contexts"]:
        each["context"]["namespace"] = NAMESPACE
    kubeconfig = folder / "kubeconfig"
    kubeconfig.write_text(yaml.safe_dump(document), encoding="utf-8")
    kubectl("create", "namespace", NAMESPACE)
    try:
        yield Place(_program(folder), kubeconfig)
    finally:
        kubectl("delete", "namespace", NAMESPACE, "--wait=false", check=False)


def _program(folder: Path) -> Path:
    program = folder / "program"
    program.mkdir()
    (program / "train.py").write_text(_TRAIN, encoding="utf-8")
    return program


def _output(command: list[str], *, folder: Path = ROOT, **environment: str) -> str:
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    if done.returncode != 0:
        progress(done.stdout[-2000:] + done.stderr[-2000:])
        raise RuntimeError(f"{command[0]} ended with {done.returncode}")
    return done.stdout
