"""Columns of a Parquet file from the outputs of a model: numbers, lists, and the class of a classifier.

An output [batch] or [batch, 1] is a column of numbers, one with more dimensions a column of (nested) lists. The column
has the name of the output, `output` for a model with one. A classifier's output has two columns more, `class` and
`probability`, with the name of the output before them if there are several.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import tensorflow as tf
from numpy.typing import NDArray

from mptraining_trainer.model.output_losses import OutputLoss

ONLY = "output"


@dataclass(frozen=True)
class Classifier:
    """The meaning of a classifier's output: `activation` makes its probabilities, None if it has them.

    `kind`: [batch, classes], or the probability of the second of two classes. `names` are those of the classes.
    """

    kind: Literal["classes", "binary"]
    activation: Literal["softmax", "sigmoid"] | None
    names: tuple[str, ...] | None = None

    def decide(self, output: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.float32]]:
        """Return the most probable class (its name or number) and its probability, shape [batch] each."""
        values = output.astype(np.float64)
        if self.kind == "binary":
            values = values.reshape(len(values))
            second = 1.0 / (1.0 + np.exp(-values)) if self.activation else values
            classes = (second > 0.5).astype(np.int64)
            probability = np.where(classes == 1, second, 1.0 - second)
        else:
            if self.activation:
                values = np.exp(values - values.max(axis=1, keepdims=True))
                values /= values.sum(axis=1, keepdims=True)
            classes = values.argmax(axis=1).astype(np.int64)
            probability = values.max(axis=1)
        named = classes if self.names is None else np.array(self.names, object)[classes]
        return named, probability.astype(np.float32)


def by_name(outputs: Any, names: Sequence[str]) -> dict[str, Any]:
    """Return the outputs of a model by name; `names` are those of a list of outputs, if they are known."""
    if isinstance(outputs, Mapping):
        named = {str(name): output for name, output in outputs.items()}
        return {ONLY: next(iter(named.values()))} if len(named) == 1 else named
    if not isinstance(outputs, list | tuple):
        return {ONLY: outputs}
    if len(outputs) == 1:
        return {ONLY: outputs[0]}
    known = list(names) if len(set(names)) == len(outputs) else [f"output_{number}" for number in range(len(outputs))]
    return dict(zip(known, outputs, strict=True))


def classifiers(
    shapes: Mapping[str, tuple[int | None, ...]],
    losses: Mapping[str, OutputLoss],
    activation: str | None,
    classes: tuple[str, ...] | None,
) -> dict[str, Classifier]:
    """Return the outputs that are a classifier's, by the loss that the model was trained with.

    `shapes` are those of the outputs with the batch. Of a model without a known loss, the `activation` of its only
    output decides: softmax over several numbers, or sigmoid of one.
    """
    by_output = {}
    for name, shape in shapes.items():
        loss = losses.get("" if name == ONLY else name)
        is_single = len(shape) == 1 or (len(shape) == 2 and shape[1] == 1)
        several = len(shape) == 2 and shape[1] != 1
        makes = loss.activation if loss is not None else activation if name == ONLY else None
        needed = makes if loss is not None and loss.from_logits else None
        names = classes if name == ONLY and classes else None
        if makes == "softmax" and several:
            fitting = names if names is not None and len(names) == shape[1] else None
            by_output[name] = Classifier("classes", _activation(needed), fitting)
        elif makes == "sigmoid" and is_single:
            by_output[name] = Classifier("binary", _activation(needed), names if names and len(names) == 2 else None)
    return by_output


def table(
    outputs: Mapping[str, Any], classifiers: Mapping[str, Classifier], places: Sequence[int | None]
) -> dict[str, pa.Array]:
    """Return the columns of one batch; `places` are the rows to take, None for a record without a prediction."""
    columns: dict[str, pa.Array] = {}
    for name, output in outputs.items():
        columns[name] = _column(output)
        if name in classifiers:
            before = "" if name == ONLY else f"{name}_"
            classes, probability = classifiers[name].decide(np.asarray(output))
            columns[f"{before}class"] = pa.array(classes.tolist())
            columns[f"{before}probability"] = pa.array(probability)
    taken = pa.array(places, pa.int64())
    return {name: column.take(taken) for name, column in columns.items()}


def _activation(name: str | None) -> Literal["softmax", "sigmoid"] | None:
    return "softmax" if name == "softmax" else "sigmoid" if name == "sigmoid" else None


def _column(output: Any) -> pa.Array:
    """Return one output of a batch as a column."""
    if isinstance(output, tf.RaggedTensor):
        return pa.array(output.to_list())
    values = np.asarray(output)
    if values.dtype.kind == "V" or values.dtype in (np.float16, tf.bfloat16.as_numpy_dtype):
        values = values.astype(np.float32)
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    flat = pa.array(values.ravel().tolist(), pa.binary()) if values.dtype == object else pa.array(values.ravel())
    for dimension in range(values.ndim - 1, 0, -1):
        size, rows = values.shape[dimension], int(np.prod(values.shape[:dimension]))
        flat = pa.ListArray.from_arrays(pa.array(np.arange(rows + 1) * size, pa.int32()), flat)
    return flat
