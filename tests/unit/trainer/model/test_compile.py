"""Optimizer, loss and metrics: Keras' names, the sources that name them, defaults, and the learning rate."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
import pytest
import tensorflow as tf

from mptraining_api.problems import InvalidProgram, InvalidSpec
from mptraining_api.resolved_job import LearningRate, ResolvedJob
from mptraining_api.spec import KerasObject
from mptraining_api.validation.keras_names import Generation, is_known, table
from mptraining_trainer.data.schema import ExampleSpec, TensorSpec
from mptraining_trainer.keras_backend import Keras, load
from mptraining_trainer.model import applications
from mptraining_trainer.model.compile import (
    Kind,
    classes,
    compile_model,
    keras_object,
    scale_learning_rate,
    scaled_schedule,
)
from tests.fakes import Notices
from tests.jobs import resolved_job


@pytest.mark.parametrize("generation", ["Keras3", "Legacy"])
def test_the_table_has_the_names_of_the_installed_packages(generation: Generation) -> None:
    keras = load(generation)
    schedules = keras.module.optimizers.schedules
    base = schedules.LearningRateSchedule
    names = {kind: sorted(classes(keras, kind)) for kind in ("optimizers", "losses", "metrics")}
    names["applications"] = applications.names(keras)
    names["schedules"] = sorted(
        name
        for name, value in vars(schedules).items()
        if isinstance(value, type) and issubclass(value, base) and value is not base
    )
    assert {kind: list(known) for kind, known in table()[generation].names.items()} == names
    assert table()[generation].version == keras.module.__version__


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("optimizers", "Adam"), ("optimizers", "adam"), ("optimizers", "Adamm"), ("losses", "mean_squared_error"),
        ("losses", "MeanSquaredErrors"), ("losses", "sparse_categorical_crossentropy"), ("metrics", "accuracy"),
        ("metrics", "Acc"), ("optimizers", "LossScaleOptimizer"), ("losses", "Loss"),
    ],
)  # fmt: skip
def test_the_trainer_and_the_check_know_the_same_names(kind: Kind, name: str) -> None:
    keras = load("Keras3")
    try:
        keras_object(keras, kind, KerasObject(class_name=name), "spec.training")
        known = True
    except InvalidSpec as problem:
        known = "there is no" not in str(problem)
    assert is_known(kind, name) is known


def test_both_generations_are_in_the_table() -> None:
    assert "RegNetX002" in table()["Legacy"].names["applications"]
    assert not is_known("applications", "RegNetX002")
    assert is_known("applications", "RegNetX002", "Legacy")


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
    """No object is built from its config, which a custom class need not have."""

    class Twice(keras.module.losses.Loss):  # type: ignore[name-defined, misc]
        def __init__(self, factor: float) -> None:
            super().__init__()
            self.factor = factor

        def call(self, labels: Any, outputs: Any) -> Any:
            return self.factor * (outputs[:, 0] - 1.0) ** 2

    loss, metric = Twice(5.0), keras.module.metrics.SparseTopKCategoricalAccuracy(k=2)
    optimizer, settled, metrics = settle(
        keras, model=plain(keras), loss=loss, optimizer="rmsprop", metrics=["mae", metric]
    )
    assert type(optimizer) is keras.module.optimizers.RMSprop
    assert settled is loss
    assert (len(metrics), metrics[1]) == (2, metric)


@pytest.mark.parametrize("method", ["minimize", "compute_gradients", "aggregate_gradients"])
def test_a_method_of_the_optimizer_that_is_not_called_may_not_be_overridden(method: str) -> None:
    legacy = load("Legacy")
    sgd = legacy.module.optimizers.SGD
    own = type("Own", (sgd,), {method: lambda self, *arguments, **named: None})
    with pytest.raises(InvalidProgram, match=f"Own overrides {method}"):
        settle(legacy, model=plain(legacy), optimizer=own(0.1))


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


KINDS: dict[str, Kind] = dict(zip(("optimizer", "loss", "metric"), get_args(Kind), strict=True))


def made(keras: Keras, field: str, **document: Any) -> Any:
    return keras_object(keras, KINDS[field], KerasObject.parse(document), f"spec.training.{field}")


@pytest.mark.parametrize("key", ["class_name", "className"])
def test_a_schedule_may_be_written_either_way(keras: Keras, key: str) -> None:
    schedule = {key: "CosineDecay", "config": {"initial_learning_rate": 0.5, "decay_steps": 10}}
    optimizer = made(keras, "optimizer", className="SGD", config={"learning_rate": schedule})
    assert float(optimizer.learning_rate) == pytest.approx(0.5)


@pytest.mark.parametrize("name", ["SparseCategoricalCrossentropy", "sparse_categorical_crossentropy"])
def test_a_functions_name_selects_its_class(keras: Keras, name: str) -> None:
    loss = made(keras, "loss", className=name, config={"from_logits": True})
    assert type(loss) is keras.module.losses.SparseCategoricalCrossentropy


@pytest.mark.parametrize(
    ("field", "document", "where", "says"),
    [
        ("optimizer", {"className": "Adamm"}, "optimizer", "Did you mean 'Adam'?"),
        ("optimizer", {"className": "Adamm"}, "optimizer", ": there is no optimizer 'Adamm' in "),
        ("loss", {"className": "Nothing"}, "loss", ": there is no loss 'Nothing' in "),
        ("optimizer", {"className": "Adam", "config": {"lr_": 1}}, "optimizer.config", "lr_"),
        ("optimizer", {"className": "Adam", "config": {"lr_": 1}}, "optimizer.config", "Adam(learning_rate"),
        (
            "optimizer",
            {"className": "Adam", "config": {"learning_rate": {"className": "Cosine", "config": {}}}},
            "optimizer",
            "Did you mean 'CosineDecay'?",
        ),
        ("loss", {"className": "CategoricalCrossEntropy"}, "loss", "Did you mean 'CategoricalCrossentropy'?"),
        ("loss", {"className": "SparseCategoricalCrossentropy", "config": {"logits": True}}, "loss.config", "logits"),
        ("metric", {"className": "AUCC"}, "metric", "Did you mean 'AUC'?"),
    ],
)
def test_what_keras_does_not_know_is_refused_by_field(
    keras: Keras, field: str, document: dict[str, Any], where: str, says: str
) -> None:
    with pytest.raises(InvalidSpec) as raised:
        made(keras, field, **document)
    assert raised.value.where.startswith(f"spec.training.{where}")
    assert says in str(raised.value)
    assert "\n" not in str(raised.value)


def rate_at(keras: Keras, optimizer: Any, step: int) -> float:
    schedule = keras.module.optimizers.schedules.deserialize(optimizer.get_config()["learning_rate"])
    return float(schedule(step))


def rates(keras: Keras, base: Any, factor: float, warmup: int, steps: int) -> list[float]:
    schedule = scaled_schedule(keras.module)(base, factor, warmup)
    return [float(schedule(step)) for step in range(steps)]


def test_a_rate_rises_linearly_to_its_multiple_and_a_schedule_keeps_its_shape(keras: Keras) -> None:
    for factor, warmup, expected in (
        (1.0, 4, [0.025, 0.05, 0.075, 0.1, 0.1, 0.1]),
        (8.0, 2, [0.4, 0.8, 0.8, 0.8, 0.8, 0.8]),
        (2.0, 1, [0.2] * 6),
        (2.0, 0, [0.2] * 6),
    ):
        assert rates(keras, 0.1, factor, warmup, 6) == pytest.approx(expected)
    cosine = keras.module.optimizers.schedules.CosineDecay(0.1, decay_steps=10)
    expected = [3.0 * float(cosine(step)) * min(1.0, (step + 1) / 5) for step in range(12)]
    assert rates(keras, cosine, 3.0, 5, 12) == pytest.approx(expected)


def test_the_optimizer_keeps_its_other_arguments_and_follows_the_schedule(keras: Keras) -> None:
    base = keras.module.optimizers.schedules.ExponentialDecay(0.1, decay_steps=2, decay_rate=0.5)
    optimizer = keras.module.optimizers.SGD(base, momentum=0.9, clipnorm=1.0)
    scale_learning_rate(keras, optimizer, LearningRate(factor=2.0, warmup_steps=4))
    assert (optimizer.momentum, optimizer.clipnorm) == (0.9, 1.0)
    assert rate_at(keras, optimizer, 1) == pytest.approx(2.0 * 0.1 * 0.5**0.5 * 0.5)
    assert rate_at(keras, optimizer, 6) == pytest.approx(2.0 * 0.1 * 0.5**3)


def test_warmup_counts_the_updates_that_are_applied(keras: Keras) -> None:
    sgd = keras.module.optimizers.SGD(1.0)
    layer = keras.module.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
    layer.build((None, 1))
    keras.build_optimizer(sgd, layer.trainable_variables)
    scale_learning_rate(keras, sgd, LearningRate(factor=1.0, warmup_steps=4))
    weights: list[float] = []
    for _ in range(5):
        keras.apply_gradients(sgd, [-np.ones((1, 1), "float32")], layer.trainable_variables)
        weights.append(float(layer.get_weights()[0].item()))
    assert np.diff([0.0, *weights]) == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0])


@pytest.mark.parametrize("warmup", [0, 1])
def test_variables_that_are_excluded_from_weight_decay_stay_so(keras: Keras, warmup: int) -> None:
    """`get_config` names neither these nor what a class of the user's forgets."""
    optimizer = keras.module.optimizers.SGD(0.5, weight_decay=0.5)
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    layer = keras.module.layers.Dense(1, kernel_initializer="ones", bias_initializer="ones")
    layer.build((None, 1))
    keras.build_optimizer(optimizer, layer.trainable_variables)
    scale_learning_rate(keras, optimizer, LearningRate(factor=2.0, warmup_steps=warmup))
    keras.apply_gradients(optimizer, [np.zeros((1, 1), "float32"), np.zeros(1, "float32")], layer.trainable_variables)
    assert [float(array.item()) for array in layer.get_weights()] == [0.5, 1.0]


def test_every_rate_of_a_multi_optimizer_is_scaled(keras3: Keras) -> None:
    module = keras3.module.optimizers
    kernel, bias = module.SGD(0.5), module.SGD(module.schedules.ExponentialDecay(0.25, 1, 0.5))
    several = module.MultiOptimizer(lambda variable: bias if "bias" in variable.path else kernel)
    layer = keras3.module.layers.Dense(1, kernel_initializer="zeros")
    layer.build((None, 1))
    keras3.build_optimizer(several, layer.trainable_variables)
    scale_learning_rate(keras3, several, LearningRate(factor=2.0, warmup_steps=0))
    for _ in range(2):
        gradients = [-np.ones((1, 1), "float32"), -np.ones(1, "float32")]
        keras3.apply_gradients(several, gradients, layer.trainable_variables)
    assert [float(array.item()) for array in layer.get_weights()] == [2.0, 0.75]


def test_only_a_loss_scale_optimizer_is_unwrapped(keras: Keras) -> None:
    """An optimizer of the user's may have an attribute of this name too."""
    plain = keras.module.optimizers.SGD(0.1)
    wrapping = keras.module.optimizers.SGD(0.1)
    wrapping.inner_optimizer = plain
    assert keras.inner_optimizer(wrapping) is wrapping
    assert keras.inner_optimizer(keras.module.mixed_precision.LossScaleOptimizer(plain)) is plain
