"""The precision policy that a fitted model's layers have, set by the job or by the script."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from mptraining_trainer.keras_backend import Keras
from mptraining_trainer.reporting.notice import Notify

# Integers above this are not all representable: float16 has 11 significant bits, bfloat16 has 8.
_EXACT_IDS = {tf.float16: 2048, tf.bfloat16: 256}


def policy_of(model: Any, keras: Keras) -> str:
    """The policy's name: float32, or the most common other policy of the model's layers.

    One layer that is not float32 makes the model a mixed one, since heads are kept in float32 by hand.
    """
    names = [name for layer in keras.layers(model) if (name := _name(layer)) not in (None, "float32")]
    return str(Counter(names).most_common(1)[0][0]) if names else "float32"


def _name(layer: Any) -> str | None:
    policy = getattr(layer, "dtype_policy", None)
    name = getattr(policy, "name", None)
    # What computes in integers or text, such as a preprocessing layer, has no precision.
    return name if name is not None and ("float" in name) else None


@contextmanager
def rounded_ids_noticed(keras: Keras, notice: Notify) -> Iterator[None]:
    """Warns of token ids that reach an Embedding in half precision, which trains on other tokens without an error.

    Ids that come through a float `keras.Input` are cast by a layer of the script's own around the Embedding: float16
    makes 20000 of 19997, bfloat16 keeps 8 bits.
    """
    embedding = keras.module.layers.Embedding
    original = embedding.call

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def check(layer: Any, ids: Any) -> None:
        dtype = getattr(ids, "dtype", None)
        exact = _EXACT_IDS.get(tf.as_dtype(dtype)) if dtype is not None else None
        if exact is not None and (layer.input_dim is None or layer.input_dim > exact):
            notice(
                "TokenIdsRounded",
                f"the Embedding {layer.name!r} reads ids as {tf.as_dtype(dtype).name}, in which those above {exact} "
                "are rounded: write keras.Input(..., dtype='int32'), or precision: {policy: float32}",
                level="Warning",
            )

    # With the original's arguments: tf_keras passes `training` to a layer that takes any keyword.
    @functools.wraps(original)
    def call(self: Any, inputs: Any) -> Any:
        check(self, inputs)
        return original(self, inputs)

    embedding.call = call
    try:
        yield
    finally:
        embedding.call = original
