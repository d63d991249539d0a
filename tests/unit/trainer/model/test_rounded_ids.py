"""The warning about rounded ids against plain Keras: it is there if the id that reaches the index is another."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from mptraining_trainer.data.schema import TensorSpec
from mptraining_trainer.keras_backend import Keras
from mptraining_trainer.model.compiled import CompiledModel
from mptraining_trainer.model.rounded_ids import rounded_ids

ROWS = 16
KINDS = ("embedding", "gather", "one_hot", "category", "lookup", "part")


def layer(keras: Keras, kind: str, size: int) -> Any:
    """Return a layer of a user's own whose output is the id that it uses as an index."""
    layers = keras.module.layers

    class Own(layers.Layer):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__(name="own")
            self.inner = {
                "embedding": lambda: layers.Embedding(size, 1, embeddings_initializer=identity, dtype="float32"),
                "category": lambda: layers.CategoryEncoding(size, output_mode="one_hot"),
                "lookup": lambda: layers.IntegerLookup(vocabulary=list(range(1, size)), num_oov_indices=1),
            }.get(kind, lambda: None)()

        def call(self, x: Any) -> Any:
            if kind == "one_hot":
                return tf.argmax(tf.one_hot(tf.cast(x, tf.int32), size), axis=-1)
            if kind == "category":
                return tf.argmax(self.inner(x), axis=-1)
            if self.inner is not None:
                return self.inner(x)
            ids = tf.reshape(x, [-1, 2])[:, :1] if kind == "part" else x
            return tf.gather(tf.range(size), tf.cast(ids, tf.int32))

    return Own()


def identity(shape: Any, dtype: Any = None) -> Any:
    return tf.reshape(tf.range(shape[0], dtype=tf.float32), shape)


def model(keras: Keras, kind: str, size: int, dtype: str) -> Any:
    columns = 2 if kind == "part" else 1
    inputs = keras.module.Input((columns,), name="ids", dtype=dtype)
    return keras.module.Model(inputs, layer(keras, kind, size)(inputs))


def check(keras: Keras, built: Any, ids: np.ndarray) -> bool:
    """Return whether there is a warning; it must be there if the model's own index is not the id."""
    compiled = CompiledModel(keras, built, features=(TensorSpec("ids", "int64", ids.shape[1:]),))
    text = rounded_ids(keras, compiled, ids)
    used = np.asarray(tf.function(built)(tf.constant(ids))).astype(np.int64).reshape(ROWS, -1)[:, :1]
    assert (text is not None) == bool((used != ids[:, :1]).any()), (text, used)
    return text is not None


@pytest.mark.parametrize(
    ("policy", "kind"), [("mixed_float16", "embedding"), *(("mixed_bfloat16", kind) for kind in KINDS)]
)
def test_ids_that_a_layer_of_ones_own_rounds(keras: Keras, kind: str, policy: str) -> None:
    most = {"mixed_bfloat16": 256, "mixed_float16": 2048}[policy]
    keras.set_policy(policy)
    columns = 2 if kind == "part" else 1
    ids = np.arange(ROWS * columns).reshape(ROWS, columns)
    floats, integers = (model(keras, kind, 5000, dtype) for dtype in ("float32", "int64"))
    assert check(keras, floats, ids + most + 1)
    # Keras 3's CategoryEncoding casts integers too, in a graph.
    assert check(keras, integers, ids + most + 1) == (kind == "category" and not keras.legacy)
    assert not check(keras, model(keras, kind, most, "float32"), ids)


def test_hash_buckets_above_what_float32_has(keras: Keras) -> None:
    def low(x: Any) -> Any:
        return tf.cast(x, tf.int64) - 2**24

    ids = np.arange(ROWS)[:, None] + 2**24
    for dtype in ("float32", "int64"):
        inputs = keras.module.Input((1,), name="ids", dtype=dtype)
        built = keras.module.Model(inputs, keras.module.layers.Lambda(lambda x: low(x) + 2**24)(inputs))
        assert check(keras, built, ids) == (dtype == "float32")
