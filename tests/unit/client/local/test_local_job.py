"""A job on this machine: its paths, its devices, its folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mptraining.local.local_job import LocalJob
from mptraining.local.runner import (
    Machine,
    absolute_path,
    already_finished,
    inherited_environment,
    latest_attempt,
    source_folder,
    with_absolute_paths,
    worker_environment,
)
from mptraining_api.launch import Launch
from mptraining_api.problems import InvalidData
from mptraining_api.resolve.resolve import ClusterSettings, resolve
from mptraining_api.resolved_job import ResolvedJob
from mptraining_api.run_folder import Result
from mptraining_api.spec import MPTrainingJob
from tests.jobs import parsed_job

YAML = """\
apiVersion: mptraining.dev/v1alpha1
kind: MPTrainingJob
metadata: {name: flowers}
spec:
  accelerator: {type: cpu}
  program: {application: {name: mlp, classes: 3, weights: start.h5}}
  data: {train: ["records/train-*", "gs://bucket/more-*"], validation: [/data/val-*]}
"""
JOB = parsed_job(YAML)
HOME = Path("/home/ada/project")


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("records/train-*", "/home/ada/project/records/train-*"),
        ("../shared/x", "/home/ada/shared/x"),
        ("/data/x", "/data/x"),
        ("gs://bucket/x", "gs://bucket/x"),
        ("file:///data/x", "file:///data/x"),
    ],
)
def test_relative_paths_count_from_the_job_files_folder(path: str, expected: str) -> None:
    assert absolute_path(path, HOME) == expected


def test_a_local_run_makes_every_path_of_the_job_absolute() -> None:
    spec = with_absolute_paths(JOB, folder=HOME, default_output="/tmp/runs/flowers").spec.to_document()
    assert spec["data"]["train"] == ["/home/ada/project/records/train-*", "gs://bucket/more-*"]
    assert spec["data"]["validation"] == ["/data/val-*"]
    assert spec["program"]["application"]["weights"] == "/home/ada/project/start.h5"
    assert spec["output"]["uri"] == "/tmp/runs/flowers"


def test_the_jobs_own_output_counts_before_the_default_and_the_option_before_both() -> None:
    for output, uri in ((None, "/home/ada/project/out"), ("/chosen", "/chosen")):
        job = parsed_job(YAML + "  output: {uri: out}\n")
        placed = with_absolute_paths(job, folder=HOME, default_output="/default", output=output)
        assert placed.to_document()["spec"]["output"] == {"uri": uri}


@pytest.mark.parametrize(
    ("source", "folders", "expected"),
    [
        pytest.param(True, ["source"], "source", id="with spec.source it is source/"),
        pytest.param(True, [], ".", id="no such folder: the job file's own"),
        pytest.param(False, ["source"], ".", id="without spec.source: the job file's own"),
    ],
)
def test_where_the_programs_code_is(tmp_path: Path, source: bool, folders: list[str], expected: str) -> None:
    for folder in folders:
        (tmp_path / folder).mkdir()
    text = YAML.replace("{application: {name: mlp, classes: 3, weights: start.h5}}", "{function: {entryPoint: a:b}}")
    if source:
        text += "  source: {configMap: {name: flowers-source}}\n"
    job = with_absolute_paths(parsed_job(text), folder=tmp_path, default_output=str(tmp_path / "run"))
    assert source_folder(resolve(job, ClusterSettings()), tmp_path) == tmp_path / expected


@pytest.mark.parametrize(
    ("gpu", "tpu", "kind", "lacks"),
    [
        (False, False, "cpu", False),
        (False, False, "gpu", True),
        (True, False, "gpu", False),
        (True, False, "tpu", True),
    ],
)
def test_what_a_machine_lacks(gpu: bool, tpu: bool, kind: Any, lacks: bool) -> None:
    assert Machine(gpu=gpu, tpu=tpu).lacks(kind) is lacks


def trained(**training: Any) -> ResolvedJob:
    job = resolve(JOB, ClusterSettings())
    assert job.training
    update = {"epochs": None, "total_steps": None} | training
    return job.model_copy(update={"training": job.training.model_copy(update=update)})


def ended(reason: str = "Succeeded", step: int = 500, attempt: int = 1) -> Result:
    fields: dict[str, Any] = dict.fromkeys(Result.model_fields)
    fields |= {"reason": reason, "step": step, "attempt": attempt}
    return Result.model_construct(**fields)


@pytest.mark.parametrize(
    ("before", "result", "latest", "now", "finished"),
    [
        pytest.param({"epochs": 5}, ended(), 1, {"epochs": 5}, True, id="the same again"),
        pytest.param({"epochs": 5}, ended(), 1, {"epochs": 3}, True, id="less"),
        pytest.param({"epochs": 5}, ended(), 1, {"epochs": 6}, False, id="more epochs"),
        pytest.param({"epochs": 5}, ended(), 1, {"total_steps": 500}, True, id="as many steps"),
        pytest.param({"epochs": 5}, ended(), 1, {"total_steps": 501}, False, id="more steps"),
        pytest.param({"total_steps": 9}, ended(), 1, {"epochs": 5}, False, id="only the trainer can compare"),
        pytest.param({"epochs": 5}, ended("Diverged"), 1, {"epochs": 5}, False, id="it had failed"),
        pytest.param({"epochs": 6}, ended(), 2, {"epochs": 6}, False, id="a later attempt was cut off"),
        pytest.param({"epochs": 5}, ended(), 1, {"epochs": 5, "resume": "Never"}, False, id="to start anew"),
        pytest.param({"epochs": 5}, ended(), 1, {"epochs": 5, "steps_per_epoch": 9}, False, id="other epochs"),
    ],
)
def test_already_finished(
    before: dict[str, Any], result: Result, latest: int, now: dict[str, Any], finished: bool
) -> None:
    assert already_finished(trained(**before), result, latest, trained(**now)) is finished
    assert latest_attempt([f"events/{latest}-5d0c-11-0-0.jsonl", "events/notes.txt", "12"]) == latest


def test_environment_of_a_worker() -> None:
    hosts = ("127.0.0.1:1", "127.0.0.1:2")
    launch = Launch(command=("x",), environment={"MPTRAINING_ATTEMPT": "2"}, job_file="{}", hosts=hosts)
    inherited = {"HOME": "/home/ada", "no_proxy": "local"}
    environment = worker_environment(launch, 1, inherited=inherited, incarnation="a-b", folder=HOME, gpus="2,3")
    assert environment == {
        "HOME": "/home/ada", "JOB_COMPLETION_INDEX": "1", "MPTRAINING_ATTEMPT": "2", "MPTRAINING_INCARNATION": "a-b",
        "MPTRAINING_OUTPUT_KEPT": "1", "MPTRAINING_PROGRESS_SECONDS": "0.5", "MPTRAINING_SOURCE_FOLDER": str(HOME),
        "no_proxy": "local,127.0.0.1", "no_grpc_proxy": "127.0.0.1", "CUDA_VISIBLE_DEVICES": "2,3",
    }  # fmt: skip


def test_what_workers_inherit() -> None:
    said = {"TF_USE_LEGACY_KERAS": "1", "A": "b"}

    def inherited(**spec: Any) -> dict[str, str]:
        program = {"script": {"path": "train.py"}}
        document = {"metadata": {"name": "a"}, "spec": {"accelerator": {"type": "cpu"}, "program": program, **spec}}
        document |= {"apiVersion": "mptraining.dev/v1alpha1", "kind": "MPTrainingJob"}
        return inherited_environment(resolve(MPTrainingJob.parse(document), ClusterSettings(cpu_fallback=True)), said)

    assert inherited() == {"A": "b"}
    assert inherited(keras="Legacy") == said
    assert inherited(accelerator={"type": "t4", "countPerWorker": 2})["TF_ENABLE_ONEDNN_OPTS"] == "0"


def test_a_trained_model_is_opened_where_it_is(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mptraining.cluster.trained_model.load_model", lambda folder: folder)
    job = LocalJob("flowers", str(here / "flowers"), exit_code=1)
    with pytest.raises(InvalidData, match=r"flowers: there is no model in it\. See why: mptj logs \./flowers$"):
        job.model()
    (here / "flowers" / "model").mkdir(parents=True)
    (here / "flowers" / "model" / "model.json").touch()
    assert job.model() == here / "flowers" / "model"
