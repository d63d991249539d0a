"""The first example of Keras' guide on custom train steps, with SGD."""

import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(3)


class CustomModel(keras.Model):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(y=y, y_pred=y_pred)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(y, y_pred)
        return {m.name: m.result() for m in self.metrics}


x = np.random.default_rng(0).normal(size=(64, 8)).astype("float32")
y = x @ np.full((8, 1), 1.5, "float32")
inputs = keras.Input((8,))
model = CustomModel(inputs, keras.layers.Dense(1, dtype="float32")(keras.layers.Dense(16, "relu")(inputs)))
model.compile(optimizer=keras.optimizers.SGD(0.05), loss="mse", metrics=["mae"])
print("LOSSES", model.fit(x, y, epochs=4, batch_size=16, shuffle=False, verbose=0).history["loss"])
