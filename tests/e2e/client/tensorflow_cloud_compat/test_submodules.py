"""The real tensorflow-cloud: our messages and strategies are its own, and `install` redirects its `run` to ours.

It runs in an environment of its own (`build/env/tensorflow-cloud`), in one process, since its import takes seconds.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from mptraining_api.tensorflow_cloud.machine_configs import COMMON_MACHINE_CONFIGS

ROOT = Path(__file__).parents[4]
PYTHON = ROOT / "build" / "env" / "tensorflow-cloud" / "bin" / "python"
TABLE = ROOT / "tests" / "golden" / "tensorflow_cloud.yaml"

pytestmark = [
    pytest.mark.skipif(not PYTHON.exists(), reason="run: make build/env/tensorflow-cloud/.installed"),
]

ASK = """
import json, sys, re
import yaml
import tensorflow_cloud as tfc
from tensorflow_cloud.core import preprocess, validate

cases = yaml.safe_load(open(sys.argv[1]))
defaults = dict(entry_point="train.py", distribution_strategy="auto", chief_config="auto", worker_config="auto")

def given(case):
    values = defaults | case["given"]
    for name in ("chief_config", "worker_config"):
        value = values[name]
        if isinstance(value, list):
            values[name] = tfc.MachineConfig(value[0], value[1], tfc.AcceleratorType(value[2]), value[3])
        elif value in tfc.COMMON_MACHINE_CONFIGS:
            values[name] = tfc.COMMON_MACHINE_CONFIGS[value]
    if isinstance(values.get("docker_config"), dict):
        values["docker_config"] = tfc.DockerConfig(**values["docker_config"])
    if "labels" in case:
        values["job_labels"] = {f"key{number}": "value" for number in range(case["labels"])}
    return values

told = {"messages": {}, "strategies": {}, "common": {}, "installed": {}}
for name, each in tfc.COMMON_MACHINE_CONFIGS.items():
    told["common"][name] = [each.cpu_cores, each.memory, each.accelerator_type.value, each.accelerator_count]

# Before: what tensorflow-cloud says by itself.
for case in cases["refused"]:
    if case.get("theirs", True):
        try:
            tfc.run(**given(case))
        except ValueError as error:
            told["messages"][case["name"]] = str(error)
t4 = tfc.COMMON_MACHINE_CONFIGS["T4_1X"]
for case in cases["jobs"]:
    # Where the case needs a machine that tensorflow-cloud does not know, there is nothing to compare.
    try:
        values = given(case)
    except ValueError:
        continue
    chief, worker = (t4 if values[name] == "auto" else values[name] for name in ("chief_config", "worker_config"))
    if values["distribution_strategy"] is None:
        continue
    path = preprocess.get_preprocessed_entry_point(
        "train.py", chief, worker, int(values.get("worker_count", 0)), values["distribution_strategy"])
    strategy = r"tf\\.distribute\\.(?:experimental\\.)?(\\w+Strategy)\\("
    told["strategies"][case["name"]] = re.findall(strategy, open(path).read())

# After: its run makes jobs.
import mptraining.tensorflow_cloud as ours
from mptraining.cluster import submit as submission
from mptraining_api.problems import Problem
made = []

class Job(dict):
    warnings = ()

    def logs(self, follow):
        self["shown"] = follow

def submit(document, *, package, where, archives):
    made.append(dict(document=document, files=[file.path for file in package.files], archives=archives))
    return Job(job_id=document["metadata"]["name"], docker_image=None)

submission.submit = submit
ours.install(output="gs://bucket/run", spec={"keras": "Legacy"})
ours.install(output="gs://bucket/run", spec={"keras": "Legacy"})
told["installed"]["returned"] = tfc.run(
    "train.py", chief_config=tfc.COMMON_MACHINE_CONFIGS["V100_4X"], worker_config=tfc.COMMON_MACHINE_CONFIGS["V100_4X"],
    worker_count=2, entry_point_args=["--lr=0.1"], job_labels={"team": "vision"}, stream_logs=True,
    docker_config=tfc.DockerConfig(image_build_bucket="builds"))
tfc.run("train.py", distribution_strategy=None)
tfc.run("train.ipynb", requirements_txt="requirements.txt")
tfc.run("train.py", worker_config=tfc.COMMON_MACHINE_CONFIGS["TPU"], worker_count=1)
image = tfc.DockerConfig(image="p/i:1")
told["installed"]["tuners"] = tfc.run_cloudtuner(2, entry_point="train.py", docker_config=image)
try:
    tfc.run("train.py", chief_config=tfc.MachineConfig(8, 30, tfc.AcceleratorType.NVIDIA_TESLA_K80, 3))
except Problem as problem:
    told["installed"]["refused"] = str(problem)
# Another machine than AI Platform's.
tfc.run("train.py", chief_config=tfc.MachineConfig(7, 20, tfc.AcceleratorType.NVIDIA_TESLA_T4, 2))
told["installed"]["made"] = made
json.dump(told, open("told.json", "w"))
"""


def asked(folder: Path) -> dict[str, Any]:
    for name in ("train.py", "notes.md", "requirements.txt"):
        (folder / name).write_text("")
    cell = {"cell_type": "code", "source": "!pip install einops", "metadata": {}, "outputs": [], "execution_count": 1}
    (folder / "train.ipynb").write_text(
        json.dumps({"cells": [cell], "nbformat": 4, "nbformat_minor": 5, "metadata": {}})
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MPTRAINING_")}
    done = subprocess.run(
        [PYTHON, "-c", ASK, TABLE],
        cwd=folder,
        env=environment,
        capture_output=True,
        check=False,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    found: dict[str, Any] = json.loads((folder / "told.json").read_text())
    return found


CASES = yaml.load(TABLE.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)


def our_messages_are_its_own(told: dict[str, Any]) -> None:
    # The message may end with a next step.
    ours = {case["name"]: case["message"] for case in CASES["refused"] if case.get("theirs", True)}
    assert told["messages"].keys() == ours.keys()
    assert {name: said for name, said in told["messages"].items() if not ours[name].startswith(said.rstrip("."))} == {}


def our_strategies_are_its_own(told: dict[str, Any]) -> None:
    names = {"MultiWorkerMirrored": "MultiWorkerMirroredStrategy", "TPU": "TPUStrategy", "Mirrored": "MirroredStrategy"}
    ours = {}
    for case in CASES["jobs"]:
        name = names.get(case["strategy"], "")
        if case["strategy"] == "None" and "strategy" not in case["spec"]:
            # One device: the script runs without a strategy, which computes the same.
            name = "OneDeviceStrategy"
        ours[case["name"]] = [name]
    assert len(told["strategies"]) >= 12
    assert told["strategies"] == {name: ours[name] for name in told["strategies"]}


def our_common_machines_are_its_own(told: dict[str, Any]) -> None:
    ours = {
        name: [each.cpu_cores, each.memory, each.accelerator.value, each.accelerator_count]
        for name, each in COMMON_MACHINE_CONFIGS.items()
    }
    assert told["common"].items() <= ours.items()


def its_run_makes_a_job(told: dict[str, Any]) -> None:
    installed = told["installed"]
    first = installed["made"][0]
    assert first["document"]["spec"] == {
        "accelerator": {"type": "nvidia-tesla-v100", "countPerNode": 4},
        "nodes": 3,
        "program": {"script": {"path": "train.py", "arguments": ["--lr=0.1"]}},
        "output": {"uri": "gs://bucket/run"},
        "podTemplate": {
            "labels": {"team": "vision"},
            "env": [
                {"name": "KERASTUNER_TUNER_ID", "value": first["document"]["spec"]["podTemplate"]["env"][0]["value"]}
            ],
        },
        "keras": "Legacy",
    }
    assert first["archives"] == "gs://builds/mptraining/source"
    assert installed["returned"]["job_id"] == first["document"]["metadata"]["name"]
    assert installed["returned"]["docker_image"].startswith("mptraining/")


def strategy_notebook_and_tpu_come_through(told: dict[str, Any]) -> None:
    own, notebook, tpu = (each["document"]["spec"] for each in told["installed"]["made"][1:4])
    assert own["strategy"] == "None"
    assert "strategy" not in notebook
    assert notebook["program"] == {"script": {"path": "train_notebook.py"}}
    assert "requirements-of-the-job.txt" in told["installed"]["made"][2]["files"]
    assert tpu["accelerator"] == {"type": "tpu-v3-device", "topology": "2x2"}


def tuners_machines_and_refusals(told: dict[str, Any]) -> None:
    installed = told["installed"]
    tuners = [each["document"] for each in installed["made"][4:6]]
    assert installed["tuners"]["job_ids"] == [each["metadata"]["name"] for each in tuners]
    assert installed["tuners"]["docker_image"] == "p/i:1"
    assert len({each["spec"]["podTemplate"]["env"][0]["value"] for each in tuners}) == 2
    assert all("arguments" not in each["spec"]["program"]["script"] for each in tuners)
    assert "COMMON_MACHINE_CONFIGS['T4_4X']" in installed["refused"]
    shape = installed["made"][6]["document"]["spec"]
    assert shape["accelerator"] == {"type": "nvidia-tesla-t4", "countPerNode": 2}
    assert shape["podTemplate"]["resources"] == {"requests": {"cpu": 7, "memory": "20000M"}}


def test_the_real_package(tmp_path: Path) -> None:
    told = asked(tmp_path)
    our_messages_are_its_own(told)
    our_strategies_are_its_own(told)
    our_common_machines_are_its_own(told)
    its_run_makes_a_job(told)
    strategy_notebook_and_tpu_come_through(told)
    tuners_machines_and_refusals(told)
