"""The processes of a search with KerasTuner on several nodes: devices, strategy, and KerasTuner's variables."""

from __future__ import annotations

from typing import Any

import pytest

from mptraining_api.launch import TRAINER_PORT, WorkerIdentity
from mptraining_api.resolve.resolve import ClusterSettings, resolve
from mptraining_api.resolved_job import ResolvedJob
from mptraining_api.spec import MPTrainingJob
from mptraining_trainer.scripts.tuner_search import ORACLE_IP, ORACLE_PORT, TUNER_ID, oracle_variables


def resolved(*, cpu_fallback: bool = False, tuner: str | None = "KerasTuner", **spec: Any) -> ResolvedJob:
    document = {
        "accelerator": {"type": "nvidia-tesla-t4", "countPerNode": 4},
        "nodes": 3,
        "program": {"script": {"path": "tune.py"} | ({"tuner": tuner} if tuner else {})},
        "output": {"uri": "gs://bucket/run"},
    } | spec
    return resolve(
        MPTrainingJob.parse({"metadata": {"name": "tune"}, "spec": document}),
        ClusterSettings(cpu_fallback=cpu_fallback),
    )


def identity(index: int) -> WorkerIdentity:
    hosts = tuple(f"tune-1-{each}.mptraining-workers:{TRAINER_PORT}" for each in range(3))
    return WorkerIdentity(index=index, hosts=hosts, attempt=1, incarnation="a")


def test_each_tuner_trains_on_its_own_devices() -> None:
    together = resolved()
    assert (together.processes, together.replicas_per_process, together.replicas) == (3, 4, 4)
    assert (together.strategy, together.keras) == ("Mirrored", "Keras3")
    assert together.searches_together
    apart = resolved(tuner=None)
    assert (apart.replicas, apart.strategy, apart.keras) == (12, "MultiWorkerMirrored", "Legacy")
    assert not apart.searches_together


def test_a_tuner_with_one_device_has_no_strategy_without_accelerators_too() -> None:
    one = {"type": "nvidia-tesla-t4", "countPerNode": 1}
    assert resolved(accelerator=one).strategy == "None"
    fallback = resolved(cpu_fallback=True, accelerator=one)
    assert (fallback.processes, fallback.replicas, fallback.strategy) == (3, 1, "None")


def test_worker_0_is_the_chief_and_each_other_worker_a_tuner() -> None:
    assert oracle_variables(identity(0))[TUNER_ID] == "chief"
    assert [oracle_variables(identity(index))[TUNER_ID] for index in (1, 2)] == ["tuner1", "tuner2"]


@pytest.mark.parametrize("index", [0, 2])
def test_the_oracle_listens_where_no_other_pod_may_connect(index: int) -> None:
    """On the port of the workers, from which the job's NetworkPolicy keeps all other pods."""
    found = oracle_variables(identity(index))
    assert found[ORACLE_IP] == "tune-1-0.mptraining-workers"
    assert found[ORACLE_PORT] == str(TRAINER_PORT)
