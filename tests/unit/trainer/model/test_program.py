"""From the user's function to a Program, and every way in which that function can be wrong."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from mptraining_api.problems import InvalidProgram
from mptraining_api.resolved_job import ResolvedJob
from mptraining_trainer.data.schema import ExampleSpec, TensorSpec
from mptraining_trainer.keras_backend import Keras
from mptraining_trainer.model.program import Program, build
from tests.fakes import Notices
from tests.jobs import resolved_job

EXAMPLE = ExampleSpec((TensorSpec("x", "float32", (4,)),), (TensorSpec("y", "int64", ()),), ("a", "b", "c"))

FLOWERS = """
import {keras} as keras
import {other} as other

LAYERS = keras.layers

def build(units=3, activation="softmax"):
    return keras.Sequential([keras.Input((4,)), LAYERS.Dense(units, activation=activation)])

def unbuilt():
    return keras.Sequential([LAYERS.Dense(3)])

def widened(inputs, labels, seed):
    return {{"x": inputs, "twice": 2.0 * inputs}}, labels

class Two(keras.Model):
    def __init__(self):
        super().__init__()
        self.head = LAYERS.Dense(3)

    def call(self, inputs):
        return self.head(inputs["x"] + inputs["twice"])

def augmented():
    return dict(model=Two(), preprocess=widened, loss="mse")

class Own(keras.Model):
    def train_step(self, data):
        return {{}}

def own_train_step():
    return Own()

def raises():
    return 1 / 0

def nothing():
    return None

def misspelt():
    return dict(model=build(), optimiser="adam")

def of_the_other_generation():
    return other.Sequential([other.Input((4,)), other.layers.Dense(3)])

def two_outputs():
    entry = keras.Input((4,))
    return dict(model=keras.Model(entry, [LAYERS.Dense(3)(entry), LAYERS.Dense(2)(entry)]), loss=["mse", "mae"])

def wrong_inputs():
    return keras.Sequential([LAYERS.Conv2D(3, 3)])
"""


@pytest.fixture(autouse=True)
def source(keras: Keras, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The user's source folder, on sys.path as the trainer adds it."""
    names = {"keras": "tf_keras", "other": "keras"} if keras.legacy else {"keras": "keras", "other": "tf_keras"}
    (tmp_path / "flowers").mkdir()
    (tmp_path / "flowers" / "__init__.py").touch()
    (tmp_path / "flowers" / "model.py").write_text(FLOWERS.format(**names))
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] == "flowers"]:
        del sys.modules[name]


def job(program: dict[str, Any], training: dict[str, Any] | None = None, preprocess: str | None = None) -> ResolvedJob:
    data = {"train": ["x.tfrecord"], "label": "y"} | ({"preprocess": preprocess} if preprocess else {})
    return resolved_job(program=program, data=data, training=training or {})


def function(name: str, **arguments: Any) -> dict[str, Any]:
    return {"function": {"entryPoint": name if ":" in name else f"flowers.model:{name}", "arguments": arguments}}


def made(keras: Keras, program: dict[str, Any], training: dict[str, Any] | None = None, **data: Any) -> Program:
    return build(job(program, training, **data), keras, EXAMPLE, Notices())


MLP = {"application": {"name": "mlp"}}

# Return values of a function


def test_a_model_is_built_as_the_function_returns_it(keras: Keras) -> None:
    assert made(keras, function("build", units=7)).model.output_shape == (None, 7)
    unbuilt = made(keras, function("unbuilt")).model
    assert [tuple(weight.shape) for weight in unbuilt.weights] == [(4, 3), (3,)]
    assert len(made(keras, function("two_outputs")).model.outputs) == 2
    compiled = made(keras, function("own_train_step")).compiled
    assert compiled is not None
    assert compiled.own_steps == ("train_step",)


def test_the_examples_code_builds_in_both_generations(keras: Keras, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[4] / "manifests" / "examples" / "source"))
    # The job's process has one generation, and `tensorflow.keras` is that one.
    monkeypatch.setattr(tf, "keras", keras.module)
    for name in ("flowers", "flowers.model"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    example = ExampleSpec((TensorSpec("image", "uint8", (128, 128, 3)),), (TensorSpec("label", "int64", ()),))
    program = function("flowers:build", width=8, classes=5)
    assert build(job(program), keras, example, Notices()).model.output_shape == (None, 5)


def test_a_preprocess_of_its_own_decides_what_the_model_sees(keras: Keras) -> None:
    program = made(keras, function("augmented"))
    assert program.preprocess is not None
    assert [spec["name"] for spec in program.rebuild["inputs"]] == ["x", "twice"]
    assert len(program.model.weights) == 2
    with pytest.raises(InvalidProgram, match="Leave one of them out"):
        made(keras, function("augmented"), preprocess="flowers.model:widened")


# The training of an application


def test_an_application_is_a_classifier_with_its_accuracy(keras: Keras) -> None:
    program = made(keras, MLP)
    assert program.compiled is not None
    assert program.model.loss.get_config()["from_logits"] is True
    program.compiled.build((tf.zeros((2, 4)), tf.zeros((2,), tf.int64), ()))
    assert list(program.compiled.metric_directions()) == ["accuracy"]


# Errors of a function


@pytest.mark.parametrize(
    ("program", "where", "says"),
    [
        (function("biuld"), "function.entryPoint", "Did you mean 'build'?"),
        (function("build", unit=3), "function.arguments", "build(units=3, activation='softmax')"),
        (function("raises"), "function.entryPoint", "ZeroDivisionError: division by zero"),
        (function("raises"), "function.entryPoint", f"model.py:{FLOWERS.splitlines().index('    return 1 / 0') + 1}"),
        (function("nothing"), "function.entryPoint", "returned NoneType"),
        (function("misspelt"), "function.entryPoint", "Did you mean 'optimizer'?"),
        (function("of_the_other_generation"), "spec.keras", "Set keras:"),
        (function("wrong_inputs"), "function.entryPoint", "x [1, 4]"),
    ],
)
def test_a_wrong_function_has_a_next_step(keras: Keras, program: dict[str, Any], where: str, says: str) -> None:
    with pytest.raises(InvalidProgram) as raised:
        made(keras, program)
    assert where in raised.value.where
    assert says in str(raised.value)
    assert "\n" not in str(raised.value)
