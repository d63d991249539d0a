"""The facts for `preflight`, from one eager forward pass over a few examples and from the model's attributes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from mptraining_api.problems import InvalidProgram
from mptraining_api.resolved_job import ResolvedJob
from mptraining_trainer.data.padding import without_padding
from mptraining_trainer.host import native_bfloat16
from mptraining_trainer.keras_backend import Keras
from mptraining_trainer.model.compiled import CompiledModel
from mptraining_trainer.model.preflight import ELEMENTWISE, SPARSE, Facts, InputFacts, LabelFacts, OutputFacts
from mptraining_trainer.report.error_text import describe_error, next_step_of

# The number of examples read before training, and the number of those whose values `preflight` may reject:
# `onNonFinite` handles later examples that are not finite.
EXAMPLES_READ = 16
EXAMPLES_CHECKED = 8


def first_examples(dataset: Any, count: int) -> tuple[Any, Any, Any]:
    """Return inputs, labels and weights of the first `count` examples, without padded rows.

    They are NumPy arrays, or RaggedTensors.
    """
    batches: list[Any] = []
    for tensors in (without_padding(batch) if len(batch) > 3 else batch for batch in dataset):
        batch = tf.nest.map_structure(
            lambda tensor: tensor if isinstance(tensor, tf.RaggedTensor) else tensor.numpy(), tensors
        )
        # Examples of variable size are padded to the largest of their batch.
        if batches and _shapes(batch) != _shapes(batches[0]):
            break
        batches.append(batch)
        if sum(tf.nest.flatten(batch)[0].shape[0] for batch in batches) >= count:
            break
    few: tuple[Any, Any, Any] = tf.nest.map_structure(lambda *arrays: _joined(arrays)[:count], *batches)
    return few


def as_tensor(examples: Any) -> Any:
    """Return an array of `first_examples` as a tensor."""
    return examples if isinstance(examples, tf.RaggedTensor) else tf.convert_to_tensor(examples)


def _joined(parts: Sequence[Any]) -> Any:
    return tf.concat(parts, axis=0) if isinstance(parts[0], tf.RaggedTensor) else np.concatenate(parts)


def _shapes(batch: Any) -> list[Any]:
    return [tuple(array.shape[1:]) for array in tf.nest.flatten(batch)]


def gather_facts(compiled: CompiledModel, first_batch: tuple[Any, ...], keras: Keras, job: ResolvedJob) -> Facts | None:
    """Return the facts about the model and the first batch, (inputs, labels, …) as NumPy arrays.

    `inputs` is an array or a dict of arrays, after preprocessing. Runs the model eagerly on these rows; not on a
    TPU, where an eager pass compiles for minutes. With several workers every worker must call it. Returns None for a
    model that has more than one output, label and loss, or its own step.
    """
    model, loss = compiled.model, _only(getattr(compiled.model, "loss", None))
    inputs, labels = first_batch[:2]
    outputs = getattr(model, "outputs", None) or [None]
    if compiled.own_steps or isinstance(labels, (tuple, list, Mapping)) or len(outputs) != 1:
        return None
    named = inputs if isinstance(inputs, Mapping) else {"inputs": inputs}
    layer = keras.output_layer(model)
    few = {name: as_tensor(value) for name, value in named.items()}
    output = (
        None
        if job.accelerator.kind == "tpu"
        else _forward(model, compiled.arrange_inputs(few) if isinstance(inputs, Mapping) else few["inputs"])
    )
    if output is not None and not tf.is_tensor(output):
        return None
    shape = keras.output_shape(model) if output is None else output.shape
    name, from_logits = _loss(loss)
    return Facts(
        device=job.accelerator.kind,
        device_title=job.accelerator.title,
        compute_capability=job.accelerator.compute_capability,
        native_bfloat16=job.accelerator.kind != "cpu" or native_bfloat16(),
        policy=keras.policy,
        per_replica_batch=job.per_replica_batch_size or len(labels),
        widths=_widths(model, layer, keras),
        inputs=tuple(InputFacts(name, str(value.dtype), _finite(value)) for name, value in named.items()),
        label=_label(np.asarray(labels)),
        output=OutputFacts(
            layer=layer.name,
            dtype=str(layer.compute_dtype) if output is None else output.dtype.name,
            shape=None if shape is None else tuple(shape[1:]),
            activation=_activation(layer),
            probabilities=None if output is None else _probabilities(output),
            finite=output is None or _finite(output),
        ),
        loss=name,
        from_logits=from_logits,
    )


def _forward(model: Any, inputs: Any) -> Any:
    try:
        output = model(inputs, training=False)
    except Exception as error:
        raise InvalidProgram(
            "spec.program",
            f"the model fails on the first batch: {describe_error('', error)}",
            next_step=next_step_of(error),
        ) from error
    return output


def _finite(value: Any) -> bool:
    if isinstance(value, tf.RaggedTensor):
        value = value.flat_values
    if tf.is_tensor(value):
        return bool(tf.reduce_all(tf.math.is_finite(value))) if value.dtype.is_floating else True
    array = np.asarray(value)
    # bfloat16 is a NumPy extension type of kind V; float32 can represent all its values.
    if array.dtype.name == "bfloat16":
        array = array.astype(np.float32)
    return array.dtype.kind != "f" or bool(np.isfinite(array).all())


def _probabilities(output: Any) -> bool:
    rows = tf.cast(output, tf.float32).numpy()
    # float16 and bfloat16 rows sum to 1 within 1 percent.
    return bool(rows.ndim > 1 and rows.shape[-1] > 1 and (rows >= 0).all() and (abs(rows.sum(-1) - 1) < 1e-2).all())


def _label(labels: Any) -> LabelFacts:
    numbers = labels.dtype.kind in "biuf" and labels.size > 0
    return LabelFacts(
        dtype=str(labels.dtype),
        shape=tuple(labels.shape[1:]),
        whole=labels.dtype.kind in "biu" or (numbers and bool((labels == np.floor(labels)).all())),
        minimum=float(labels.min()) if numbers else None,
        maximum=float(labels.max()) if numbers else None,
    )


def _activation(layer: Any) -> str | None:
    activation = getattr(layer, "activation", None)
    if activation is None:
        return {"Softmax": "softmax", "ReLU": "relu"}.get(type(layer).__name__)
    return getattr(activation, "__name__", None)


def _only(loss: Any) -> Any:
    """Return the loss of a single output, also from a list or a dict with one entry."""
    if isinstance(loss, Mapping) and "class_name" not in loss:
        loss = list(loss.values())
    return loss[0] if isinstance(loss, (list, tuple)) and len(loss) == 1 else loss


def _loss(loss: Any) -> tuple[str, bool | None]:
    """Return the loss as a class name of Keras, and its from_logits."""
    if hasattr(loss, "get_config"):
        return type(loss).__name__, loss.get_config().get("from_logits")
    name = loss if isinstance(loss, str) else getattr(loss, "__name__", type(loss).__name__)
    classes = {known.lower(): known for known in (*SPARSE, *ELEMENTWISE)}
    known = classes.get(name.replace("_", "").lower(), name)
    return known, False if known.endswith("Crossentropy") else None


def _widths(model: Any, output: Any, keras: Keras) -> tuple[tuple[str, int], ...]:
    hidden = [layer for layer in keras.layers(model) if layer is not output]
    sized = [(layer.name, getattr(layer, "units", None) or getattr(layer, "filters", None)) for layer in hidden]
    return tuple((name, width) for name, width in sized if isinstance(width, int))
