"""A siamese network as in Keras' examples: the data set's element is a tuple, of which the model takes all."""

import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(3)
embedding = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(3)])


class DistanceLayer(keras.layers.Layer):
    def call(self, anchor, positive, negative):
        return (
            tf.reduce_sum(tf.square(anchor - positive), -1),
            tf.reduce_sum(tf.square(anchor - negative), -1),
        )


class SiameseModel(keras.Model):
    def __init__(self, embedding, margin=0.5):
        super().__init__()
        self.embedding = embedding
        self.distance = DistanceLayer()
        self.margin = margin
        self.loss_tracker = keras.metrics.Mean(name="loss")

    def call(self, inputs):
        anchor, positive, negative = inputs
        return self.distance(self.embedding(anchor), self.embedding(positive), self.embedding(negative))

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = self._compute_loss(data)
        gradients = tape.gradient(loss, self.embedding.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.embedding.trainable_weights))
        self.loss_tracker.update_state(loss)
        return {"loss": self.loss_tracker.result()}

    def _compute_loss(self, data):
        ap_distance, an_distance = self(data)
        return tf.maximum(ap_distance - an_distance + self.margin, 0.0)

    @property
    def metrics(self):
        return [self.loss_tracker]


rng = np.random.default_rng(0)
triples = tuple(rng.random((32, 4)).astype("float32") for _ in range(3))
siamese = SiameseModel(embedding)
siamese.compile(optimizer=keras.optimizers.Adam(0.01), weighted_metrics=[])
print("LOSSES", siamese.fit(tf.data.Dataset.from_tensor_slices(triples).batch(8), epochs=3, verbose=0).history["loss"])
