"""What is trained: the model with its loss, optimizer and metrics, from an application's name or a user's function."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import tensorflow as tf

from mptraining_api.job import Function, KerasObject
from mptraining_api.problems import InvalidProgram, InvalidSpec, nearest
from mptraining_api.resolved import ResolvedJob
from mptraining_trainer import applications
from mptraining_trainer.example_spec import ExampleSpec
from mptraining_trainer.keras_generation import Keras
from mptraining_trainer.preprocess import Preprocess, check

Kind = Literal["optimizers", "losses", "metrics"]

_ENTRY_POINT = "spec.program.function.entryPoint"
_ENTRIES = ("model", "loss", "optimizer", "metrics", "callbacks", "preprocess")


@dataclass(frozen=True)
class Program:
    """`loss` gives one value an example; `optimizer` has no LossScaleOptimizer around it.

    `preprocess` is an application's own, over a batch of inputs, or a function program's, over (inputs, labels) of
    one example; see `preprocess.Preprocess`. `rebuild` holds JSON values: builder, arguments, inputs and preprocess,
    by which `export` says how the model is made again.
    """

    model: Any
    loss: Any
    optimizer: Any
    metrics: list[Any]
    preprocess: Callable[..., Any] | None = None
    callbacks: tuple[Any, ...] = ()
    rebuild: Mapping[str, Any] = field(default_factory=dict)


def build(job: ResolvedJob, keras: Keras, example: ExampleSpec, notice: Callable[[str, str], None]) -> Program:
    """The job's application or function program with everything it trains by.

    `example` is one after the function that `spec.data.preprocess` names. Call it inside `strategy.scope()`, after
    the policy and the seed were set. `notice` is told topic and message of what was decided for the user. Raises
    InvalidProgram and InvalidSpec.
    """
    named = job.data.preprocess if job.data else "auto"
    preprocess: Callable[..., Any] | None
    if job.program.application:
        built = applications.build(job, keras, example, notice)
        parts: dict[str, Any] = {"model": built.model}
        preprocess = built.preprocess
        rebuild = {**built.rebuild, "preprocess": built.preprocess_name}
    else:
        assert job.program.function is not None, "a script has no Program before it ran"
        parts = call_function(job.program.function, keras)
        preprocess = _per_example(parts, named)
        example = Preprocess(preprocess).example_after(example)
        _build_variables(parts["model"], example)
        rebuild = {"builder": "function", "arguments": job.program.function.to_document()}
        rebuild["preprocess"] = "the program's own" if preprocess else None
    if named not in ("auto", "none"):
        rebuild["preprocess"] = named
    rebuild["inputs"] = [{"name": one.name, "dtype": one.dtype, "shape": list(one.shape)} for one in example.inputs]
    optimizer = _optimizer(job, keras, parts, notice)
    loss = _loss(job, keras, parts, example, notice)
    metrics = _metrics(job, keras, parts, loss)
    return Program(parts["model"], keras.unreduced(loss), optimizer, metrics, preprocess, (), rebuild)


def call_function(function: Function, keras: Keras) -> dict[str, Any]:
    """What the user's function returns, as a dict with a model of the right generation.

    Raises InvalidProgram that names the entry point and, for an error inside the function, its file and line.
    """
    builder = import_entry_point(function.entry_point, _ENTRY_POINT)
    arguments = function.arguments or {}
    try:
        signature = inspect.signature(builder)
        signature.bind(**arguments)
    except (TypeError, ValueError) as error:
        raise InvalidProgram(
            "spec.program.function.arguments",
            f"{sorted(arguments)} do not fit {function.entry_point}: {error}",
            expected=f"{builder.__name__}{signature}",
        ) from None
    try:
        returned = builder(**arguments)
    except Exception as error:
        raise InvalidProgram(_ENTRY_POINT, _raised(function.entry_point, error)) from error
    parts = dict(returned) if isinstance(returned, Mapping) else {"model": returned}
    for key in parts:
        if key not in _ENTRIES:
            hint = nearest(str(key), _ENTRIES) or f"Known: {', '.join(_ENTRIES)}."
            raise InvalidProgram(_ENTRY_POINT, f"{function.entry_point} returned the entry {key!r}", next_step=hint)
    if parts.get("callbacks"):
        raise InvalidProgram(
            _ENTRY_POINT,
            "callbacks are not run by the training loop yet; a later version will",
            next_step="Leave them out, or train with your own model.fit as program.script.",
        )
    _check_model(function.entry_point, parts.get("model"), keras)
    return parts


def _per_example(parts: Mapping[str, Any], named: str) -> Callable[..., Any] | None:
    own = parts.get("preprocess")
    if own is None:
        return None
    # For a function `none` is what stands in the resolved job when the user named nothing.
    if named not in ("auto", "none"):
        raise InvalidProgram(
            "spec.data.preprocess",
            f"{named!r}, but the program returns a 'preprocess' of its own",
            next_step="Leave one of them out.",
        )
    return check(own)


def import_entry_point(entry_point: str, where: str) -> Callable[..., Any]:
    """The function `module:name`; the source folder is on sys.path already.

    Raises InvalidProgram naming `where`, the module or attribute that is not there, and the nearest that is.
    """
    name, _, attribute = entry_point.partition(":")
    try:
        module = importlib.import_module(name)
    except Exception as error:
        missing = error.name or "" if isinstance(error, ModuleNotFoundError) else ""
        if missing and (name == missing or name.startswith(f"{missing}.")):
            raise _module_not_found(where, name, missing) from None
        step = f"Add {missing!r} to source.requirements or to the image." if missing else ""
        raise InvalidProgram(where, _raised(f"importing {name}", error), next_step=step) from error
    try:
        found = getattr(module, attribute)
    except AttributeError:
        known = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        hint = nearest(attribute, known) or f"It has {', '.join(sorted(known)) or 'no functions'}."
        raise InvalidProgram(where, f"module {name!r} has no {attribute!r}", next_step=hint) from None
    if not callable(found):
        raise InvalidProgram(where, f"{entry_point} is {type(found).__name__}", expected="a function")
    return found  # type: ignore[no-any-return]


def keras_object(keras: Keras, kind: Kind, wanted: KerasObject, where: str) -> Any:
    """The optimizer, loss or metric that Keras' serialization names, of this generation of Keras.

    Nested objects such as learning rate schedules may say `class_name` or `className`; a function's name
    (`sparse_categorical_crossentropy`) stands for its class. Raises InvalidSpec naming `where`.
    """
    known = _classes(keras, kind)
    cls = known.get(wanted.class_name) or keras.module.saving.get_registered_object(wanted.class_name)
    if cls is None:
        by_function = {_plain(name): known[name] for name in known}
        cls = by_function.get(_plain(wanted.class_name)) if wanted.class_name.islower() else None
    if cls is None:
        hint = nearest(wanted.class_name, known) or f"Known: {', '.join(sorted(known))}."
        raise InvalidSpec(where, f"{keras.version} has no {kind} {wanted.class_name!r}", next_step=hint)
    return _construct(cls, _nested(keras, wanted.config or {}, where), where)


def user_frame(error: BaseException) -> str:
    """`file:line` of the innermost frame that is the user's own code, else an empty string."""
    ours = (str(Path(__file__).parent), *sorted({str(Path(module).parent) for module in _LIBRARIES}))
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = frame.filename
        if not path.startswith(("<", *ours)) and "site-packages" not in path:
            return f"{path}:{frame.lineno}"
    return ""


# The standard library and, for an editable TensorFlow, its own folder.
_LIBRARIES = (inspect.__file__, importlib.__file__, tf.__file__)


def _raised(what: str, error: Exception) -> str:
    place = user_frame(error)
    if isinstance(error, SyntaxError):
        place = f"{error.filename}:{error.lineno}"
    # Keras writes parts of its messages in bold.
    message = re.sub(r"\x1b\[[0-9;]*m", "", str(error))
    return f"{what} raised {type(error).__name__}: {message}" + (f" (at {place})" if place else "")


def _module_not_found(where: str, name: str, missing: str) -> InvalidProgram:
    parent, _, last = missing.rpartition(".")
    if parent:
        folders = list(getattr(sys.modules.get(parent), "__path__", []))
    else:
        folders = [folder or "." for folder in sys.path if "site-packages" not in folder and "lib/python" not in folder]
    found = {path.stem for folder in folders for path in Path(folder).glob("*") if path.suffix in ("", ".py")}
    near = nearest(last, sorted(word for word in found if word.isidentifier()))
    searched = ", ".join(folders) or "no source folder"
    step = near or "Give source, or put the code into the image."
    return InvalidProgram(where, f"no module {missing!r} (for {name!r}; searched {searched})", next_step=step)


def _check_model(entry_point: str, model: Any, keras: Keras) -> None:
    if not isinstance(model, keras.module.Model):
        other = "Legacy" if not keras.legacy else "Keras3"
        family = {cls.__module__.split(".")[0] for cls in type(model).__mro__ if cls.__name__ == "Model"}
        if family & {"keras", "tf_keras"}:
            package = "tf_keras" if other == "Legacy" else "keras"
            raise InvalidProgram(
                "spec.keras",
                f"{keras.generation}, but {entry_point} returned a model of {package}",
                next_step=f"Set keras: {other}, or import {'tf_keras' if keras.legacy else 'keras'} in the program.",
            )
        raise InvalidProgram(
            _ENTRY_POINT,
            f"{entry_point} returned {type(model).__name__}",
            expected="a keras.Model, or a dict with one as 'model'",
        )
    overridden = keras.has_own_train_step(model)
    if overridden:
        raise InvalidProgram(
            _ENTRY_POINT,
            f"{type(model).__name__} overrides {overridden}, which the training loop would not call",
            next_step="Train it with your own model.fit: name the file in program.script.",
        )


def _build_variables(model: Any, example: ExampleSpec) -> None:
    if not (model.built and model.variables):
        # Any size serves where an example's size varies; 32 survives a few poolings.
        batch = {
            one.name: tf.zeros((1, *(32 if size is None else size for size in one.shape)), one.dtype)
            for one in example.inputs
        }
        try:
            model(batch if len(batch) > 1 else next(iter(batch.values())))
        except Exception as error:
            shapes = ", ".join(f"{name} {list(value.shape)}" for name, value in batch.items())
            raise InvalidProgram(
                _ENTRY_POINT,
                _raised(f"calling {type(model).__name__} with zeros ({shapes})", error),
                next_step="The model must take the data's features; give it a keras.Input to be sure.",
            ) from error
    outputs = getattr(model, "outputs", None) or ()
    if len(outputs) > 1:
        raise InvalidProgram(
            _ENTRY_POINT,
            f"the model has {len(outputs)} outputs",
            expected="one",
            next_step="Train it with your own model.fit: name the file in program.script.",
        )


def _classes(keras: Keras, kind: Kind) -> dict[str, Any]:
    base = {"optimizers": "Optimizer", "losses": "Loss", "metrics": "Metric"}[kind]
    module = getattr(keras.module, kind)
    return {
        name: value
        for name, value in vars(module).items()
        if inspect.isclass(value)
        and issubclass(value, getattr(module, base))
        and name not in (base, "LossScaleOptimizer")
    }


def _nested(keras: Keras, value: Any, where: str) -> Any:
    if isinstance(value, (list, tuple)):
        return [_nested(keras, one, where) for one in value]
    if not isinstance(value, Mapping):
        return value
    name = value.get("class_name", value.get("className"))
    if name is None or not set(value) <= {"class_name", "className", "config", "module", "registered_name"}:
        return {key: _nested(keras, one, where) for key, one in value.items()}
    schedules = keras.module.optimizers.schedules
    known = {key: cls for key, cls in vars(schedules).items() if inspect.isclass(cls)}
    for kind in ("losses", "metrics", "optimizers"):
        known |= {key: cls for key, cls in _classes(keras, kind).items() if key not in known}
    cls = known.get(name) or keras.module.saving.get_registered_object(name)
    if cls is None:
        raise InvalidSpec(where, f"{keras.version} has no {name!r}", next_step=nearest(str(name), known))
    return _construct(cls, _nested(keras, value.get("config") or {}, where), f"{where} ({name})")


def _construct(cls: Any, config: Mapping[str, Any], where: str) -> Any:
    try:
        return cls(**config)
    except (TypeError, ValueError, AttributeError) as error:
        signature = ", ".join(name for name in inspect.signature(cls).parameters if name not in ("args", "kwargs"))
        raise InvalidSpec(
            f"{where}.config", f"{cls.__name__}: {error}", expected=f"arguments of {cls.__name__}({signature})"
        ) from None


def _plain(name: str) -> str:
    return name.replace("_", "").lower()


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


def _metrics(job: ResolvedJob, keras: Keras, parts: Mapping[str, Any], loss: Any) -> list[Any]:
    """The job's metrics, then those of the program whose names are not among them."""
    found: list[Any] = []
    for number, wanted in enumerate((job.training and job.training.metrics) or ()):
        where = f"spec.training.metrics[{number}]"
        if wanted.class_name in ("accuracy", "acc"):
            found.append(_accuracy(keras, loss, wanted.class_name))
        else:
            found.append(keras_object(keras, "metrics", wanted, where))
    own = list(parts.get("metrics") or ())
    if getattr(parts["model"], "optimizer", None) is not None:
        compiled = parts["model"].get_compile_config() or {}
        own += [*_flat(compiled.get("metrics")), *_flat(compiled.get("weighted_metrics"))]
    for metric in own:
        made = _accuracy(keras, loss, metric) if metric in ("accuracy", "acc") else _metric(keras, metric)
        if made.name not in {one.name for one in found}:
            found.append(made)
    return found


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
    kind = _plain(getattr(loss, "__name__", type(loss).__name__))
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
    name = _plain(getattr(value, "__name__", type(value).__name__))
    if not hasattr(value, "get_config"):
        same = {_plain(known): cls for known, cls in _classes(keras, kind).items()}.get(name)
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
