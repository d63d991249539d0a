"""Keras' guide to writing a training loop from scratch, shortened."""

import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(3)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(3)])
optimizer = keras.optimizers.Adam(0.01)
loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
metric = keras.metrics.SparseCategoricalAccuracy()
rng = np.random.default_rng(0)
data = tf.data.Dataset.from_tensor_slices((rng.random((32, 4)).astype("float32"), rng.integers(0, 3, 32))).batch(8)
losses = []
for epoch in range(2):
    for x, y in data:
        with tf.GradientTape() as tape:
            logits = model(x, training=True)
            loss = loss_fn(y, logits)
        optimizer.apply(tape.gradient(loss, model.trainable_weights), model.trainable_weights)
        metric.update_state(y, logits)
    losses.append(float(loss))
print("LOSSES", losses)
