"""`python -m mptraining_trainer inspect`: facts about the job's model without training it.

The model is traced, never run, so that a laptop can inspect a model for a large accelerator; its weights are created
and take their memory. No data is read if the job names its features.
"""

from __future__ import annotations

import contextlib
import gc
import math
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from mptraining_api.launch import SOURCE_FOLDER
from mptraining_api.model_report import LayerFacts, ModelFacts, PolicyFacts, mixed_policy
from mptraining_api.problems import InvalidData, InvalidSpec, Problem
from mptraining_api.resolved_job import ResolvedData, ResolvedJob
from mptraining_records.storage import storage
from mptraining_records.tfrecord import manifest
from mptraining_trainer.data import schema
from mptraining_trainer.data.batch_spec import batch_spec
from mptraining_trainer.data.dataset import open_data, report_if_sorted
from mptraining_trainer.data.preprocess import Preprocess, check_signature
from mptraining_trainer.data.schema import ExampleSpec
from mptraining_trainer.keras_backend import Keras, load
from mptraining_trainer.model import program
from mptraining_trainer.model.program import Program
from mptraining_trainer.source.user_code import import_entry_point


@dataclass(frozen=True)
class LayerCall:
    """A call of a layer (or of an operation of a functional model) that calls no other; `outputs` are its tensors.

    `path` names the enclosing layers.
    """

    layer: Any
    path: str
    outputs: tuple[Any, ...]


@contextlib.contextmanager
def record_layer_calls(keras: Keras) -> Iterator[list[LayerCall]]:
    """Record every innermost call while the block traces a model."""
    base = keras.module.layers.Layer
    # In Keras 3 the operations of a functional model are not layers, but have the same `__call__`.
    called = next((cls for cls in base.__mro__ if cls.__name__ == "Operation"), base)
    original = called.__call__
    calls: list[LayerCall] = []
    # For each call in progress: the layer's name, whether it called another recorded layer, and the layer.
    active: list[list[Any]] = []

    def call(layer: Any, *arguments: Any, **named: Any) -> Any:
        for each in active:
            # A recurrent layer counts as one layer: its cell is called in a loop, and for shape inference.
            each[1] = not isinstance(each[2], keras.module.layers.RNN)
        active.append([layer.name, False, layer])
        try:
            result = original(layer, *arguments, **named)
        finally:
            names = [each[0] for each in active]
            _, inner, _ = active.pop()
        outputs = tuple(each for each in tf.nest.flatten(result) if tf.is_tensor(each))
        inside_loop = any(isinstance(each[2], keras.module.layers.RNN) for each in active)
        if not inner and not inside_loop and outputs and not _is_pass_through(layer):
            # The path omits the model itself.
            calls.append(LayerCall(layer, "/".join(names[1:] or names), outputs))
        return result

    called.__call__ = call
    try:
        yield calls
    finally:
        called.__call__ = original


def layer_facts(call: LayerCall, *, batch: int) -> LayerFacts:
    """Return the facts of one call that was traced with `batch` examples."""
    layer, output = call.layer, call.outputs[0]
    shape = tuple(output.shape[1:]) if output.shape.rank and output.shape[0] == batch else tuple(output.shape)
    weights = getattr(layer, "weights", None) or []
    inputs, outputs, multiply_adds = _multiplication(layer, output)
    activation = getattr(getattr(layer, "activation", None), "__name__", "")
    return LayerFacts(
        name=call.path,
        kind=type(layer).__name__,
        compute=str(getattr(layer, "compute_dtype", None) or output.dtype.name),
        variables=str(tf.as_dtype(weights[0].dtype).name) if weights else None,
        output=output.dtype.name,
        output_shape=shape,
        parameters=sum(math.prod(one.shape) for one in weights),
        inputs=inputs,
        outputs=outputs,
        multiply_adds=multiply_adds,
        softmax=activation == "softmax" or type(layer).__name__ == "Softmax",
    )


def _is_pass_through(layer: Any) -> bool:
    return type(layer).__name__ in ("InputLayer", "Identity", "Flatten", "Reshape", "Dropout") and not layer.weights


def _multiplication(layer: Any, output: Any) -> tuple[int | None, int | None, int]:
    """Return input width, output width and multiply-adds per example, for layers that use the matrix units."""
    kernel = getattr(layer, "kernel", None)
    if kernel is None or not hasattr(kernel, "shape"):
        return None, None, 0
    shape, kind = tuple(int(size) for size in kernel.shape), type(layer).__name__
    positions = math.prod(int(size) for size in output.shape[1:-1] if size is not None)
    if kind == "EinsumDense":
        # The kernel's dimensions that are missing in the output are summed over.
        summed = _summed(layer.equation)
        width = math.prod(size for size, is_summed in zip(shape, summed, strict=True) if is_summed)
        units = math.prod(shape) // max(width, 1)
        tokens = math.prod(int(size) for size in output.shape[1:] if size is not None) // max(units, 1)
        return width, units, math.prod(shape) * max(tokens, 1)
    if "Depthwise" in kind or "Separable" in kind:
        # Each channel is computed separately, so a matrix unit cannot be filled.
        return None, None, math.prod(shape) * positions
    if "Transpose" in kind:
        units, width = shape[-2:]
        return width, units, math.prod(shape) * positions // max(1, math.prod(layer.strides))
    if len(shape) < 2:
        return None, None, 0
    return shape[-2], shape[-1], math.prod(shape) * positions


def _summed(equation: str) -> list[bool]:
    """Return for each dimension of an EinsumDense's kernel whether it is summed over."""
    inputs, _, result = equation.replace("...", "").partition("->")
    return [letter not in result for letter in inputs.split(",")[1]]


# Operations whose output shares the memory of their input.
_VIEWS = frozenset({"Identity", "Reshape", "StopGradient", "Squeeze", "ExpandDims", "PreventGradient", "Snapshot"})
# Operations whose outputs a step does not have to save: the variables themselves, and constants of the program.
_NOT_SAVED = frozenset({"ReadVariableOp", "Const", "Placeholder", "VarHandleOp", "Shape", "ResourceGather"})


def saved_bytes(graph: Any, forward: Collection[Any], inputs: Sequence[Any], *, batch: int) -> tuple[int, int]:
    """Return (bytes per example, bytes per step) of the tensors that operations outside `forward` take from it.

    A tensor counts per example if it depends on `inputs` and its size is a multiple of `batch`, a prime that divides no
    layer's width. Tensors of unknown shape, and those that loops accumulate, are not counted.
    """
    dependent = _dependents(graph, inputs)
    given = {id(each) for each in inputs}
    each_example = once = 0
    for tensor in _saved(graph, forward):
        count = math.prod(tensor.shape) if tensor.shape.is_fully_defined() else 0
        size = count * tensor.dtype.size
        if id(tensor) in given or (tensor.op.name in dependent and count % batch == 0):
            each_example += size // batch
        elif tensor.op.type not in _NOT_SAVED:
            once += size
    return each_example, once


def _saved(graph: Any, forward: Collection[Any]) -> list[Any]:
    """Return the forward pass' tensors that the backward pass takes, each memory once."""
    found: dict[int, Any] = {}
    for operation in graph.get_operations():
        if operation in forward or operation.type == "Shape":
            continue
        for tensor in operation.inputs:
            while tensor.op.type in _VIEWS and tensor.op in forward:
                tensor = tensor.op.inputs[0]  # noqa: PLW2901 - the memory behind the view
            if tensor.op in forward and tensor.dtype.name not in ("resource", "variant"):
                found[id(tensor)] = tensor
    return list(found.values())


def _dependents(graph: Any, inputs: Sequence[Any]) -> set[str]:
    """Return the names of the operations that depend on the inputs."""
    reached = {each.op.name for each in inputs}
    for operation in graph.get_operations():
        if any(tensor.op.name in reached for tensor in operation.inputs):
            reached.add(operation.name)
    return reached


Notices = Callable[..., None]
# A prime that is larger than a convolution's kernel: a tensor whose size is a multiple of it has one part per example.
_BATCH = 127


def inspect(job: ResolvedJob, environment: Mapping[str, str], notice: Notices, now: Callable[[], float]) -> ModelFacts:
    """Return the facts of the model under float32 and a mixed policy. Raise Problem if the model cannot be trained."""
    if not job.program.is_trained_here or job.data is None:
        raise InvalidSpec(
            "spec.program.script",
            "a script builds its model itself, as it trains",
            next_step="Only applications and functions can be inspected; use `mptj check` without --deep.",
        )
    tf.config.set_visible_devices([], "GPU")
    keras = load(job.keras)
    if source := environment.get(SOURCE_FOLDER):
        sys.path.insert(0, source)
    example = _preprocess(job.data).example_after(example_of(job.data, notice, now))
    # Inspect with one replica in this process, whatever the job has; weights are not downloaded, since none are
    # inspected.
    application = job.program.application
    if application is not None:
        application = application.model_copy(update={"weights": None})
    alone = job.model_copy(
        update={"replicas": 1, "program": job.program.model_copy(update={"application": application})}
    )
    mixed = mixed_policy(job)
    # The job's policy comes last, so that the facts about the model are those under it.
    policies = sorted({"float32", *([mixed] if mixed else [])}, key=lambda policy: policy != "float32")
    found = []
    try:
        for policy in policies:
            # Clearing the session restarts the numbering of names, so that layers have the same names as in the job.
            keras.module.backend.clear_session()
            keras.set_policy(policy)
            built = program.build(alone, keras, example, notice)
            if built.compiled is not None and "train_step" in built.compiled.own_steps:
                raise InvalidSpec(
                    "spec.program.function",
                    f"{type(built.model).__name__} has its own train_step, which only training can check",
                    next_step="Use `mptj check` without --deep.",
                )
            found.append(_policy_facts(built, keras, example, policy))
            keras.build_optimizer(built.optimizer, built.model.trainable_variables)
            facts = _model_facts(built, keras, tuple(found))
            del built
            gc.collect()
    finally:
        keras.set_policy("float32")
    return facts


def example_of(data: ResolvedData, notice: Notices, now: Callable[[], float]) -> ExampleSpec:
    """Return the spec of one example, from the job, the manifest, or local records.

    Raises a Problem that names what is missing; of a bucket only the manifest is read.
    """
    if data.features is not None:
        return schema.decide_columns(data, None, [], notice).example_spec()
    step = "Name data.features, with them no data is needed; or run this where the data can be read."
    try:
        split_manifest = manifest.find(data.train)
        if split_manifest is not None:
            report_if_sorted(split_manifest, data, notice)
            return schema.decide_columns(data, split_manifest, [], notice).example_spec()
        if not any(storage.is_remote(pattern) for pattern in data.train):
            split = open_data(data.train, data, training_columns=None, notice=notice, now=now)
            split.reader.close()
            return split.columns.example_spec()
    except Problem as problem:
        raise type(problem)(problem.where, problem.found, expected=problem.expected, next_step=step) from None
    raise InvalidData(
        ", ".join(data.train), "no manifest, and no data.features say what an example looks like", next_step=step
    )


def _preprocess(data: ResolvedData) -> Preprocess:
    if data.preprocess in ("auto", "none"):
        return Preprocess()
    return Preprocess(per_example=check_signature(import_entry_point(data.preprocess, "spec.data.preprocess")))


def _policy_facts(built: Program, keras: Keras, example: ExampleSpec, policy: str) -> PolicyFacts:
    model, variables = built.model, keras.variables_of(built.model.trainable_variables)
    seen = program.example_of(built, example)
    specs = {one.name: batch_spec(one, _BATCH) for one in seen.inputs}
    inputs = specs if len(specs) > 1 else next(iter(specs.values()))
    labels = {one.name: batch_spec(one, _BATCH) for one in seen.labels}
    compiled = built.compiled
    assert compiled is not None
    output: list[Any] = []
    forward: set[Any] = set()
    taken: list[Any] = []

    def step(inputs: Any, labels: Any) -> Any:
        taken.extend(tf.nest.flatten(inputs, expand_composites=True))
        inputs = compiled.arrange_inputs(inputs)
        with tf.GradientTape() as tape:
            predictions = compiled.predictions(inputs, training=True)
            output.append(predictions)
            loss = compiled.loss(inputs, compiled.arrange_labels(labels), predictions, None, training=True)
        forward.update(loss.graph.get_operations())
        return [one for one in tape.gradient(loss, variables) if one is not None]

    with record_layer_calls(keras) as calls:
        traced = tf.function(step, autograph=False).get_concrete_function(
            inputs, labels if len(labels) > 1 else next(iter(labels.values()), ())
        )
    activations, copies = saved_bytes(traced.graph, forward, taken, batch=_BATCH)
    layer = keras.output_layer(model)
    layers = tuple(layer_facts(call, batch=_BATCH) for call in calls)
    return PolicyFacts(
        policy=policy,
        layers=layers,
        output=tf.nest.flatten(output[0])[0].dtype.name,
        output_layer=layer.name,
        activations=activations,
        copies=copies,
        softmax=tuple(_other_softmax(forward, {one.name.rpartition("/")[2] for one in layers if one.softmax})),
    )


def _other_softmax(forward: Collection[Any], known: Collection[str]) -> Iterator[str]:
    """Yield softmax operations below float32 in custom layers and models, by the names of their scopes."""
    for operation in sorted(forward, key=lambda each: str(each.name)):
        scopes = operation.name.split("/")[:-1]
        if operation.type not in ("Softmax", "LogSoftmax") or operation.outputs[0].dtype.size >= 4:
            continue
        # Keras 3 numbers a scope that is entered again: `head_1` is the layer `head` in its second trace.
        if not any(scope == name or scope.startswith(f"{name}_") for scope in scopes for name in known):
            yield f"{'/'.join(scopes[1:]) or operation.name} ({operation.outputs[0].dtype.name})"


def _model_facts(built: Program, keras: Keras, policies: tuple[PolicyFacts, ...]) -> ModelFacts:
    model = built.model
    trainable = keras.variables_of(model.trainable_variables)
    loops = tuple(layer.name for layer in keras.layers(model) if isinstance(layer, keras.module.layers.RNN))
    return ModelFacts(
        name=model.name,
        keras=keras.version,
        parameters=sum(math.prod(one.shape) for one in keras.variables_of(model.weights)),
        trainable=sum(math.prod(one.shape) for one in trainable),
        weights=_size(keras.variables(model)),
        slots=_size(keras.variables_of(built.optimizer.variables)),
        gradients=_size(trainable),
        policies=policies,
        uncounted=loops,
    )


def _size(variables: list[Any]) -> int:
    return sum(math.prod(one.shape) * one.dtype.size for one in variables)
