"""Compilation: optimizer, loss and metrics of the job and of the program, passed to Keras' own `compile`.

The job, the dict that the program returns, and the program's own `compile` may name each of them; sources that name the
same object must agree, and a default that is chosen is reported. Objects are used as they are, not rebuilt from their
config.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any, Literal

import tensorflow as tf

from mptraining_api.problems import InvalidProgram, InvalidSpec, nearest
from mptraining_api.resolved_job import LearningRate, ResolvedJob
from mptraining_api.spec import KerasObject
from mptraining_trainer import keras_internals
from mptraining_trainer.data.schema import ExampleSpec, TensorSpec
from mptraining_trainer.keras_backend import Keras
from mptraining_trainer.model.compiled import CompiledModel

Kind = Literal["optimizers", "losses", "metrics"]
_SINGULAR: dict[Kind, str] = {"optimizers": "optimizer", "losses": "loss", "metrics": "metric"}


def keras_object(keras: Keras, kind: Kind, setting: KerasObject, where: str) -> Any:
    """Return the optimizer, loss or metric that Keras' serialization names, of this generation of Keras.

    Nested objects such as learning rate schedules may have `class_name` or `className`; a function's name
    (`sparse_categorical_crossentropy`) selects its class. Raises InvalidSpec naming `where`.
    """
    known = classes(keras, kind)
    cls = known.get(setting.class_name) or keras.module.saving.get_registered_object(setting.class_name)
    if cls is None:
        by_function = {normalized_name(name): known[name] for name in known}
        cls = by_function.get(normalized_name(setting.class_name)) if setting.class_name.islower() else None
    if cls is None:
        hint = nearest(setting.class_name, known) or f"Known: {', '.join(sorted(known))}."
        raise InvalidSpec(
            where, f"there is no {_SINGULAR[kind]} {setting.class_name!r} in {keras.version}", next_step=hint
        )
    return _construct(cls, _nested(keras, setting.config or {}, where), where)


def classes(keras: Keras, kind: Kind) -> dict[str, Any]:
    """Return the classes of that kind in this generation of Keras, by name."""
    base = {"optimizers": "Optimizer", "losses": "Loss", "metrics": "Metric"}[kind]
    module = getattr(keras.module, kind)
    return {
        name: value
        for name, value in vars(module).items()
        if inspect.isclass(value)
        and issubclass(value, getattr(module, base))
        and name not in (base, "LossScaleOptimizer")
    }


def normalized_name(name: str) -> str:
    """Return one spelling for a class and its function: `MeanSquaredError`, `mean_squared_error`."""
    return name.replace("_", "").lower()


def _nested(keras: Keras, value: Any, where: str) -> Any:
    if isinstance(value, (list, tuple)):
        return [_nested(keras, item, where) for item in value]
    if not isinstance(value, Mapping):
        return value
    name = value.get("class_name", value.get("className"))
    if name is None or not set(value) <= {"class_name", "className", "config", "module", "registered_name"}:
        return {key: _nested(keras, item, where) for key, item in value.items()}
    schedules = keras.module.optimizers.schedules
    known = {key: cls for key, cls in vars(schedules).items() if inspect.isclass(cls)}
    for kind in ("losses", "metrics", "optimizers"):
        known |= {key: cls for key, cls in classes(keras, kind).items() if key not in known}
    cls = known.get(name) or keras.module.saving.get_registered_object(name)
    if cls is None:
        raise InvalidSpec(where, f"there is no {name!r} in {keras.version}", next_step=nearest(str(name), known))
    return _construct(cls, _nested(keras, value.get("config") or {}, where), f"{where} ({name})")


def _construct(cls: Any, config: Mapping[str, Any], where: str) -> Any:
    try:
        return cls(**config)
    except (TypeError, ValueError, AttributeError) as error:
        signature = ", ".join(name for name in inspect.signature(cls).parameters if name not in ("args", "kwargs"))
        raise InvalidSpec(
            f"{where}.config", f"{cls.__name__}: {error}", expected=f"arguments of {cls.__name__}({signature})"
        ) from None


_ENTRY_POINT = "spec.program.function.entryPoint"


def compile_model(
    job: ResolvedJob, keras: Keras, parts: Mapping[str, Any], example: ExampleSpec, notice: Callable[[str, str], None]
) -> tuple[CompiledModel, Any]:
    """Compile the model in `parts`; return it and its optimizer without a LossScaleOptimizer.

    `parts` is the program's result, `example` the model's input. Raises InvalidSpec for names in the job,
    InvalidProgram for objects of the program and for two sources that disagree.
    """
    model = parts["model"]
    compiled = CompiledModel(keras, model, [label.name for label in example.labels], example.inputs)
    optimizer = _optimizer(job, keras, parts, notice)
    loss, new_loss = _loss(job, keras, compiled, parts, example, notice)
    added = _job_metrics(job, keras, example)
    program_metrics = _as_list(parts.get("metrics"))
    weighted = _as_list(parts.get("weighted_metrics"))
    weights = parts.get("loss_weights")
    if not keras_internals.is_compiled(model, legacy=keras.legacy):
        _compile(keras, model, optimizer, loss, weights, _merge_metrics(added, program_metrics), weighted)
    elif new_loss or added or program_metrics is not None or weighted is not None or weights is not None:
        if type(model).compile is not keras.module.Model.compile:
            raise InvalidProgram(
                _ENTRY_POINT,
                f"{type(model).__name__} has its own `compile`, and the job or the returned dict names more",
                next_step="Name loss and metrics in the program's compile alone.",
            )
        before = keras_internals.compiled_arguments(model, legacy=keras.legacy)
        metrics = _merge_metrics(added, _merge_metrics(_flat(program_metrics), before["metrics"]))
        given = {"loss_weights": weights, "weighted_metrics": weighted}
        more = {key: before[key] if value is None else value for key, value in given.items()}
        _compile(keras, model, optimizer, loss, more["loss_weights"], metrics, more["weighted_metrics"])
    # Under mixed_float16 `compile` wraps the optimizer in a LossScaleOptimizer; the loop scales the loss itself.
    model.optimizer = optimizer
    return compiled, optimizer


def _compile(
    keras: Keras, model: Any, optimizer: Any, loss: Any, loss_weights: Any, metrics: Any, weighted_metrics: Any
) -> None:
    more = {} if keras.legacy else {"auto_scale_loss": False, "jit_compile": False}
    try:
        keras.module.Model.compile(
            model,
            optimizer=optimizer,
            loss=loss,
            loss_weights=loss_weights,
            metrics=metrics or None,
            weighted_metrics=weighted_metrics or None,
            **more,
        )
    except (ValueError, TypeError) as error:
        raise InvalidProgram(_ENTRY_POINT, f"compile: {error}") from error


def _as_list(metrics: Any) -> Any:
    return list(metrics) if isinstance(metrics, tuple) else metrics


def _merge_metrics(first: Sequence[Any], others: Any) -> Any:
    """Return the job's metrics, then those of the program without the ones of the same name."""
    if not first:
        return others
    if isinstance(others, Mapping):
        raise InvalidSpec(
            "spec.training.metrics",
            "metrics beside those that the program names for each output",
            next_step="Name them in the program's compile.",
        )
    names = {_metric_name(metric) for metric in first}
    return [*first, *(metric for metric in _flat(others) if _metric_name(metric) not in names)]


def _metric_name(metric: Any) -> str:
    if isinstance(metric, str):
        return metric
    return str(getattr(metric, "name", None) or getattr(metric, "__name__", type(metric).__name__))


def _optimizer(job: ResolvedJob, keras: Keras, parts: Mapping[str, Any], notice: Callable[[str, str], None]) -> Any:
    module = keras.module.optimizers
    setting = job.training.optimizer if job.training else None
    given: dict[str, Any] = {}
    if setting:
        given["spec.training.optimizer"] = keras_object(keras, "optimizers", setting, "spec.training.optimizer")
    if parts.get("optimizer") is not None:
        given["the program's optimizer"] = _resolve(module, parts["optimizer"], "optimizer")
    if getattr(parts["model"], "optimizer", None) is not None:
        given["compile(optimizer=...)"] = keras.inner_optimizer(parts["model"].optimizer)
    if not given:
        notice("Optimizer", "Adam with a learning rate of 0.001: neither the job nor the program names an optimizer")
        return module.Adam(learning_rate=1e-3)
    where, optimizer = _require_equal(keras, "optimizers", given)
    optimizer = keras.inner_optimizer(optimizer)
    if not isinstance(optimizer, module.Optimizer):
        raise InvalidProgram(
            where,
            f"{type(optimizer).__module__}.{type(optimizer).__name__}",
            expected=f"an optimizer of {keras.version}",
        )
    if any(getattr(part, "gradient_accumulation_steps", None) for part in keras.parts(optimizer)):
        raise InvalidProgram(
            where,
            "gradient_accumulation_steps inside the optimizer does not work with replicas",
            next_step="Use spec.training.gradientAccumulationSteps.",
        )
    # Methods that tf_keras' `fit` calls, and the loop does not.
    for name in ("minimize", "compute_gradients", "aggregate_gradients") if keras.legacy else ():
        if getattr(type(optimizer), name) is not getattr(module.Optimizer, name):
            raise InvalidProgram(
                where,
                f"{type(optimizer).__name__} overrides {name}, which the training loop does not call",
                next_step="Override apply_gradients instead, or train by a script.",
            )
    return optimizer


def _loss(
    job: ResolvedJob,
    keras: Keras,
    compiled: CompiledModel,
    parts: Mapping[str, Any],
    example: ExampleSpec,
    notice: Callable[[str, str], None],
) -> tuple[Any, bool]:
    """Return the `loss` argument for `compile`, and whether the program's own `compile` lacks it."""
    model = parts["model"]
    setting = job.training.loss if job.training else None
    given: dict[str, Any] = {}
    if setting:
        given["spec.training.loss"] = keras_object(keras, "losses", setting, "spec.training.loss")
    if parts.get("loss") is not None:
        given["the program's loss"] = parts["loss"]
    loss_of_compile = getattr(model, "loss", None) if keras_internals.is_compiled(model, legacy=keras.legacy) else None
    if loss_of_compile is not None:
        given["compile(loss=...)"] = loss_of_compile
    for where, loss in given.items():
        if isinstance(loss, str):
            _resolve(keras.module.losses, loss, where)
    if given:
        _require_equal(keras, "losses", {where: _comparable_loss(keras, loss) for where, loss in given.items()})
        return (loss_of_compile, False) if loss_of_compile is not None else (next(iter(given.values())), True)
    if compiled.own_loss or compiled.own_steps or example.label is None:
        return None, False
    loss = _default_loss(keras, model, example)
    shown = {key: value for key, value in loss.get_config().items() if key == "from_logits"}
    notice(
        "Loss", f"{type(loss).__name__} {shown or ''}: chosen by output and label, as none is named".replace(" :", ":")
    )
    return loss, True


def _comparable_loss(keras: Keras, loss: Any) -> Any:
    """Return a comparable loss: the object for a name, text for a structure of several."""
    if isinstance(loss, (list, tuple)) or (isinstance(loss, Mapping) and "class_name" not in loss):
        return str(loss)
    return keras.module.losses.get(loss) if isinstance(loss, (str, Mapping)) else loss


def _job_metrics(job: ResolvedJob, keras: Keras, example: ExampleSpec) -> list[Any]:
    """Return the job's metrics; `accuracy` stays a name, which Keras resolves by outputs and labels."""
    settings = (job.training and job.training.metrics) or ()
    if settings and len(example.labels) > 1:
        raise InvalidSpec(
            "spec.training.metrics",
            f"{len(settings)} metrics for {len(example.labels)} labels",
            next_step="Name the metrics of each output in the program's compile.",
        )
    return [
        setting.class_name
        if setting.class_name in ("accuracy", "acc")
        else keras_object(keras, "metrics", setting, f"spec.training.metrics[{number}]")
        for number, setting in enumerate(settings)
    ]


def _default_loss(keras: Keras, model: Any, example: ExampleSpec) -> Any:
    module = keras.module.losses
    output = keras.output_shape(model)
    layer = keras.output_layer(model)
    activation = getattr(getattr(layer, "activation", None), "__name__", "linear")
    label = example.label
    assert label is not None
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
    compiled = (
        "the program's compile names no loss"
        if keras_internals.is_compiled(model, legacy=keras.legacy)
        else "the model is not compiled"
    )
    suits, arguments = _suggested_loss(output, activation, label, whole=whole)
    job_loss = f"{{className: {suits}{', config: {from_logits: true}' if arguments else ''}}}"
    raise InvalidSpec(
        "spec.training.loss",
        f"missing: {compiled}, and no loss follows from output {output} and label {label.dtype}{list(label.shape)}",
        next_step=f"Call model.compile(loss=keras.losses.{suits}({arguments})) in the program, or set training.loss: "
        f"{job_loss} in the job{', for labels 0 and 1' if suits.startswith('Binary') else ''}.",
    )


def _suggested_loss(
    output: tuple[int | None, ...] | None, activation: str, label: TensorSpec, *, whole: bool
) -> tuple[str, str]:
    """Return the class of a loss that suits whole labels of the output's shape without its channels, and arguments."""
    if not whole or not output:
        return "MeanSquaredError", ""
    places, channels = output[1:-1], output[-1]
    if label.shape not in (places, (*places, 1)):
        return "MeanSquaredError", ""
    if channels == 1:
        return "BinaryCrossentropy", "" if activation == "sigmoid" else "from_logits=True"
    return "SparseCategoricalCrossentropy", "" if activation == "softmax" else "from_logits=True"


def _flat(metrics: Any) -> list[Any]:
    if isinstance(metrics, Mapping) and "class_name" not in metrics:
        return [metric for value in metrics.values() for metric in _flat(value)]
    if isinstance(metrics, (list, tuple)):
        return [metric for value in metrics for metric in _flat(value)]
    return [] if metrics is None else [metrics]


def _resolve(module: Any, value: Any, what: str) -> Any:
    """Return Keras' object for `value`; `module` is `keras.losses` or `keras.optimizers`."""
    hint = nearest(value, _identifiers(module)) if isinstance(value, str) else ""
    try:
        got = module.get(value)
    except Exception as error:
        message = str(error).rstrip(".")
        raise InvalidProgram(_ENTRY_POINT, f"{what} {value!r}: {message}", next_step=hint) from error
    if got is None or isinstance(got, str):
        raise InvalidProgram(_ENTRY_POINT, f"{what} {value!r} is not known to Keras", next_step=hint)
    return got


def _identifiers(module: Any) -> list[str]:
    """Return the names that `module.get` knows: of classes, in small letters too as optimizers have, and functions."""
    known = {name: value for name, value in vars(module).items() if callable(value) and not name.startswith("_")}
    names = set(known) - {"get", "serialize", "deserialize", "Loss", "Optimizer"}
    if hasattr(module, "Optimizer"):
        names |= {name.lower() for name in names}
    return sorted(names)


def _require_equal(keras: Keras, kind: Kind, given: Mapping[str, Any]) -> tuple[str, Any]:
    """Return the first of the named objects. Raise InvalidProgram if the others differ."""
    (where, chosen), *others = given.items()
    for other, value in others:
        if _comparable(keras, kind, chosen) != _comparable(keras, kind, value):
            raise InvalidProgram(
                where,
                f"{_summary(chosen)}, but {other} is {_summary(value)}",
                next_step="Leave one of them out, or make them equal.",
            )
    return where, chosen


def _comparable(keras: Keras, kind: Kind, value: Any) -> tuple[str, str]:
    if isinstance(value, str):
        return "", value
    name = normalized_name(getattr(value, "__name__", type(value).__name__))
    if not hasattr(value, "get_config"):
        same = {normalized_name(known): cls for known, cls in classes(keras, kind).items()}.get(name)
        if same is None:
            return name, str(id(value))
        value = same()
    ignored = ("name", "reduction", "dtype", "jit_compile", "is_legacy_optimizer")
    return name, str(sorted((key, str(item)) for key, item in value.get_config().items() if key not in ignored))


def _summary(value: Any) -> str:
    if not hasattr(value, "get_config"):
        return str(getattr(value, "__name__", value))
    config = value.get_config()
    kept = {
        key: config[key] for key in ("learning_rate", "momentum", "from_logits", "label_smoothing") if key in config
    }
    return f"{type(value).__name__}({', '.join(f'{key}={item}' for key, item in kept.items())})"


def scale_learning_rate(keras: Keras, optimizer: Any, learning_rate: LearningRate) -> None:
    """Replace the optimizer's rate r(step) by factor * r(step) * min(1, (step + 1) / warmup_steps).

    `step` counts the optimizer's iterations from 0, that is updates, not batches under gradient accumulation. The
    gradual warm-up is that of Goyal et al., "Accurate, Large Minibatch SGD" (2017), section 2.2, here from zero. Call
    it inside `strategy.scope()`, when the optimizer is built.
    """
    if learning_rate.factor == 1.0 and learning_rate.warmup_steps == 0:
        return
    for part in keras.parts(optimizer):
        # Not `learning_rate`: of a schedule that is its present value.
        base = keras_internals.rate_or_schedule(part)
        if not callable(base):
            base = float(base.numpy())
        if learning_rate.warmup_steps == 0 and not callable(base):
            part.learning_rate = base * learning_rate.factor
            continue
        scaled = scaled_schedule(keras.module)(base, learning_rate.factor, learning_rate.warmup_steps)
        keras_internals.set_schedule(part, scaled, legacy=keras.legacy)


@functools.cache
def scaled_schedule(module: ModuleType) -> Any:
    """Return the LearningRateSchedule of this generation of Keras (`keras` or `tf_keras`) that scales and warms up."""

    @module.saving.register_keras_serializable(package="mptraining")
    class ScaledLearningRate(module.optimizers.schedules.LearningRateSchedule):  # type: ignore[name-defined, misc]
        """A scaled rate with warm-up; `base` is a rate or another schedule."""

        def __init__(self, base: Any, factor: float, warmup_steps: int) -> None:
            super().__init__()
            self.base = base if callable(base) else float(base)
            self.factor = float(factor)
            self.warmup_steps = int(warmup_steps)

        def __call__(self, step: Any) -> Any:
            rate = tf.cast(self.base(step) if callable(self.base) else self.base, tf.float32)
            done = tf.cast(step, tf.float32) + 1.0
            return rate * self.factor * tf.minimum(1.0, done / max(self.warmup_steps, 1))

        def get_config(self) -> dict[str, Any]:
            base = module.optimizers.schedules.serialize(self.base) if callable(self.base) else self.base
            return {"base": base, "factor": self.factor, "warmup_steps": self.warmup_steps}

        @classmethod
        def from_config(cls, config: dict[str, Any]) -> Any:
            base = config["base"]
            if isinstance(base, dict):
                base = module.optimizers.schedules.deserialize(base)
            return cls(base, config["factor"], config["warmup_steps"])

    return ScaledLearningRate
