"""The Keras book, 13.2: one machine with several GPUs, by a MirroredStrategy of the script's own."""

import keras
import numpy as np
import tensorflow as tf


def get_compiled_model():
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(32, activation="relu"), keras.layers.Dense(3)])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    return model


keras.utils.set_random_seed(3)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
print(f"Number of devices: {strategy.num_replicas_in_sync}")
with strategy.scope():
    model = get_compiled_model()
rng = np.random.default_rng(0)
data = tf.data.Dataset.from_tensor_slices((rng.random((64, 8)).astype("float32"), rng.integers(0, 3, 64))).batch(16)
print("LOSSES", model.fit(data, epochs=2, verbose=0).history["loss"])
