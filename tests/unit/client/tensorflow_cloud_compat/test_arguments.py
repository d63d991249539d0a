"""tensorflow-cloud's public behaviour as a table: its arguments, its messages, the job that comes of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from mptraining.packaging.program import job_name, merge
from mptraining.tensorflow_cloud_compat.arguments import InvalidArgument, check_arguments
from mptraining.tensorflow_cloud_compat.launch import document
from mptraining_api.accelerators import catalogue
from mptraining_api.problems import InvalidSpec
from mptraining_api.resolve.resolve import ClusterSettings, resolve
from mptraining_api.spec import JOB_NAME, MPTrainingJob
from mptraining_api.tensorflow_cloud.machine_configs import (
    CATALOGUE,
    COMMON_MACHINE_CONFIGS,
    REPLACEMENTS,
    AcceleratorType,
    DockerConfig,
    MachineConfig,
)
from tests.unit.client.test_tensorflow_cloud import ARGUMENTS

TABLE = Path(__file__).parents[3] / "golden" / "tensorflow_cloud.yaml"
CASES = yaml.load(TABLE.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
DEFAULTS: dict[str, Any] = ARGUMENTS | {"entry_point": "train.py"}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("train.py", "train.ipynb", "requirements.txt", "notes.md"):
        (tmp_path / name).touch()


def arguments(case: dict[str, Any]) -> dict[str, Any]:
    """Return a case's arguments as Python values: T4_4X a common machine, [8, 30, V100, 2] one of the user's own."""
    given = DEFAULTS | case["given"]
    for name in ("chief_config", "worker_config"):
        value = given[name]
        if isinstance(value, list):
            given[name] = MachineConfig(value[0], value[1], AcceleratorType(value[2]), value[3])
        elif value in COMMON_MACHINE_CONFIGS:
            given[name] = COMMON_MACHINE_CONFIGS[value]
    if isinstance(given["docker_config"], dict):
        given["docker_config"] = DockerConfig(**given["docker_config"])
    if "labels" in case:
        given["job_labels"] = {f"key{number}": "value" for number in range(case["labels"])}
    return given


@pytest.mark.parametrize("case", CASES["refused"], ids=lambda case: case["name"])
def test_refused(case: dict[str, Any]) -> None:
    with pytest.raises(ValueError) as caught:
        check_arguments(**arguments(case))
    assert str(caught.value) == case["message"]


@pytest.mark.parametrize("case", CASES["jobs"], ids=lambda case: case["name"])
def test_the_job(case: dict[str, Any]) -> None:
    found = check_arguments(**arguments(case))
    program = {"script": {"path": "train.py"}}
    made = document(found, name="train-1", program=program)
    spec = dict(made["spec"])
    assert spec.pop("program") == program
    assert spec == case["spec"]
    assert made["metadata"] == {"name": "train-1", **case.get("metadata", {})}
    assert list(found.notes) == case.get("notes", [])
    assert found.bucket == case.get("bucket")
    # The strategy that tensorflow-cloud selects; for one device it is OneDeviceStrategy, ours is none.
    assert resolve(MPTrainingJob.parse(made), ClusterSettings()).strategy == case["strategy"]


def test_every_default_is_a_case() -> None:
    assert any(not case["given"] for case in CASES["jobs"])
    used = {name for case in [*CASES["jobs"], *CASES["refused"]] for name in case["given"]}
    assert used >= DEFAULTS.keys() - {"job_labels"}


def test_a_refusal_is_a_value_error_and_a_problem() -> None:
    with pytest.raises(InvalidSpec) as caught:
        check_arguments(**DEFAULTS | {"stream_logs": 1})
    assert isinstance(caught.value, InvalidArgument)
    assert isinstance(caught.value, ValueError)
    # The same in a notebook.
    assert caught.value._render_traceback_() == [f"InvalidArgument: {caught.value}"]


# Machines.


def test_the_common_machines_are_tensorflow_cloud_s() -> None:
    told = {
        name: (each.cpu_cores, each.memory, each.accelerator.value, each.accelerator_count)
        for name, each in COMMON_MACHINE_CONFIGS.items()
    }
    assert told.items() >= {name: tuple(shape) for name, shape in CASES["common"].items()}.items()


def test_every_accelerator_is_in_the_catalogue_or_is_replaced() -> None:
    assert {*CATALOGUE, *REPLACEMENTS} == {*AcceleratorType}
    assert set(CATALOGUE.values()) <= catalogue().keys()
    assert {near for each in REPLACEMENTS.values() for near in each} <= CATALOGUE.keys()
    machine = MachineConfig()
    assert (machine.accelerator_type, machine.accelerator_count) == (AcceleratorType.NVIDIA_TESLA_T4, 1)
    assert AcceleratorType.NVIDIA_TESLA_K80 in AcceleratorType.all()


@pytest.mark.parametrize("name", COMMON_MACHINE_CONFIGS)
def test_every_common_machine_is_a_job(name: str) -> None:
    machine = COMMON_MACHINE_CONFIGS[name]
    tpu = machine.accelerator.is_tpu
    given = {"worker_config": machine, "worker_count": 1} if tpu else {"chief_config": machine}
    made = document(check_arguments(**DEFAULTS | given), name="a", program={"script": {"path": "train.py"}})
    resolved = resolve(MPTrainingJob.parse(made), ClusterSettings())
    assert resolved.workers == 1
    if not tpu:
        assert resolved.replicas == max(1, machine.accelerator_count)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"accelerator_type": "T4"}, "Invalid accelerator key provided: T4."),
        ({"accelerator_count": -1}, "Invalid machine configuration: cpu_cores:8, memory:30"),
        ({"memory": "16"}, "Invalid machine configuration"),
    ],
)
def test_what_is_no_machine(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MachineConfig(**given)


def test_a_slice_that_no_machine_has() -> None:
    machine = MachineConfig(None, None, AcceleratorType.TPU_V5E, 3)
    found = check_arguments(**DEFAULTS | {"worker_config": machine, "worker_count": 1})
    with pytest.raises(
        InvalidArgument, match=r"No machine has accelerator_count=3 of TPU v5e slice. There are 1, 4, 8"
    ):
        document(found, name="a", program={})


# Names, and fields of the user's own.


@pytest.mark.parametrize(
    ("stem", "name"),
    [
        ("My Flowers (2)", "my-flowers-2-a1b2c3"),
        ("03_mnist", "job-03-mnist-a1b2c3"),
        ("_", "job-a1b2c3"),
        ("x" * 42 + "-yyy", "x" * 42 + "-a1b2c3"),
    ],
)
def test_a_job_s_name(stem: str, name: str) -> None:
    assert job_name(stem, "a1b2c3") == name
    assert JOB_NAME.fullmatch(name)


def test_the_users_part_of_the_spec_wins() -> None:
    base = {"a": {"b": 1, "c": 2}, "d": [1], "e": 1}
    assert merge(base, {"a": {"b": 3}, "d": [2], "e": None, "f": {"g": 1}}) == {
        "a": {"b": 3, "c": 2}, "d": [2], "f": {"g": 1},
    }  # fmt: skip
    made = document(check_arguments(**DEFAULTS), name="a", program={}, output="gs://b/run", spec={"keras": "Legacy"})
    assert made["spec"]["keras"] == "Legacy"
    assert made["spec"]["output"] == {"uri": "gs://b/run"}
