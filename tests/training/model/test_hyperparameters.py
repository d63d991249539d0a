"""Functions that take KerasTuner's HyperParameters: their search space and the values of a job."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mptraining_api import events
from mptraining_api.events import Hyperparameter
from mptraining_api.launch import JOB_FILE, SOURCE_FOLDER
from mptraining_api.problems import InvalidProgram
from mptraining_api.spec import Function
from mptraining_trainer.export.export import build_model
from mptraining_trainer.keras_backend import Keras
from mptraining_trainer.model.hyperparameters import fill_hyperparameters, search_space, takes_hyperparameters
from mptraining_trainer.model.program import call_function
from tests.jobs import resolved_job

keras_tuner = pytest.importorskip("keras_tuner", reason="keras-tuner is not installed")
# The form of KerasTuner's guide: a scope for each kind of model, and hyperparameters that exist in one of them only.
TUNED = """
import keras

def build(hp, classes=3):
    kind = hp.Choice("kind", ["mlp", "wide"])
    with hp.conditional_scope("kind", ["mlp"]):
        if kind == "mlp":
            units = hp.Int("units", 8, 64, step=8)
    with hp.conditional_scope("kind", ["wide"]):
        if kind == "wide":
            units = hp.Int("width", 128, 1024, step=2, sampling="log")
            hp.Boolean("bias")
    rate = hp.Float("lr", 1e-4, 1e-1, sampling="log")
    hp.Fixed("momentum", 0.9)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(units), keras.layers.Dense(classes)])
    model.compile(keras.optimizers.SGD(rate), "mse")
    return model

def plain(units=3):
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(units)])

def never(hp):
    hp.Choice("kind", ["a", "b"])
    with hp.conditional_scope("kind", ["a"]):
        hp.Choice("sort", ["x", "y"])
    with hp.conditional_scope("kind", ["b"]), hp.conditional_scope("sort", ["z"]):
        hp.Int("units", 1, 2)

def raises(hp):
    hp.Int("units", 5, 1)
"""


@pytest.fixture(autouse=True)
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "tuned.py").write_text(TUNED)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("tuned", None)


def function(name: str, **arguments: Any) -> Function:
    return Function(entry_point=f"tuned:{name}", arguments=arguments or None)


def path(name: str) -> str:
    return f"program.function.arguments.{name}"


def test_the_search_space_has_every_conditional_scope() -> None:
    found = {each.path: each for each in search_space(function("build", classes=5))}
    # Those of the first scope, and then those that only the second has.
    assert list(found) == [path(name) for name in ("kind", "units", "lr", "momentum", "width", "bias")]
    kind, units, rate, momentum, width, bias = found.values()
    assert (kind.kind, kind.values, kind.default) == ("choice", ("mlp", "wide"), "mlp")
    assert (units.kind, units.low, units.high, units.step, units.sampling) == ("int", 8, 64, 8, "linear")
    assert [(each.path, each.values) for each in units.when] == [(path("kind"), ("mlp",))]
    assert (width.step, width.sampling) == (2, "log")
    assert (bias.kind, bias.values, bias.when) == ("boolean", (True, False), width.when)
    assert (rate.kind, rate.low, rate.high, rate.step, rate.sampling) == ("float", 1e-4, 1e-1, None, "log")
    assert (momentum.kind, momentum.values, momentum.when) == ("fixed", (0.9,), ())


def test_every_value_that_keras_tuner_draws_is_accepted() -> None:
    """The reference is KerasTuner's own sampling."""
    hp = keras_tuner.HyperParameters()
    drawn = [
        keras_tuner.engine.hyperparameters.Int("a", 8, 64, step=8),
        keras_tuner.engine.hyperparameters.Int("b", 2, 32, step=2, sampling="log"),
        keras_tuner.engine.hyperparameters.Int("c", 1, 1000, sampling="reverse_log"),
        keras_tuner.engine.hyperparameters.Float("d", 0.1, 0.9, step=0.1),
        keras_tuner.engine.hyperparameters.Float("e", 1e-3, 10.0, step=10, sampling="log"),
        keras_tuner.engine.hyperparameters.Choice("f", ["x", "y"]),
        keras_tuner.engine.hyperparameters.Boolean("g"),
    ]
    from mptraining_trainer.model.hyperparameters import _accepts, _describe

    for each in drawn:
        hp.merge([each])
        described = _describe(each)
        for seed in range(40):
            value = each.random_sample(seed)
            assert _accepts(described, value), (described, value)
    assert not _accepts(_describe(drawn[0]), 9)
    assert not _accepts(_describe(drawn[0]), 72)
    assert not _accepts(_describe(drawn[0]), True)
    assert not _accepts(_describe(drawn[1]), 12)
    assert not _accepts(_describe(drawn[6]), 1)


def test_arguments_are_the_values_of_the_hyperparameters(keras3: Keras) -> None:
    given = function("build", kind="wide", width=256, lr=0.01, classes=7)
    model = call_function(given, keras3)["model"]
    assert [layer.units for layer in model.layers] == [256, 7]
    assert float(model.optimizer.learning_rate) == pytest.approx(0.01)
    again = build_model(keras3.module, {"builder": "function", "arguments": given.to_document(), "inputs": []})
    assert [layer.units for layer in again.layers] == [256, 7], "the exported model is rebuilt with the same values"
    defaults = call_function(function("build"), keras3)["model"]
    assert [layer.units for layer in defaults.layers] == [8, 3]


@pytest.mark.parametrize(
    ("arguments", "field", "text"),
    [
        ({"unitz": 8}, "unitz", "units"),
        ({"units": 9}, "units", "an integer from 8 to 64 in steps of 8"),
        ({"units": "8"}, "units", "an integer from 8 to 64"),
        ({"kind": "deep"}, "kind", "'mlp', 'wide'"),
        ({"lr": 5}, "lr", "a number from 0.0001 to 0.1"),
    ],
)
def test_wrong_values_name_the_argument(arguments: dict[str, Any], field: str, text: str, keras3: Keras) -> None:
    with pytest.raises(InvalidProgram) as caught:
        call_function(function("build", **arguments), keras3)
    assert caught.value.where == f"spec.program.function.arguments.{field}"
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("plain", "no parameter 'hp'"),
        ("never", "named: sort not defined"),
        ("raises", "(at "),
        ("buildd", "build"),
    ],
)
def test_functions_without_a_search_space_are_refused(name: str, text: str) -> None:
    with pytest.raises(InvalidProgram, match=None) as caught:
        search_space(function(name))
    assert text in str(caught.value)


def test_a_callable_without_a_signature_takes_its_arguments() -> None:
    # `inspect.signature(dict)` raises ValueError.
    assert not takes_hyperparameters(dict, {"units": 8})
    assert fill_hyperparameters(dict, {"units": 8}) == {"units": 8}


def test_a_missing_keras_tuner_is_named(monkeypatch: pytest.MonkeyPatch, keras3: Keras) -> None:
    monkeypatch.setitem(sys.modules, "keras_tuner", None)
    assert call_function(function("plain", units=4), keras3)["model"].layers[-1].units == 4
    with pytest.raises(InvalidProgram, match=r"keras-tuner to source\.requirements"):
        call_function(function("build"), keras3)


def test_the_verb_answers_in_events(source: Path) -> None:
    program = {"function": {"entryPoint": "tuned:build"}}
    job = resolved_job("tuned", program=program, training={"epochs": 1, "batchSize": {"global": 8}})
    (source / "job.json").write_text(job.to_json())
    ended = subprocess.run(
        [sys.executable, "-m", "mptraining_trainer", "hyperparameters"],
        env=os.environ | {JOB_FILE: str(source / "job.json"), SOURCE_FOLDER: str(source)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    answer, last = [event for line in ended.stdout.splitlines() if (event := events.parse(line)) is not None]
    assert isinstance(answer, events.SearchSpace)
    assert isinstance(last, events.Finished)
    assert answer.hyperparameters[0] == Hyperparameter.parse(
        {"path": path("kind"), "kind": "choice", "values": ["mlp", "wide"], "default": "mlp", "ordered": False}
    )
    assert json.loads(ended.stdout.splitlines()[0])["hyperparameters"][1]["low"] == 8
