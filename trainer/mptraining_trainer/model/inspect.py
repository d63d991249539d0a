"""`python -m mptraining_trainer inspect`: builds the job's model, looks at it, trains nothing.

The model is traced, never run, so that a model for a large accelerator can be looked at on a laptop; its weights are
made, which takes their memory. Nothing is read of the data when the job names its features.
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
from mptraining_records.tfrecord import manifest as records_manifest
from mptraining_trainer.data import schema
from mptraining_trainer.data.dataset import open_data
from mptraining_trainer.data.preprocess import Preprocess, check
from mptraining_trainer.data.schema import ExampleSpec
from mptraining_trainer.keras_backend import Keras, load
from mptraining_trainer.model import program
from mptraining_trainer.model.program import Program
from mptraining_trainer.source.user_code import import_entry_point


@dataclass(frozen=True)
class LayerCall:
    """A call of a layer (or of an operation of a functional model) that called no other: `outputs` are its tensors.

    `path` names the layers that it stands in.
    """

    layer: Any
    path: str
    outputs: tuple[Any, ...]


@contextlib.contextmanager
def recorded(keras: Keras) -> Iterator[list[LayerCall]]:
    """Notes every innermost call while the block traces a model."""
    base = keras.module.layers.Layer
    # In Keras 3 the operations of a functional model are no layers, but are called in the same place.
    called = next((cls for cls in base.__mro__ if cls.__name__ == "Operation"), base)
    original = called.__call__
    calls: list[LayerCall] = []
    # For each call under way: its name, whether it called another that counts, and the layer.
    around: list[list[Any]] = []

    def call(layer: Any, *arguments: Any, **named: Any) -> Any:
        for each in around:
            # A recurrent layer is one layer: its cell is called in a loop, and to learn what it gives.
            each[1] = not isinstance(each[2], keras.module.layers.RNN)
        around.append([layer.name, False, layer])
        try:
            result = original(layer, *arguments, **named)
        finally:
            names = [each[0] for each in around]
            _, inner, _ = around.pop()
        outputs = tuple(each for each in tf.nest.flatten(result) if tf.is_tensor(each))
        inside_loop = any(isinstance(each[2], keras.module.layers.RNN) for each in around)
        if not inner and not inside_loop and outputs and not _passes_on(layer):
            # The model itself goes without saying.
            calls.append(LayerCall(layer, "/".join(names[1:] or names), outputs))
        return result

    called.__call__ = call
    try:
        yield calls
    finally:
        called.__call__ = original


def layer_facts(call: LayerCall, *, batch: int) -> LayerFacts:
    """The facts of one call that was traced with `batch` examples."""
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


def _passes_on(layer: Any) -> bool:
    return type(layer).__name__ in ("InputLayer", "Identity", "Flatten", "Reshape", "Dropout") and not layer.weights


def _multiplication(layer: Any, output: Any) -> tuple[int | None, int | None, int]:
    """Widths and multiplications of an example, for the layers whose kernel meets the matrix units."""
    kernel = getattr(layer, "kernel", None)
    if kernel is None or not hasattr(kernel, "shape"):
        return None, None, 0
    shape, kind = tuple(int(size) for size in kernel.shape), type(layer).__name__
    positions = math.prod(int(size) for size in output.shape[1:-1] if size is not None)
    if kind == "EinsumDense":
        # The kernel's dimensions that the output has not are summed over.
        summed = _summed(layer.equation)
        width = math.prod(size for size, gone in zip(shape, summed, strict=True) if gone)
        units = math.prod(shape) // max(width, 1)
        tokens = math.prod(int(size) for size in output.shape[1:] if size is not None) // max(units, 1)
        return width, units, math.prod(shape) * max(tokens, 1)
    if "Depthwise" in kind or "Separable" in kind:
        # Each channel by itself: nothing that a matrix unit would be filled by.
        return None, None, math.prod(shape) * positions
    if "Transpose" in kind:
        units, width = shape[-2:]
        return width, units, math.prod(shape) * positions // max(1, math.prod(layer.strides))
    if len(shape) < 2:
        return None, None, 0
    return shape[-2], shape[-1], math.prod(shape) * positions


def _summed(equation: str) -> list[bool]:
    """For each dimension of an EinsumDense's kernel whether it is summed over."""
    inputs, _, result = equation.replace("...", "").partition("->")
    return [letter not in result for letter in inputs.split(",")[1]]


# Another view of the same memory.
_VIEWS = frozenset({"Identity", "Reshape", "StopGradient", "Squeeze", "ExpandDims", "PreventGradient", "Snapshot"})
# Values that a step does not have to keep: the variables themselves, and what is in the program.
_THERE = frozenset({"ReadVariableOp", "Const", "Placeholder", "VarHandleOp", "Shape", "ResourceGather"})


def saved_bytes(graph: Any, forward: Collection[Any], inputs: Sequence[Any], *, batch: int) -> tuple[int, int]:
    """(bytes for each example, bytes once) of the tensors that operations outside `forward` take from it.

    A tensor belongs to the examples when it depends on `inputs` and its size is a multiple of `batch`, a prime that no
    layer's width is a multiple of. Tensors of unknown shape, and what loops stack up, are not counted.
    """
    dependent = _reached(graph, inputs)
    given = {id(each) for each in inputs}
    each_example = once = 0
    for tensor in _saved(graph, forward):
        count = math.prod(tensor.shape) if tensor.shape.is_fully_defined() else 0
        size = count * tensor.dtype.size
        if id(tensor) in given or (tensor.op.name in dependent and count % batch == 0):
            each_example += size // batch
        elif tensor.op.type not in _THERE:
            once += size
    return each_example, once


def _saved(graph: Any, forward: Collection[Any]) -> list[Any]:
    """The tensors of the forward pass that the backward pass takes, each memory once."""
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


def _reached(graph: Any, inputs: Sequence[Any]) -> set[str]:
    """Names of the operations that depend on the inputs."""
    reached = {each.op.name for each in inputs}
    for operation in graph.get_operations():
        if any(tensor.op.name in reached for tensor in operation.inputs):
            reached.add(operation.name)
    return reached


Notices = Callable[..., None]
# Larger than a layer's kernel and a prime: a tensor whose size is a multiple of it has one part an example.
_BATCH = 127


def inspect(job: ResolvedJob, environment: Mapping[str, str], notice: Notices, now: Callable[[], float]) -> ModelFacts:
    """The model under float32 and under a mixed policy. Raises Problem for what would keep it from training."""
    if job.program.script is not None or job.data is None:
        raise InvalidSpec(
            "spec.program.script",
            "a script builds its model itself, as it trains",
            next_step="Only applications and functions can be looked at; `mptj check` without --deep tells the rest.",
        )
    tf.config.set_visible_devices([], "GPU")
    keras = load(job.keras)
    if source := environment.get(SOURCE_FOLDER):
        sys.path.insert(0, source)
    example = _preprocess(job.data).example_after(example_of(job.data, notice, now))
    # One replica of this process, whatever the job has; no weights are fetched, since none are looked at.
    application = job.program.application
    if application is not None:
        application = application.model_copy(update={"weights": None})
    alone = job.model_copy(
        update={"replicas": 1, "program": job.program.model_copy(update={"application": application})}
    )
    mixed = mixed_policy(job)
    # The one that the job trains under comes last, so that the facts about the model are of it.
    policies = sorted({"float32", *([mixed] if mixed else [])}, key=lambda policy: policy != "float32")
    found = []
    try:
        for policy in policies:
            # Names begin anew, so that layers are called as the job will call them.
            keras.module.backend.clear_session()
            keras.set_policy(policy)
            built = program.build(alone, keras, example, notice)
            if built.compiled is not None and "train_step" in built.compiled.own_steps:
                raise InvalidSpec(
                    "spec.program.function",
                    f"{type(built.model).__name__} has a train_step of its own, of which only training tells",
                    next_step="`mptj check` without --deep tells the rest.",
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
    """One example, from what the job says, the manifest, or the records where they are near.

    Raises Problem that says what is needed; nothing of a bucket is read but its manifest.
    """
    if data.features is not None:
        return schema.decide(data, None, [], notice).example_spec()
    step = "Name data.features, with them no data is needed; or run this where the data can be read."
    try:
        manifest = records_manifest.find(data.train)
        if manifest is not None:
            return schema.decide(data, manifest, [], notice).example_spec()
        if not any(storage.is_remote(pattern) for pattern in data.train):
            split = open_data(data.train, data, like=None, notice=notice, now=now)
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
    return Preprocess(per_example=check(import_entry_point(data.preprocess, "spec.data.preprocess")))


def _policy_facts(built: Program, keras: Keras, example: ExampleSpec, policy: str) -> PolicyFacts:
    model, variables = built.model, keras.variables_of(built.model.trainable_variables)
    seen = program.example_of(built, example)
    specs = {one.name: _spec(one.shape, one.dtype) for one in seen.inputs}
    inputs = specs if len(specs) > 1 else next(iter(specs.values()))
    labels = {one.name: _spec(one.shape, one.dtype) for one in seen.labels}
    compiled = built.compiled
    assert compiled is not None
    output: list[Any] = []
    forward: set[Any] = set()
    taken: list[Any] = []

    def step(inputs: Any, labels: Any) -> Any:
        taken.extend(tf.nest.flatten(inputs))
        inputs = compiled.arranged_inputs(inputs)
        with tf.GradientTape() as tape:
            predictions = compiled.predictions(inputs, training=True)
            output.append(predictions)
            loss = compiled.loss(inputs, compiled.arranged(labels), predictions, None, training=True)
        forward.update(loss.graph.get_operations())
        return [one for one in tape.gradient(loss, variables) if one is not None]

    with recorded(keras) as calls:
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
    """Those in the code of layers and of the model, by the names of their scopes, below float32."""
    for operation in sorted(forward, key=lambda each: str(each.name)):
        scopes = operation.name.split("/")[:-1]
        if operation.type not in ("Softmax", "LogSoftmax") or operation.outputs[0].dtype.size >= 4:
            continue
        # Keras 3 numbers a scope that it enters again: `head_1` is the layer `head` in its second trace.
        if not any(scope == name or scope.startswith(f"{name}_") for scope in scopes for name in known):
            yield f"{'/'.join(scopes[1:]) or operation.name} ({operation.outputs[0].dtype.name})"


def _spec(shape: tuple[int | None, ...], dtype: str) -> tf.TensorSpec:
    # Any size serves where an example's varies; see `program`.
    return tf.TensorSpec((_BATCH, *(32 if size is None else size for size in shape)), dtype)


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
