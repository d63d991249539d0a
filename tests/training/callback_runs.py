"""Attempts of a function program with callbacks, one after the other in one folder: for the tests of callbacks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.testbed.keras_generations import GENERATIONS
from tests.training import runs
from tests.training.runs import Run

Train = Callable[..., Run]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """100 rows to train on, 40 to validate."""
    folder = tmp_path_factory.mktemp("data")
    x, label = runs.numbers(140)
    runs.write_rows(folder, "train", x[:100], label[:100])
    runs.write_rows(folder, "validation", x[100:], label[100:])
    return folder


@pytest.fixture(params=GENERATIONS)
def generation(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def module_of(generation: str) -> ModuleType:
    """Return the program's module, as the last attempt has left it."""
    return sys.modules["tf_keras_program" if generation == "Legacy" else "keras_program"]


def in_order(data: Path) -> dict[str, Any]:
    """Return the section `data` of a job that reads the records as they are."""
    paths = {name: [f"{data}/{name}-*.tfrecord"] for name in ("train", "validation")}
    return paths | {"shuffle": {"bufferSize": 0}}


@pytest.fixture
def train(data: Path, program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Train]:
    """Runs one attempt after the other in one folder, of the function `name` of `program`, a module's fixture."""
    monkeypatch.syspath_prepend(tmp_path)
    attempts: dict[str, int] = {}

    def attempt(name: str, folder: str = "run", *, keras: str = "Keras3", **sections: Any) -> Run:
        package = "tf_keras" if keras == "Legacy" else "keras"
        (tmp_path / f"{package}_program.py").write_text(program.format(package=package))
        whole = folder if "://" in folder else str(tmp_path / folder)
        attempts[whole] = number = attempts.get(whole, 0) + 1
        function = {"entryPoint": f"{package}_program:{name}", "arguments": sections.pop("arguments", {})}
        spec = {
            "strategy": "None",
            "keras": keras,
            "program": {"function": function},
            "data": {name: [f"{data}/{name}-*.tfrecord"] for name in ("train", "validation")},
        } | sections
        spec["training"] = {"batchSize": {"global": 20}, "epochs": 3, "seed": 7} | sections.get("training", {})
        return runs.start(spec, whole, attempt=number)

    yield attempt
    for package in ("keras", "tf_keras"):
        sys.modules.pop(f"{package}_program", None)


def until(step: int) -> dict[str, Any]:
    return {"training": {"epochs": None, "totalSteps": step, "stepsPerExecution": 1}}
