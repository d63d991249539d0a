"""From the user's function to a Program, and every way in which that function can be wrong."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mptraining_api.job import MPTrainingJob
from mptraining_api.problems import InvalidProgram, InvalidSpec, Problem
from mptraining_api.resolve import ClusterSettings, resolve
from mptraining_api.resolved import ResolvedJob
from mptraining_trainer.example_spec import ExampleSpec, TensorSpec
from mptraining_trainer.keras_generation import Keras
from mptraining_trainer.program import Program, build

EXAMPLE = ExampleSpec((TensorSpec("x", "float32", (4,)),), TensorSpec("y", "int64", ()), ("a", "b", "c"))

FLOWERS = """
import {keras} as keras
import {other} as other

LAYERS = keras.layers

def build(units=3, activation="softmax"):
    return keras.Sequential([keras.Input((4,)), LAYERS.Dense(units, activation=activation)])

def unbuilt():
    return keras.Sequential([LAYERS.Dense(3)])

def compiled(loss="sparse_categorical_crossentropy"):
    model = build()
    top = keras.metrics.SparseTopKCategoricalAccuracy(k=2, name="top_2")
    model.compile(keras.optimizers.SGD(0.5, momentum=0.9), loss, metrics=["accuracy", top, "mse"])
    return model

def squared(labels, outputs):
    return (outputs[:, 0] - 1.0) ** 2

def parts():
    return dict(model=build(activation=None), loss=squared, optimizer="rmsprop", metrics=["mae"], callbacks=[])

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

def calls_back():
    return dict(model=build(), callbacks=[keras.callbacks.TerminateOnNaN()])

def of_the_other_generation():
    return other.Sequential([other.Input((4,)), other.layers.Dense(3)])

def two_outputs():
    entry = keras.Input((4,))
    return keras.Model(entry, [LAYERS.Dense(3)(entry), LAYERS.Dense(2)(entry)])

def two_losses():
    return dict(model=build(), loss=["mse", "mae"])

def wrong_inputs():
    return keras.Sequential([LAYERS.Conv2D(3, 3)])

def bad_metric():
    return dict(model=build(), metrics=["no_such_metric"])
"""


@pytest.fixture(autouse=True)
def source(keras: Keras, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The user's source folder, on sys.path as the trainer puts it there."""
    names = {"keras": "tf_keras", "other": "keras"} if keras.legacy else {"keras": "keras", "other": "tf_keras"}
    (tmp_path / "flowers").mkdir()
    (tmp_path / "flowers" / "__init__.py").touch()
    (tmp_path / "flowers" / "model.py").write_text(FLOWERS.format(**names))
    (tmp_path / "needy.py").write_text("import a_package_nobody_has\n")
    (tmp_path / "broken.py").write_text("def build(:\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] in ("flowers", "needy", "broken")]:
        del sys.modules[name]


class Notices(dict[str, str]):
    def __call__(self, topic: str, message: str) -> None:
        self[topic] = message


def job(program: dict[str, Any], training: dict[str, Any] | None = None, preprocess: str | None = None) -> ResolvedJob:
    spec = {
        "accelerator": {"type": "cpu"},
        "program": program,
        "data": {"train": ["x.tfrecord"], "label": "y"} | ({"preprocess": preprocess} if preprocess else {}),
        "training": {"epochs": 1, "batchSize": {"global": 8}} | (training or {}),
    }
    document = {"apiVersion": "mptraining.dev/v1alpha1", "kind": "MPTrainingJob"}
    return resolve(MPTrainingJob.parse(document | {"metadata": {"name": "job"}, "spec": spec}), ClusterSettings())


def function(name: str, **arguments: Any) -> dict[str, Any]:
    return {"function": {"entryPoint": name if ":" in name else f"flowers.model:{name}", "arguments": arguments}}


def made(keras: Keras, program: dict[str, Any], training: dict[str, Any] | None = None, **data: Any) -> Program:
    return build(job(program, training, **data), keras, EXAMPLE, Notices())


MLP = {"application": {"name": "mlp"}}
SGD = {"className": "SGD", "config": {"learning_rate": 0.5, "momentum": 0.9}}
SPARSE = {"className": "SparseCategoricalCrossentropy"}


# What a function may return


def test_a_plain_model_gets_defaults_and_they_are_said(keras: Keras) -> None:
    notices = Notices()
    program = build(job(function("build")), keras, EXAMPLE, notices)
    assert type(program.optimizer) is keras.module.optimizers.Adam
    assert program.loss.get_config()["from_logits"] is False
    assert "Adam with a learning rate of 0.001" in notices["Optimizer"]
    assert "SparseCategoricalCrossentropy" in notices["Loss"]


def test_arguments_reach_the_function(keras: Keras) -> None:
    assert made(keras, function("build", units=7)).model.output_shape == (None, 7)


def test_an_unbuilt_model_is_built_from_the_data(keras: Keras) -> None:
    model = made(keras, function("unbuilt")).model
    assert [tuple(weight.shape) for weight in model.weights] == [(4, 3), (3,)]


def test_a_compiled_model_brings_its_own(keras: Keras) -> None:
    program = made(keras, function("compiled"))
    assert program.optimizer is program.model.optimizer
    assert [metric.name for metric in program.metrics][:2] == ["accuracy", "top_2"]
    assert type(program.metrics[0]) is keras.module.metrics.SparseCategoricalAccuracy
    losses = program.loss(np.array([0, 1]), np.array([[0.5, 0.25, 0.25], [0.5, 0.25, 0.25]], "float32"))
    assert np.asarray(losses) == pytest.approx(-np.log([0.5, 0.25]))


def test_a_dict_brings_its_own(keras: Keras) -> None:
    program = made(keras, function("parts"))
    assert type(program.optimizer) is keras.module.optimizers.RMSprop
    assert program.loss.__name__ == "squared"
    assert len(program.metrics) == 1


def test_a_loss_scale_optimizer_is_taken_off(keras: Keras) -> None:
    keras.set_policy("mixed_float16")
    program = made(keras, function("compiled"))
    assert type(program.optimizer) is keras.module.optimizers.SGD


def test_a_preprocess_of_its_own_decides_what_the_model_sees(keras: Keras) -> None:
    program = made(keras, function("augmented"))
    assert program.preprocess is not None
    assert [spec["name"] for spec in program.rebuild["inputs"]] == ["x", "twice"]
    assert len(program.model.weights) == 2


# What the job says


def test_the_jobs_and_the_programs_own_may_say_the_same(keras: Keras) -> None:
    program = made(keras, function("compiled"), {"optimizer": SGD, "loss": SPARSE})
    assert type(program.optimizer) is keras.module.optimizers.SGD


@pytest.mark.parametrize(
    ("training", "says"),
    [
        ({"optimizer": {"className": "Adam"}}, "compile(optimizer=...) is SGD"),
        ({"optimizer": SGD | {"config": {"learning_rate": 0.1, "momentum": 0.9}}}, "learning_rate=0.5"),
        (
            {"loss": SPARSE | {"config": {"from_logits": True}}},
            "compile(loss=...) is sparse_categorical_crossentropy",
        ),
    ],
)
def test_two_that_disagree_are_both_named(keras: Keras, training: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidProgram) as raised:
        made(keras, function("compiled"), training)
    assert f"spec.training.{next(iter(training))}" in str(raised.value)
    assert says in str(raised.value)


@pytest.mark.parametrize("key", ["class_name", "className"])
def test_a_schedule_may_be_written_either_way(keras: Keras, key: str) -> None:
    schedule = {key: "CosineDecay", "config": {"initial_learning_rate": 0.5, "decay_steps": 10}}
    program = made(keras, MLP, {"optimizer": {"className": "SGD", "config": {"learning_rate": schedule}}})
    assert float(program.optimizer.learning_rate) == pytest.approx(0.5)


@pytest.mark.parametrize("name", ["SparseCategoricalCrossentropy", "sparse_categorical_crossentropy"])
def test_a_loss_gives_one_value_an_example(keras: Keras, name: str) -> None:
    program = made(keras, MLP, {"loss": {"className": name, "config": {"from_logits": True}}})
    assert program.loss(np.zeros(5, "int64"), np.zeros((5, 3), "float32")).shape == (5,)


def test_an_application_is_a_classifier_with_its_accuracy(keras: Keras) -> None:
    program = made(keras, MLP)
    assert program.loss.get_config()["from_logits"] is True
    assert [type(metric).__name__ for metric in program.metrics] == ["SparseCategoricalAccuracy"]


@pytest.mark.parametrize(
    ("training", "where", "says"),
    [
        ({"optimizer": {"className": "Adamm"}}, "optimizer", "Did you mean 'Adam'?"),
        ({"optimizer": {"className": "Adam", "config": {"lr_": 1}}}, "optimizer.config", "lr_"),
        (
            {"optimizer": {"className": "Adam", "config": {"lr_": 1}}},
            "optimizer.config",
            "Adam(learning_rate",
        ),
        (
            {
                "optimizer": {
                    "className": "Adam",
                    "config": {"learning_rate": {"className": "Cosine", "config": {}}},
                }
            },
            "optimizer",
            "Did you mean 'CosineDecay'?",
        ),
        (
            {"loss": {"className": "CategoricalCrossEntropy"}},
            "loss",
            "Did you mean 'CategoricalCrossentropy'?",
        ),
        ({"loss": SPARSE | {"config": {"logits": True}}}, "loss.config", "logits"),
        ({"metrics": [{"className": "AUC"}, {"className": "AUCC"}]}, "metrics[1]", "Did you mean 'AUC'?"),
    ],
)
def test_what_keras_does_not_know_is_refused_by_field(
    keras: Keras, training: dict[str, Any], where: str, says: str
) -> None:
    with pytest.raises(InvalidSpec) as raised:
        made(keras, MLP, training)
    assert raised.value.where.startswith(f"spec.training.{where}")
    assert says in str(raised.value)
    assert "\n" not in str(raised.value)


# What can be wrong with a function


@pytest.mark.parametrize(
    ("program", "where", "says"),
    [
        (function("flowerz.model:build"), "function.entryPoint", "Did you mean 'flowers'?"),
        (function("flowers.modle:build"), "function.entryPoint", "Did you mean 'model'?"),
        (function("biuld"), "function.entryPoint", "Did you mean 'build'?"),
        (function("LAYERS"), "function.entryPoint", "expected a function"),
        (function("needy:build"), "function.entryPoint", "Add 'a_package_nobody_has' to source.requirements"),
        (function("needy:build"), "function.entryPoint", "needy.py:1"),
        (function("broken:build"), "function.entryPoint", "broken.py:1"),
        (function("build", unit=3), "function.arguments", "build(units=3, activation='softmax')"),
        (function("raises"), "function.entryPoint", "ZeroDivisionError: division by zero"),
        (
            function("raises"),
            "function.entryPoint",
            f"model.py:{FLOWERS.splitlines().index('    return 1 / 0') + 1}",
        ),
        (function("nothing"), "function.entryPoint", "returned NoneType"),
        (function("misspelt"), "function.entryPoint", "Did you mean 'optimizer'?"),
        (function("calls_back"), "function.entryPoint", "a later version"),
        (function("own_train_step"), "function.entryPoint", "overrides train_step"),
        (function("own_train_step"), "function.entryPoint", "program.script"),
        (function("of_the_other_generation"), "spec.keras", "Set keras:"),
        (function("two_outputs"), "function.entryPoint", "2 outputs"),
        (function("two_losses"), "loss", "2 losses"),
        (function("wrong_inputs"), "function.entryPoint", "x [1, 4]"),
        (function("bad_metric"), "function.entryPoint", "no_such_metric"),
    ],
)
def test_a_wrong_function_is_named_with_the_next_step(
    keras: Keras, program: dict[str, Any], where: str, says: str
) -> None:
    with pytest.raises(InvalidProgram) as raised:
        made(keras, program)
    assert where in raised.value.where
    assert says in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_loss_that_nothing_tells_is_asked_for(keras: Keras) -> None:
    picture = ExampleSpec(EXAMPLE.inputs, TensorSpec("y", "float32", (5,)))
    with pytest.raises(Problem, match="Name a loss"):
        build(job(function("build")), keras, picture, Notices())


def test_two_preprocess_functions_are_refused(keras: Keras) -> None:
    with pytest.raises(InvalidProgram, match="Leave one of them out"):
        made(keras, function("augmented"), preprocess="flowers.model:widened")
