"""`python -m mptraining_trainer inspect`: builds the job's model, looks at it, trains nothing.

The model is traced, never run, so that a model for a large accelerator can be looked at on a laptop; its weights are
made, which takes their memory. Nothing is read of the data when the job names its features.
"""

from __future__ import annotations

import gc
import math
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import tensorflow as tf

from mptraining_api.inspected import ModelFacts, PolicyFacts
from mptraining_api.launch import SOURCE_FOLDER
from mptraining_api.model_report import mixed_policy
from mptraining_api.problems import InvalidData, InvalidSpec, Problem
from mptraining_api.resolved_job import ResolvedData, ResolvedJob
from mptraining_records.storage import storage
from mptraining_records.tfrecord import manifest as records_manifest
from mptraining_trainer.data import schema
from mptraining_trainer.data.example_spec import ExampleSpec
from mptraining_trainer.data.open_data import open_data
from mptraining_trainer.data.preprocess import Preprocess, check
from mptraining_trainer.keras_backend import Keras, load
from mptraining_trainer.model import program
from mptraining_trainer.model.layer_calls import layer_facts, recorded
from mptraining_trainer.model.program import Program
from mptraining_trainer.model.saved_tensors import saved_bytes
from mptraining_trainer.source.user_code import import_entry_point

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
