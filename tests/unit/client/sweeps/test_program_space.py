"""Parameters of a sweep from the hyperparameters that its program asks for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mptraining.sweeps.program_space import parameters_of, with_parameters_of_program
from mptraining_api.problems import InvalidProgram, InvalidSpec
from mptraining_api.resolve.resolve import ClusterSettings
from mptraining_api.sweep.check import sweep_problems

Stub = Callable[[str], tuple[str, str]]
ARGUMENTS = "program.function.arguments"


@pytest.mark.parametrize(
    ("reported", "values"),
    [
        pytest.param({"kind": "int", "low": 32, "high": 512, "step": 32, "sampling": "linear"}, {"int": {"low": 32,
         "high": 512, "step": 32}}, id="an integer"),
        pytest.param({"kind": "int", "low": 8, "high": 64, "step": 2, "sampling": "log"}, {"values": [8, 16, 32, 64]},
         id="a factor"),
        pytest.param({"kind": "int", "low": 1, "high": 8, "step": 2, "sampling": "reverse_log"}, {"values": [8, 7, 5,
         1]}, id="a factor from the upper end"),
        pytest.param({"kind": "float", "low": 1e-5, "high": 0.1, "step": None, "sampling": "log"},
         {"logUniform": {"low": 1e-5, "high": 0.1}}, id="a logarithmic number"),
        pytest.param({"kind": "float", "low": 0.0, "high": 0.5, "step": 0.25, "sampling": "linear"}, {"values": [0.0,
         0.25, 0.5]}, id="steps of a number"),
        pytest.param({"kind": "boolean", "values": [False, True]}, {"values": [False, True]}, id="a boolean"),
    ],
)  # fmt: skip
def test_the_values_of_a_hyperparameter(reported: dict[str, Any], values: dict[str, Any]) -> None:
    parameters, notes = parameters_of([{"path": f"{ARGUMENTS}.x", **reported}])
    assert parameters == [{"path": f"{ARGUMENTS}.x", **values}]
    assert notes == []


def test_sampling_that_a_sweep_does_not_have_is_noted_and_fixed_values_are_not_searched() -> None:
    parameters, notes = parameters_of(
        [
            {"path": f"{ARGUMENTS}.a", "kind": "fixed", "values": [7]},
            {"path": f"{ARGUMENTS}.b", "kind": "int", "low": 1, "high": 99, "sampling": "log"},
        ]
    )
    assert parameters == [{"path": f"{ARGUMENTS}.b", "int": {"low": 1, "high": 99}}]
    assert notes == [f"{ARGUMENTS}.b: sampled uniformly, and not by log"]


REPORT = f"""
space = [dict(path="{ARGUMENTS}.layers", kind="choice", values=[1, 2]),
         dict(path="{ARGUMENTS}.width", kind="int", low=8, high=64, step=8, sampling="linear"),
         dict(path="{ARGUMENTS}.second", kind="int", low=8, high=64, sampling="linear",
              when=[dict(path="{ARGUMENTS}.layers", values=[2])])]
say("SearchSpace", hyperparameters=space)
finish("Succeeded", 0)
"""


def document(**arguments: Any) -> dict[str, Any]:
    function = {"entryPoint": "net:build", **({"arguments": arguments} if arguments else {})}
    return {
        "apiVersion": "mptraining.dev/v1alpha1",
        "kind": "MPTrainingSweep",
        "metadata": {"name": "digits"},
        "spec": {
            "objective": {"metric": "val_loss", "direction": "Minimize"},
            "algorithm": {"name": "Random"},
            "job": {
                "accelerator": {"type": "cpu"},
                "program": {"function": function},
                "data": {"train": ["gs://b/train"], "validation": ["gs://b/val"]},
                "training": {"epochs": 2, "loss": {"className": "MeanSquaredError"}},
            },
        },
    }


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch, stub: Stub) -> Callable[[str], tuple[str, str]]:
    """Returns the command of a trainer's verb, whose events need no launch."""
    for name, value in (("JOB_COMPLETION_INDEX", "0"), ("MPTRAINING_ATTEMPT", "1"), ("MPTRAINING_INCARNATION", "x")):
        monkeypatch.setenv(name, value)
    return stub


def test_a_sweep_without_parameters_searches_those_of_its_program(reader: Stub, tmp_path: Path) -> None:
    found, _ = with_parameters_of_program(document(), tmp_path, command=reader(REPORT))
    paths = [each["path"].rpartition(".")[2] for each in found["spec"]["parameters"]]
    assert paths == ["layers", "width", "second"]
    assert found["spec"]["parameters"][2]["when"] == {"path": f"{ARGUMENTS}.layers", "values": [2]}
    assert sweep_problems(found, ClusterSettings()).problems == ()


def test_arguments_that_the_job_gives_are_not_searched(reader: Stub, tmp_path: Path) -> None:
    found, _ = with_parameters_of_program(document(width=16), tmp_path, command=reader(REPORT))
    assert [each["path"].rpartition(".")[2] for each in found["spec"]["parameters"]] == ["layers", "second"]


def test_a_program_that_tells_no_hyperparameters_is_a_mistake(reader: Stub, tmp_path: Path) -> None:
    failed = reader("finish('InvalidProgram', 2, \"net:build has no parameter 'hp'\")")
    with pytest.raises(InvalidProgram, match="the program tells none: net:build has no parameter 'hp'"):
        with_parameters_of_program(document(), tmp_path, command=failed)
    none = reader("say('SearchSpace', hyperparameters=[]); finish('Succeeded', 0)")
    with pytest.raises(InvalidSpec, match="asks for no hyperparameter"):
        with_parameters_of_program(document(), tmp_path, command=none)


def test_written_parameters_are_kept_without_asking(tmp_path: Path) -> None:
    written = document()
    written["spec"]["parameters"] = [{"path": "training.epochs", "values": [1, 2]}]
    assert with_parameters_of_program(written, tmp_path, command=("false",)) == (written, [])


def test_mistakes_of_the_job_are_left_to_the_check(tmp_path: Path) -> None:
    wrong = document()
    wrong["spec"]["job"]["traning"] = {}
    assert with_parameters_of_program(wrong, tmp_path, command=("false",)) == (wrong, [])
