"""Optimizer, loss and metrics: the sources that name them, contradictions, and defaults."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from mptraining_api.problems import InvalidProgram, InvalidSpec
from mptraining_api.resolved_job import ResolvedJob
from mptraining_trainer.data.schema import ExampleSpec, TensorSpec
from mptraining_trainer.keras_backend import Keras, load
from mptraining_trainer.model.compile import compile_model
from tests.fakes import Notices
from tests.jobs import resolved_job

EXAMPLE = ExampleSpec((TensorSpec("x", "float32", (4,)),), (TensorSpec("y", "int64", ()),), ("a", "b", "c"))
SGD = {"className": "SGD", "config": {"learning_rate": 0.5, "momentum": 0.9}}
SPARSE = {"className": "SparseCategoricalCrossentropy"}


def job(training: dict[str, Any] | None = None) -> ResolvedJob:
    return resolved_job(program={"function": {"entryPoint": "flowers:build"}}, training=training or {})


def plain(keras: Keras, activation: str | None = "softmax") -> Any:
    return keras.module.Sequential([keras.module.Input((4,)), keras.module.layers.Dense(3, activation=activation)])


def compiled(keras: Keras, **more: Any) -> Any:
    model = plain(keras)
    top = keras.module.metrics.SparseTopKCategoricalAccuracy(k=2, name="top_2")
    optimizer = keras.module.optimizers.SGD(0.5, momentum=0.9)
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy", top, "mse"], **more)
    return model


def settle(
    keras: Keras, training: dict[str, Any] | None = None, example: ExampleSpec = EXAMPLE, **parts: Any
) -> tuple[Any, Any, list[Any]]:
    """Return optimizer, loss and metrics of the model as Keras has them once it is built."""
    compiled, optimizer = compile_model(job(training), keras, parts, example, Notices())
    compiled.build((tf.zeros((2, 4)), tf.zeros((2,), tf.int64), ()))
    metrics: list[Any] = []
    for metric in compiled.metrics:
        metrics += getattr(metric, "metrics", None) or [metric]
    return optimizer, parts["model"].loss, metrics


def squared(labels: Any, outputs: Any) -> Any:
    return (outputs[:, 0] - 1.0) ** 2


# Sources in the program


def test_a_plain_model_gets_defaults_and_they_are_reported(keras: Keras) -> None:
    notices = Notices()
    model = plain(keras)
    _, optimizer = compile_model(job(), keras, {"model": model}, EXAMPLE, notices)
    assert type(optimizer) is keras.module.optimizers.Adam
    assert model.loss.get_config()["from_logits"] is False
    assert "Adam with a learning rate of 0.001" in notices.of("Optimizer")
    assert "SparseCategoricalCrossentropy" in notices.of("Loss")


def test_a_compiled_model_brings_its_own(keras: Keras) -> None:
    model = compiled(keras)
    optimizer, loss, metrics = settle(keras, model=model)
    assert optimizer is model.optimizer
    assert [metric.name for metric in metrics][:2] == ["accuracy", "top_2"]
    assert loss == "sparse_categorical_crossentropy"


def test_a_dict_brings_its_own(keras: Keras) -> None:
    optimizer, loss, metrics = settle(
        keras, model=plain(keras, None), loss=squared, optimizer="rmsprop", metrics=["mae"]
    )
    assert type(optimizer) is keras.module.optimizers.RMSprop
    assert loss is squared
    assert len(metrics) == 1


@pytest.mark.parametrize("method", ["minimize", "compute_gradients", "aggregate_gradients"])
def test_a_method_of_the_optimizer_that_is_not_called_may_not_be_overridden(method: str) -> None:
    legacy = load("Legacy")
    sgd = legacy.module.optimizers.SGD
    own = type("Own", (sgd,), {method: lambda self, *arguments, **named: None})
    with pytest.raises(InvalidProgram, match=f"Own overrides {method}"):
        settle(legacy, model=plain(legacy), optimizer=own(0.1))


def test_loss_and_metrics_are_the_very_objects_of_the_program(keras: Keras) -> None:
    """None is built from its config, which a custom class need not have."""

    class Twice(keras.module.losses.Loss):  # type: ignore[name-defined, misc]
        def __init__(self, factor: float) -> None:
            super().__init__()
            self.factor = factor

        def call(self, labels: Any, outputs: Any) -> Any:
            return self.factor * squared(labels, outputs)

    loss, metric = Twice(5.0), keras.module.metrics.SparseTopKCategoricalAccuracy(k=2)
    _, found, metrics = settle(keras, model=plain(keras), loss=loss, metrics=[metric])
    assert found is loss
    assert metrics == [metric]


def test_the_jobs_metrics_come_first_and_replace_namesakes(keras: Keras) -> None:
    wanted = {
        "metrics": [
            {"className": "SparseCategoricalAccuracy", "config": {"name": "top_2"}},
            {"className": "AUC", "config": {"name": "area"}},
        ]
    }
    _, _, metrics = settle(keras, wanted, model=compiled(keras))
    assert [metric.name for metric in metrics] == ["top_2", "area", "accuracy", "mse"]


def test_a_compile_of_its_own_and_more_from_the_job_are_refused(keras: Keras) -> None:
    class Own(keras.module.Sequential):  # type: ignore[name-defined, misc]
        def compile(self, **arguments: Any) -> None:
            super().compile(**arguments)

    model = Own([keras.module.Input((4,)), keras.module.layers.Dense(3, activation="softmax")])
    model.compile(loss="sparse_categorical_crossentropy")
    with pytest.raises(InvalidProgram, match="its own `compile`"):
        settle(keras, {"metrics": [{"className": "accuracy"}]}, model=model)


# Sources in the job


def test_the_jobs_and_the_programs_own_may_say_the_same_and_a_loss_scale_optimizer_is_taken_off(keras: Keras) -> None:
    keras.set_policy("mixed_float16")
    optimizer, *_ = settle(keras, {"optimizer": SGD, "loss": SPARSE}, model=compiled(keras))
    assert type(optimizer) is keras.module.optimizers.SGD


@pytest.mark.parametrize(
    ("training", "says"),
    [
        ({"optimizer": {"className": "Adam"}}, "compile(optimizer=...) is SGD"),
        ({"optimizer": SGD | {"config": {"learning_rate": 0.1, "momentum": 0.9}}}, "learning_rate=0.5"),
        ({"loss": SPARSE | {"config": {"from_logits": True}}}, "compile(loss=...) is sparse_categorical_crossentropy"),
    ],
)
def test_two_that_disagree_are_both_named(keras: Keras, training: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidProgram) as raised:
        settle(keras, training, model=compiled(keras))
    assert f"spec.training.{next(iter(training))}" in str(raised.value)
    assert says in str(raised.value)


def test_a_metric_is_refused_by_its_number(keras: Keras) -> None:
    with pytest.raises(InvalidSpec, match=r"Did you mean 'AUC'\?") as raised:
        settle(keras, {"metrics": [{"className": "AUC"}, {"className": "AUCC"}]}, model=plain(keras))
    assert raised.value.where.startswith("spec.training.metrics[1]")


@pytest.mark.parametrize(
    ("activation", "channels", "dtype", "suggested"),
    [
        ("sigmoid", 1, "uint8", "loss=keras.losses.BinaryCrossentropy()"),
        (None, 1, "uint8", "training.loss: {className: BinaryCrossentropy, config: {from_logits: true}}"),
        ("softmax", 3, "int64", "loss=keras.losses.SparseCategoricalCrossentropy()"),
        ("sigmoid", 2, "float32", "training.loss: {className: MeanSquaredError}"),
    ],
)
def test_a_model_without_loss_gets_a_suggestion(
    keras: Keras, activation: str | None, channels: int, dtype: str, suggested: str
) -> None:
    layers = keras.module.layers
    model = keras.module.Sequential([keras.module.Input((4, 4, 3)), layers.Conv2D(channels, 1, activation=activation)])
    picture = ExampleSpec((TensorSpec("x", "float32", (4, 4, 3)),), (TensorSpec("y", dtype, (4, 4, 1)),))
    with pytest.raises(InvalidSpec, match=r"the model is not compiled, and no loss follows") as raised:
        compile_model(job(), keras, {"model": model}, picture, Notices())
    assert suggested in str(raised.value)


@pytest.mark.parametrize(
    ("parts", "meant"),
    [({"loss": "binary_crosentropy"}, "binary_crossentropy"), ({"optimizer": "adamm", "loss": "mse"}, "adam")],
)
def test_a_misspelt_name_in_the_program_gets_a_hint(keras: Keras, parts: dict[str, str], meant: str) -> None:
    with pytest.raises(InvalidProgram, match=rf"Did you mean '{meant}'\?"):
        settle(keras, model=plain(keras), **parts)
