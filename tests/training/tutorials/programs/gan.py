"""A GAN as in Keras' examples: two optimizers, an own train_step and no call."""

import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(3)
discriminator = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(1)])
generator = keras.Sequential([keras.Input((2,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(4)])


class GAN(keras.Model):
    def __init__(self, discriminator, generator, latent_dim):
        super().__init__()
        self.discriminator = discriminator
        self.generator = generator
        self.latent_dim = latent_dim
        self.seed_generator = keras.random.SeedGenerator(1337)
        self.d_loss_metric = keras.metrics.Mean(name="d_loss")

    def compile(self, d_optimizer, g_optimizer, loss_fn):
        super().compile()
        self.d_optimizer = d_optimizer
        self.g_optimizer = g_optimizer
        self.loss_fn = loss_fn

    @property
    def metrics(self):
        return [self.d_loss_metric]

    def train_step(self, real):
        batch = tf.shape(real)[0]
        noise = keras.random.normal(shape=(batch, self.latent_dim), seed=self.seed_generator)
        both = tf.concat([self.generator(noise), real], axis=0)
        labels = tf.concat([tf.ones((batch, 1)), tf.zeros((batch, 1))], axis=0)
        with tf.GradientTape() as tape:
            d_loss = self.loss_fn(labels, self.discriminator(both))
        grads = tape.gradient(d_loss, self.discriminator.trainable_weights)
        self.d_optimizer.apply_gradients(zip(grads, self.discriminator.trainable_weights))
        with tf.GradientTape() as tape:
            g_loss = self.loss_fn(tf.zeros((batch, 1)), self.discriminator(self.generator(noise)))
        grads = tape.gradient(g_loss, self.generator.trainable_weights)
        self.g_optimizer.apply_gradients(zip(grads, self.generator.trainable_weights))
        self.d_loss_metric.update_state(d_loss)
        return {"d_loss": self.d_loss_metric.result()}


points = np.random.default_rng(0).random((32, 4)).astype("float32")
gan = GAN(discriminator, generator, 2)
gan.compile(keras.optimizers.Adam(0.01), keras.optimizers.Adam(0.01), keras.losses.BinaryCrossentropy(from_logits=True))
data = tf.data.Dataset.from_tensor_slices(points).batch(8)
print("LOSSES", gan.fit(data, epochs=3, verbose=0).history["d_loss"])
