"""A subclassed model that says itself what a step of training is."""

import keras
import numpy as np
import tensorflow as tf


class CustomModel(keras.Model):
    def __init__(self):
        super().__init__()
        self.hidden = keras.layers.Dense(16, activation="relu")
        self.dropout = keras.layers.Dropout(0.1)
        self.out = keras.layers.Dense(1)

    def call(self, inputs, training=False):
        return self.out(self.dropout(self.hidden(inputs), training=training))

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(y=y, y_pred=y_pred)
        trainable_vars = self.trainable_variables
        gradients = tape.gradient(loss, trainable_vars)
        self.optimizer.apply_gradients(zip(gradients, trainable_vars))
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(y, y_pred)
        return {m.name: m.result() for m in self.metrics}


rng = np.random.default_rng(1)
x = rng.random((320, 32)).astype("float32")
y = x.mean(axis=1, keepdims=True)
dataset = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(320).batch(32)

model = CustomModel()
model.compile(optimizer="adam", loss="mse", metrics=["mae"])
history = model.fit(dataset, epochs=3)
print("Epochs:", len(history.history["mae"]))
