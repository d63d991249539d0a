"""The Keras book, 13.2: a TPU in Colab, to which the script connects itself."""

import keras
import tensorflow as tf

tpu = tf.distribute.cluster_resolver.TPUClusterResolver.connect()
print("Device:", tpu.master())
strategy = tf.distribute.TPUStrategy(tpu)
print(f"Number of replicas: {strategy.num_replicas_in_sync}")
with strategy.scope():
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(3)])
