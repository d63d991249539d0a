"""What Keras' `compile` takes: optimizer, loss and metrics, settled between the job and the program.

Each may be named by the job, by the dict that the program returns and by the program's own `compile`; all that name
one must say the same, and what nobody names is chosen and said.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from mptraining_api.problems import InvalidProgram, InvalidSpec
from mptraining_api.resolved import ResolvedJob
from mptraining_trainer.example_spec import ExampleSpec
from mptraining_trainer.keras_generation import Keras
from mptraining_trainer.keras_objects import Kind, classes, keras_object, plain

_ENTRY_POINT = "spec.program.function.entryPoint"


def settled(
    job: ResolvedJob, keras: Keras, parts: Mapping[str, Any], example: ExampleSpec, notice: Callable[[str, str], None]
) -> tuple[Any, Any, list[Any]]:
    """Optimizer (without a LossScaleOptimizer around it), loss and metrics of the model in `parts`.

    `parts` is what the program returned, `example` what its model is fed. Raises InvalidSpec for what the job names,
    InvalidProgram for what the program brings and for two that disagree.
    """
    model = parts["model"]
    compiled = (model.get_compile_config() or {}) if getattr(model, "optimizer", None) is not None else {}
    if compiled.get("loss_weights") is not None:
        raise InvalidProgram(
            "compile(loss_weights=...)",
            "loss weights, which the training loop would not apply",
            next_step="Leave them out and scale the loss itself, or train with your own model.fit as program.script.",
        )
    optimizer = _optimizer(job, keras, parts, notice)
    loss = _loss(job, keras, parts, example, notice)
    return optimizer, loss, _metrics(job, keras, parts, compiled, loss)


def _optimizer(job: ResolvedJob, keras: Keras, parts: Mapping[str, Any], notice: Callable[[str, str], None]) -> Any:
    module = keras.module.optimizers
    wanted = job.training.optimizer if job.training else None
    given: dict[str, Any] = {}
    if wanted:
        given["spec.training.optimizer"] = keras_object(keras, "optimizers", wanted, "spec.training.optimizer")
    if parts.get("optimizer") is not None:
        given["the program's optimizer"] = _got(module.get, parts["optimizer"], "optimizer")
    if getattr(parts["model"], "optimizer", None) is not None:
        given["compile(optimizer=...)"] = keras.inner_optimizer(parts["model"].optimizer)
    if not given:
        notice("Optimizer", "Adam with a learning rate of 0.001: neither the job nor the program names an optimizer")
        return module.Adam(learning_rate=1e-3)
    where, optimizer = _agreed(keras, "optimizers", given)
    optimizer = keras.inner_optimizer(optimizer)
    if not isinstance(optimizer, module.Optimizer):
        raise InvalidProgram(
            where,
            f"{type(optimizer).__module__}.{type(optimizer).__name__}",
            expected=f"an optimizer of {keras.version}",
        )
    if getattr(optimizer, "gradient_accumulation_steps", None):
        raise InvalidProgram(
            where,
            "gradient_accumulation_steps inside the optimizer does not work with replicas",
            next_step="Use spec.training.gradientAccumulationSteps.",
        )
    return optimizer


def _loss(
    job: ResolvedJob, keras: Keras, parts: Mapping[str, Any], example: ExampleSpec, notice: Callable[[str, str], None]
) -> Any:
    module = keras.module.losses
    wanted = job.training.loss if job.training else None
    given: dict[str, Any] = {}
    if wanted:
        given["spec.training.loss"] = keras_object(keras, "losses", wanted, "spec.training.loss")
    for where, loss in (
        ("the program's loss", parts.get("loss")),
        ("compile(loss=...)", getattr(parts["model"], "loss", None)),
    ):
        if isinstance(loss, (list, tuple)) or (isinstance(loss, Mapping) and "class_name" not in loss):
            raise InvalidProgram(where, f"{len(loss)} losses", expected="one loss for the one output")
        if loss is not None:
            given[where] = _got(module.get, loss, where)
    if given:
        return _agreed(keras, "losses", given)[1]
    loss = _guessed_loss(keras, parts["model"], example)
    shown = {key: value for key, value in loss.get_config().items() if key == "from_logits"}
    notice(
        "Loss", f"{type(loss).__name__} {shown or ''}: chosen by output and label, as none is named".replace(" :", ":")
    )
    return loss


def _metrics(
    job: ResolvedJob, keras: Keras, parts: Mapping[str, Any], compiled: Mapping[str, Any], loss: Any
) -> list[Any]:
    """The job's metrics, then those of the program whose names are not among them."""
    found: list[Any] = []
    for number, wanted in enumerate((job.training and job.training.metrics) or ()):
        where = f"spec.training.metrics[{number}]"
        if wanted.class_name in ("accuracy", "acc"):
            found.append(_accuracy(keras, loss, wanted.class_name))
        else:
            found.append(keras_object(keras, "metrics", wanted, where))
    own = [*(parts.get("metrics") or ()), *_flat(compiled.get("metrics")), *_flat(compiled.get("weighted_metrics"))]
    for metric in own:
        made = _accuracy(keras, loss, metric) if metric in ("accuracy", "acc") else _metric(keras, metric)
        if made.name not in {one.name for one in found}:
            found.append(made)
    return found


def _guessed_loss(keras: Keras, model: Any, example: ExampleSpec) -> Any:
    module = keras.module.losses
    output = keras.output_shape(model)
    layer = keras.output_layer(model)
    activation = getattr(getattr(layer, "activation", None), "__name__", "linear")
    label = example.label
    whole = label.dtype in ("uint8", "int32", "int64", "bool")
    one_number = label.shape in ((), (1,))
    if output is not None and len(output) == 2 and one_number:
        if whole and output[1] != 1:
            return module.SparseCategoricalCrossentropy(from_logits=activation != "softmax")
        if whole and output[1] == 1:
            return module.BinaryCrossentropy(from_logits=activation != "sigmoid")
        if output[1] == 1:
            return module.MeanSquaredError()
    if output is not None and label.dtype.startswith("float") and tuple(output[1:]) == label.shape:
        return module.MeanSquaredError()
    raise InvalidSpec(
        "spec.training.loss",
        f"missing, and none follows from output {output} and label {label.dtype}{list(label.shape)}",
        next_step="Name a loss, such as {className: MeanSquaredError}.",
    )


def _flat(metrics: Any) -> list[Any]:
    if isinstance(metrics, Mapping) and "class_name" not in metrics:
        return [one for value in metrics.values() for one in _flat(value)]
    if isinstance(metrics, (list, tuple)):
        return [one for value in metrics for one in _flat(value)]
    return [] if metrics is None else [metrics]


def _metric(keras: Keras, metric: Any) -> Any:
    module = keras.module
    if isinstance(metric, Mapping):
        metric = _got(module.saving.deserialize_keras_object, metric, "metrics")
    metric = _got(module.metrics.get, metric, "metrics")
    if inspect.isclass(metric):
        metric = metric()
    if isinstance(metric, module.metrics.Metric):
        return metric
    return module.metrics.MeanMetricWrapper(metric, name=metric.__name__)


def _accuracy(keras: Keras, loss: Any, name: str) -> Any:
    kind = plain(getattr(loss, "__name__", type(loss).__name__))
    module = keras.module.metrics
    if kind.startswith("sparse"):
        return module.SparseCategoricalAccuracy(name=name)
    if kind.startswith("categorical"):
        return module.CategoricalAccuracy(name=name)
    return module.BinaryAccuracy(name=name) if kind.startswith("binary") else module.Accuracy(name=name)


def _got(get: Callable[[Any], Any], value: Any, what: str) -> Any:
    try:
        got = get(value)
    except Exception as error:
        raise InvalidProgram(_ENTRY_POINT, f"{what} {value!r}: {error}") from error
    if got is None or isinstance(got, str):
        raise InvalidProgram(_ENTRY_POINT, f"{what} {value!r} is not known to Keras")
    return got


def _agreed(keras: Keras, kind: Kind, given: Mapping[str, Any]) -> tuple[str, Any]:
    """The first of those named, when all say the same."""
    (where, chosen), *others = given.items()
    for other, value in others:
        if _described(keras, kind, chosen) != _described(keras, kind, value):
            raise InvalidProgram(
                where,
                f"{_shown(chosen)}, but {other} is {_shown(value)}",
                next_step="Leave one of them out, or make them equal.",
            )
    return where, chosen


def _described(keras: Keras, kind: Kind, value: Any) -> tuple[str, str]:
    name = plain(getattr(value, "__name__", type(value).__name__))
    if not hasattr(value, "get_config"):
        same = {plain(known): cls for known, cls in classes(keras, kind).items()}.get(name)
        if same is None:
            return name, str(id(value))
        value = same()
    ignored = ("name", "reduction", "dtype", "jit_compile", "is_legacy_optimizer")
    return name, str(sorted((key, str(one)) for key, one in value.get_config().items() if key not in ignored))


def _shown(value: Any) -> str:
    if not hasattr(value, "get_config"):
        return str(getattr(value, "__name__", value))
    config = value.get_config()
    kept = {
        key: config[key] for key in ("learning_rate", "momentum", "from_logits", "label_smoothing") if key in config
    }
    return f"{type(value).__name__}({', '.join(f'{key}={one}' for key, one in kept.items())})"
