"""The processes of a resolved job, which differ only in their index."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mptraining_api.launch import (
    ATTEMPT,
    HOSTS,
    INCARNATION,
    INDEX,
    JOB_FILE,
    MACHINE,
    WORKERS,
    WorkerIdentity,
    attempt_job,
    launch,
    tf_config,
)
from mptraining_api.problems import InvalidSpec
from mptraining_api.resolve.attempt import for_attempt
from mptraining_api.resolve.resolve import ClusterSettings, resolve
from mptraining_api.resolved_job import ResolvedJob
from mptraining_api.spec import MPTrainingJob

TWO_HOSTS = ("flowers-1-0.flowers:2222", "flowers-1-1.flowers:2222")


def job(**spec: Any) -> ResolvedJob:
    base = {"accelerator": {"type": "l4"}, "workers": 2, "program": {"script": {"path": "train.py"}}}
    return resolve(MPTrainingJob.parse({"metadata": {"name": "flowers"}, "spec": base | spec}), ClusterSettings())


def test_one_environment_for_all_processes() -> None:
    started = launch(job(), hosts=TWO_HOSTS, job_path="/etc/job.json", attempt=3)
    assert started.environment[JOB_FILE] == "/etc/job.json"
    assert started.environment[HOSTS] == ",".join(TWO_HOSTS)
    assert started.environment[ATTEMPT] == "3"
    assert INDEX not in started.environment
    assert ResolvedJob.read(started.job_file) == job()


def test_legacy_keras_and_hidden_gpus_are_set_before_tensorflow_is_imported() -> None:
    legacy = launch(job(), hosts=TWO_HOSTS, job_path="j", attempt=1).environment
    assert legacy["TF_USE_LEGACY_KERAS"] == "1"
    assert "CUDA_VISIBLE_DEVICES" not in legacy
    cpu = launch(job(accelerator={"type": "cpu"}, workers=1), hosts=("localhost:1",), job_path="j", attempt=1)
    assert "TF_USE_LEGACY_KERAS" not in cpu.environment
    assert cpu.environment["CUDA_VISIBLE_DEVICES"] == "-1"


def test_the_job_of_an_attempt_is_read_from_the_frozen_job_and_the_environment() -> None:
    accelerator = {"type": "l4", "alternatives": [{"type": "t4"}]}
    program = {"application": {"name": "mlp", "classes": 3}}
    spec = {"workers": None, "elastic": {"min": 1, "max": 2}, "program": program, "data": {"train": ["a"]}}
    frozen = job(accelerator=accelerator, **spec)
    attempt = for_attempt(frozen, machine=1, workers=1)
    started = launch(attempt, hosts=("a:1",), job_path="j", attempt=2, machine=1, workers=1)
    assert attempt_job(frozen, started.environment) == attempt
    assert (attempt.accelerator.type, attempt.workers) == ("t4", 1)
    first = launch(for_attempt(frozen), hosts=TWO_HOSTS, job_path="j", attempt=1)
    assert not {MACHINE, WORKERS} & first.environment.keys()
    assert attempt_job(frozen, first.environment) == for_attempt(frozen)


def test_a_seat_is_read_from_the_environment() -> None:
    environment = {HOSTS: ",".join(TWO_HOSTS), ATTEMPT: "2", INCARNATION: "uid", INDEX: "1"}
    identity = WorkerIdentity.from_environment(environment)
    assert (identity.index, identity.is_chief, identity.attempt, identity.incarnation) == (1, False, 2, "uid")
    config = json.loads(tf_config(identity))
    assert config == {"cluster": {"worker": list(TWO_HOSTS)}, "task": {"type": "worker", "index": 1}}
    assert WorkerIdentity.from_environment({}).is_chief
    with pytest.raises(ValueError, match="1 hosts for 2 workers"):
        launch(job(), hosts=("a:1",), job_path="j", attempt=1)


@pytest.mark.parametrize(("index", "said"), [("2", "at most 1"), ("one", "'one' is not a number")])
def test_a_seat_that_does_not_exist_is_refused(index: str, said: str) -> None:
    with pytest.raises(InvalidSpec, match=said):
        WorkerIdentity.from_environment({HOSTS: ",".join(TWO_HOSTS), INDEX: index})
