"""The program of a job: the model with its loss, optimizer and metrics, from an application or a user's function."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mptraining_api.problems import InvalidProgram, nearest
from mptraining_api.programs.fields import Function
from mptraining_api.resolved_job import ResolvedJob
from mptraining_trainer.data.batch_spec import one_or_dict, zeros
from mptraining_trainer.data.preprocess import Preprocess, check_signature
from mptraining_trainer.data.schema import ExampleSpec, TensorSpec
from mptraining_trainer.job.user_code import import_entry_point
from mptraining_trainer.keras_backend import Keras
from mptraining_trainer.model import applications
from mptraining_trainer.model.compile import compile_model
from mptraining_trainer.model.compiled import CompiledModel
from mptraining_trainer.model.hyperparameters import takes_hyperparameters, with_hyperparameters
from mptraining_trainer.model.output_losses import OutputLoss, output_losses
from mptraining_trainer.model.supported_callbacks import check_callbacks
from mptraining_trainer.report.error_text import describe_error

_ENTRY_POINT = "spec.program.function.entryPoint"
_ENTRIES = (*("model", "loss", "loss_weights", "optimizer", "metrics", "weighted_metrics", "callbacks", "preprocess"),)


@dataclass(frozen=True, kw_only=True)
class ExportedModel:
    """A model with JSON values (builder, arguments, inputs, preprocess) that document how to build it."""

    model: Any
    rebuild: Mapping[str, Any] = field(default_factory=dict)

    @property
    def losses(self) -> dict[str, OutputLoss]:
        """The losses by output, as far as they are known."""
        return {}


@dataclass(frozen=True, kw_only=True)
class Program(ExportedModel):
    """A model and everything that training and export need of it.

    `compiled` is the model with its loss and metrics; `optimizer` is without a LossScaleOptimizer. `preprocess` is an
    application's own, over a batch of inputs, or a function program's, over (inputs, labels) of one example; see
    `data.preprocess.Preprocess`.
    """

    compiled: CompiledModel
    optimizer: Any = None
    preprocess: Callable[..., Any] | None = None
    callbacks: tuple[Any, ...] = ()

    @property
    def losses(self) -> dict[str, OutputLoss]:
        return output_losses(self.compiled)


def build(job: ResolvedJob, keras: Keras, example: ExampleSpec, notice: Callable[[str, str], None]) -> Program:
    """Return the job's application or function program, compiled.

    `example` is one example after the function of `spec.data.preprocess`. Call it inside `strategy.scope()`, after the
    policy and the seed were set. `notice` receives topic and message of each default that is chosen. Raises
    InvalidProgram and InvalidSpec.
    """
    named = job.data.preprocess if job.data else "auto"
    preprocess: Callable[..., Any] | None
    if job.program.application:
        built = applications.build(job.program.application, job, keras, example, notice)
        parts: dict[str, Any] = {"model": built.model}
        preprocess = built.preprocess
        rebuild = {**built.rebuild, "preprocess": built.preprocess_name}
    elif job.program.function:
        parts = call_function(job.program.function, keras)
        preprocess = _per_example(parts, named)
        example = Preprocess(preprocess).example_after(example)
        _build_variables(keras, parts["model"], example)
        rebuild = {"builder": "function", "arguments": job.program.function.to_document()}
        rebuild["preprocess"] = "the program's own" if preprocess else None
    else:
        raise ValueError("a script has no Program")
    if named not in ("auto", "none"):
        rebuild["preprocess"] = named
    compiled, optimizer = compile_model(job, keras, parts, example, notice)
    fed = {
        tensor.name: {
            "name": tensor.name,
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            **({"ragged": True} if tensor.ragged else {}),
        }
        for tensor in example.inputs
    }
    rebuild["inputs"] = [fed[name] for name in compiled.inputs or fed]
    return Program(
        model=parts["model"],
        rebuild=rebuild,
        compiled=compiled,
        optimizer=optimizer,
        preprocess=preprocess,
        callbacks=parts.get("callbacks", ()),
    )


def example_of(program: Program, example: ExampleSpec) -> ExampleSpec:
    """Return the spec of the model's and loss's input: `example` after the program's own preprocessing."""
    if program.rebuild.get("builder") == "function":
        return Preprocess(program.preprocess).example_after(example)
    if program.preprocess is None:
        return example
    # An application's own preprocessing converts every image to float32.
    images = tuple(TensorSpec(tensor.name, "float32", tensor.shape) for tensor in example.inputs)
    return ExampleSpec(images, example.labels, example.classes, example.weighted)


def call_function(function: Function, keras: Keras) -> dict[str, Any]:
    """Return the result of the user's function, as a dict with a model of the right Keras generation.

    Raises InvalidProgram that names the entry point and, for an error inside the function, its file and line.
    """
    builder = import_entry_point(function.entry_point, _ENTRY_POINT)
    arguments: Mapping[str, Any] = function.arguments or {}
    check: Callable[[bool], None] = _no_check
    if takes_hyperparameters(builder, arguments):
        arguments, check = with_hyperparameters(builder, function.entry_point, arguments)
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
        # A value outside of its range may be the cause.
        check(False)
        # tf_keras refuses stateful RNNs in a strategy's scope.
        step = "Set strategy: None, on one device." if "not yet supported with tf.distribute" in str(error) else ""
        raise InvalidProgram(_ENTRY_POINT, describe_error(function.entry_point, error), next_step=step) from error
    check(True)
    parts = dict(returned) if isinstance(returned, Mapping) else {"model": returned}
    for key in parts:
        if key not in _ENTRIES:
            hint = nearest(str(key), _ENTRIES) or f"Known: {', '.join(_ENTRIES)}."
            raise InvalidProgram(_ENTRY_POINT, f"{function.entry_point} returned the entry {key!r}", next_step=hint)
    _check_model(function.entry_point, parts.get("model"), keras)
    given = parts.get("callbacks")
    given = given if isinstance(given, (list, tuple)) else [given] if given is not None else []
    parts["callbacks"] = check_callbacks(given, package="tf_keras" if keras.legacy else "keras")
    return parts


def _no_check(_returned: bool) -> None:
    """Accept the arguments of a function without hyperparameters: its signature has checked them."""


def _per_example(parts: Mapping[str, Any], named: str) -> Callable[..., Any] | None:
    function = parts.get("preprocess")
    if function is None:
        return None
    # For a function program the resolved job has `none` if the user set no preprocess.
    if named not in ("auto", "none"):
        raise InvalidProgram(
            "spec.data.preprocess",
            f"{named!r}, but the program returns its own 'preprocess'",
            next_step="Leave one of them out.",
        )
    return check_signature(function)


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


def _build_variables(keras: Keras, model: Any, example: ExampleSpec) -> None:
    if "train_step" in CompiledModel(keras, model).own_steps:
        # A model with its own step may have no `call`: the step builds the model.
        return
    if not (model.built and model.variables):
        batch = {tensor.name: zeros(tensor, 1) for tensor in example.inputs}
        try:
            model(one_or_dict(batch))
        except Exception as error:
            shapes = ", ".join(f"{name} {list(value.shape)}" for name, value in batch.items())
            raise InvalidProgram(
                _ENTRY_POINT,
                describe_error(f"calling {type(model).__name__} with zeros ({shapes})", error),
                next_step="The model must take the data's features; give it a keras.Input to be sure.",
            ) from error
