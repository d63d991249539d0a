"""A small convolutional network for photographs."""

# Keras 3, or tf_keras where the job has `keras: Legacy`, as on TPUs.
from tensorflow import keras


def build(width: int, classes: int) -> keras.Model:
    """A model that ends in logits. Multiples of 8 for `width` fill the matrix units of a GPU."""
    inputs = keras.Input((128, 128, 3))
    x = keras.layers.Rescaling(1 / 255)(inputs)
    for factor in (1, 2, 4):
        x = keras.layers.Conv2D(width * factor, 3, strides=2, padding="same", use_bias=False)(x)
        x = keras.layers.BatchNormalization()(x)
        x = keras.layers.ReLU()(x)
    x = keras.layers.GlobalAveragePooling2D()(x)
    # float32 under any policy: a loss in half precision loses its small differences.
    model = keras.Model(inputs, keras.layers.Dense(classes, dtype="float32")(x))
    model.compile(
        optimizer=keras.optimizers.Adam(1e-3),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=[keras.metrics.SparseCategoricalAccuracy()],
    )
    return model
