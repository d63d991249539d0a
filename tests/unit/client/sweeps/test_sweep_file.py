"""Parameters of a sweep from the hyperparameters that its program asks for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mptraining.sweeps.sweep_file import parameters_of, with_parameters_of_program
from mptraining_api.events import Hyperparameter
from mptraining_api.problems import InvalidProgram, InvalidSpec
from mptraining_api.resolve.resolve import ClusterSettings
from mptraining_api.sweep.check import sweep_problems

Stub = Callable[[str], tuple[str, str]]
ARGUMENTS = "program.function.arguments"


def searched(name: str, kind: Any, **fields: Any) -> Hyperparameter:
    return Hyperparameter(path=f"{ARGUMENTS}.{name}", kind=kind, default=0, **fields)


@pytest.mark.parametrize(
    ("kind", "low", "high", "step", "sampling", "values"),
    [
        ("int", 32, 512, 32, "linear", {"int": {"low": 32, "high": 512, "step": 32}}),
        ("int", 8, 64, 2, "log", {"values": [8, 16, 32, 64]}),
        ("int", 1, 8, 2, "reverse_log", {"values": [8, 7, 5, 1]}),
        ("float", 1e-5, 0.1, None, "log", {"logUniform": {"low": 1e-5, "high": 0.1}}),
        ("float", 0.0, 0.5, 0.25, "linear", {"values": [0.0, 0.25, 0.5]}),
    ],
)
def test_the_values_of_a_hyperparameter(
    kind: str, low: float, high: float, step: float | None, sampling: str, values: dict[str, Any]
) -> None:
    parameters, notes = parameters_of([searched("x", kind, low=low, high=high, step=step, sampling=sampling)])
    assert parameters == [{"path": f"{ARGUMENTS}.x", **values}]
    assert notes == []


def test_sampling_that_a_sweep_does_not_have_is_noted_and_fixed_values_are_not_searched() -> None:
    by_log = searched("b", "int", low=1, high=99, sampling="log")
    boolean = searched("c", "boolean", values=(False, True))
    parameters, notes = parameters_of([searched("a", "fixed", values=(7,)), by_log, boolean])
    assert parameters == [
        {"path": f"{ARGUMENTS}.b", "int": {"low": 1, "high": 99}},
        {"path": f"{ARGUMENTS}.c", "values": [False, True]},
    ]
    assert notes == [f"{ARGUMENTS}.b: sampled uniformly, and not by log"]


REPORT = f"""
space = [dict(path="{ARGUMENTS}.layers", kind="choice", default=1, values=[1, 2]),
         dict(path="{ARGUMENTS}.width", kind="int", default=8, low=8, high=64, step=8, sampling="linear"),
         dict(path="{ARGUMENTS}.second", kind="int", default=8, low=8, high=64, sampling="linear",
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
    # Arguments that the job gives are not searched.
    for arguments, names in (({}, ["layers", "width", "second"]), ({"width": 16}, ["layers", "second"])):
        completed, _ = with_parameters_of_program(document(**arguments), tmp_path, command=reader(REPORT))
        parameters = completed["spec"]["parameters"]
        assert [parameter["path"].rpartition(".")[2] for parameter in parameters] == names
        assert parameters[-1]["when"] == {"path": f"{ARGUMENTS}.layers", "values": [2]}
        assert sweep_problems(completed, ClusterSettings()).problems == ()


def test_a_program_that_tells_no_hyperparameters_is_a_mistake(reader: Stub, tmp_path: Path) -> None:
    failed = reader("finish('InvalidProgram', 2, \"net:build has no parameter 'hp'\")")
    with pytest.raises(InvalidProgram, match="the program tells none: net:build has no parameter 'hp'"):
        with_parameters_of_program(document(), tmp_path, command=failed)
    none = reader("say('SearchSpace', hyperparameters=[]); finish('Succeeded', 0)")
    with pytest.raises(InvalidSpec, match="asks for no hyperparameter"):
        with_parameters_of_program(document(), tmp_path, command=none)


def test_written_parameters_and_mistakes_of_the_job_are_kept_without_asking(tmp_path: Path) -> None:
    written, wrong = document(), document()
    written["spec"]["parameters"] = [{"path": "training.epochs", "values": [1, 2]}]
    wrong["spec"]["job"]["traning"] = {}
    for unchanged in (written, wrong):
        assert with_parameters_of_program(unchanged, tmp_path, command=("false",)) == (unchanged, [])
