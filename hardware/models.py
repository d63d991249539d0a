"""The five measured models as one function program, and the model whose gradients overflow float16.

`tf.keras` is Keras 3, or tf_keras under TF_USE_LEGACY_KERAS, which TPUs need.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

CLASSES = 10
_PATCH = {"full": 16, "small": 4}
# Width, depth and heads: ViT-S/16 (Steiner et al., 2021), and an encoder of 12 layers.
_VIT = {"full": (384, 12, 6), "small": (16, 1, 2)}
_TRANSFORMER = {"full": (512, 12, 8), "small": (16, 1, 2)}
_VOCABULARY = {"full": 32_000, "small": 64}
# Units and number of hidden layers.
_MLP = {"full": (4096, 4), "small": (64, 2)}
# Factor of the loss that overflows. The hidden layer's gradient is an eighth of factor times loss scale: with the first
# scale of 2^15 it is above 65,504, the largest float16, until the scale has been halved nine times, to 2^6.
_FACTOR = 2.0**12


def build(model: str, scale: str, shape: list[int]) -> dict[str, Any]:
    """Return the model with its loss and optimizer; `shape` is that of one example."""
    keras = tf.keras
    made = {
        "resnet50": _resnet50,
        "efficientnetb0": _efficientnetb0,
        "vit": _vit,
        "transformer": _transformer,
        "mlp": _mlp,
    }[model](keras, scale, tuple(shape))
    return {
        "model": made,
        "loss": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        "optimizer": keras.optimizers.SGD(0.01, momentum=0.9),
    }


def overflowing() -> dict[str, Any]:
    """Return a model whose gradients are the same at each step: neither records nor steps change them."""
    keras = tf.keras

    def loss(_labels: Any, logits: Any) -> Any:
        return _FACTOR * logits[:, 0]

    eighth = keras.initializers.Constant(0.125)
    inputs = keras.Input((32,), name="vector")
    x = keras.layers.Dense(16, kernel_initializer=eighth)(keras.layers.Rescaling(0.0, offset=1.0)(inputs))
    outputs = keras.layers.Dense(CLASSES, kernel_initializer=eighth, dtype="float32")(x)
    return {"model": keras.Model(inputs, outputs), "loss": loss, "optimizer": keras.optimizers.SGD(0.0)}


@tf.keras.utils.register_keras_serializable("hardware")
class Positions(tf.keras.layers.Layer):  # type: ignore[misc]
    """Adds a trained vector to each place of a sequence."""

    def build(self, input_shape: Any) -> None:
        self.table = self.add_weight(name="table", shape=tuple(input_shape[1:]), initializer="zeros")
        super().build(input_shape)

    def call(self, inputs: Any) -> Any:
        return inputs + tf.cast(self.table, inputs.dtype)

    def compute_output_shape(self, input_shape: Any) -> Any:
        return input_shape


def _resnet50(keras: Any, scale: str, shape: tuple[int, ...]) -> Any:
    if scale == "full":
        return _application(keras, keras.applications.ResNet50, shape)
    layers = keras.layers
    inputs = keras.Input(shape, name="image")
    x = layers.Conv2D(8, 3, strides=2, padding="same", use_bias=False)(_scaled(keras, inputs))
    for _ in range(2):
        before = x
        x = layers.ReLU()(layers.BatchNormalization()(x))
        x = layers.Add()([layers.Conv2D(8, 3, padding="same", use_bias=False)(x), before])
    return keras.Model(inputs, _head(keras, layers.GlobalAveragePooling2D()(x)))


def _efficientnetb0(keras: Any, scale: str, shape: tuple[int, ...]) -> Any:
    if scale == "full":
        return _application(keras, keras.applications.EfficientNetB0, shape)
    layers = keras.layers
    inputs = keras.Input(shape, name="image")
    before = layers.Conv2D(8, 3, strides=2, padding="same", use_bias=False)(_scaled(keras, inputs))
    x = layers.Conv2D(16, 1, use_bias=False)(before)
    x = layers.Activation("swish")(layers.BatchNormalization()(x))
    x = layers.Activation("swish")(layers.DepthwiseConv2D(3, padding="same", use_bias=False)(x))
    squeezed = layers.GlobalAveragePooling2D(keepdims=True)(x)
    x = layers.Multiply()([x, layers.Conv2D(16, 1, activation="sigmoid")(squeezed)])
    x = layers.Add()([layers.Conv2D(8, 1, use_bias=False)(x), before])
    return keras.Model(inputs, _head(keras, layers.GlobalAveragePooling2D()(x)))


def _application(keras: Any, application: Any, shape: tuple[int, ...]) -> Any:
    inputs = keras.Input(shape, name="image")
    base = application(include_top=False, weights=None, pooling="avg", input_shape=shape)
    # EfficientNet scales by itself; a second division changes no time.
    return keras.Model(inputs, _head(keras, base(_scaled(keras, inputs))))


def _vit(keras: Any, scale: str, shape: tuple[int, ...]) -> Any:
    width, depth, heads = _VIT[scale]
    patch = _PATCH[scale]
    layers = keras.layers
    inputs = keras.Input(shape, name="image")
    x = layers.Conv2D(width, patch, strides=patch)(_scaled(keras, inputs))
    x = Positions()(layers.Reshape((-1, width))(x))
    return keras.Model(inputs, _head(keras, layers.GlobalAveragePooling1D()(_encoder(keras, x, width, depth, heads))))


def _transformer(keras: Any, scale: str, shape: tuple[int, ...]) -> Any:
    width, depth, heads = _TRANSFORMER[scale]
    inputs = keras.Input(shape, dtype="int64", name="tokens")
    x = Positions()(keras.layers.Embedding(_VOCABULARY[scale], width)(inputs))
    x = _encoder(keras, x, width, depth, heads)
    return keras.Model(inputs, _head(keras, keras.layers.GlobalAveragePooling1D()(x)))


def _encoder(keras: Any, x: Any, width: int, depth: int, heads: int) -> Any:
    layers = keras.layers
    for _ in range(depth):
        normed = layers.LayerNormalization()(x)
        x = layers.Add()([x, layers.MultiHeadAttention(heads, width // heads)(normed, normed)])
        wide = layers.Dense(4 * width, activation="gelu")(layers.LayerNormalization()(x))
        x = layers.Add()([x, layers.Dense(width)(wide)])
    return layers.LayerNormalization()(x)


def _mlp(keras: Any, scale: str, shape: tuple[int, ...]) -> Any:
    units, depth = _MLP[scale]
    x = inputs = keras.Input(shape, name="vector")
    for _ in range(depth):
        x = keras.layers.Dense(units, activation="relu")(x)
    return keras.Model(inputs, _head(keras, x))


def _scaled(keras: Any, inputs: Any) -> Any:
    return keras.layers.Rescaling(1 / 255)(inputs)


def _head(keras: Any, x: Any) -> Any:
    return keras.layers.Dense(CLASSES, dtype="float32", name="head")(x)
