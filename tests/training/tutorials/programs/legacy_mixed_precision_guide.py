"""TensorFlow's guide to mixed precision, in tf.keras of Keras 2: `fit`, then a custom training loop with loss scaling."""

import tensorflow as tf
from tensorflow import keras
from tensorflow.keras import layers, mixed_precision

keras.utils.set_random_seed(3)
mixed_precision.set_global_policy("mixed_float16")
inputs = keras.Input(shape=(16,), name="digits")
dense1 = layers.Dense(32, activation="relu", name="dense_1")
x = layers.Dense(32, activation="relu", name="dense_2")(dense1(inputs))
x = layers.Dense(10, name="dense_logits")(x)
outputs = layers.Activation("softmax", dtype="float32", name="predictions")(x)
model = keras.Model(inputs=inputs, outputs=outputs)
model.compile(loss="sparse_categorical_crossentropy", optimizer=keras.optimizers.RMSprop(), metrics=["accuracy"])
x_train = tf.random.stateless_uniform((64, 16), (1, 2))
y_train = tf.random.stateless_uniform((64,), (3, 4), maxval=10, dtype=tf.int32)
initial_weights = model.get_weights()
history = model.fit(x_train, y_train, batch_size=16, epochs=2, shuffle=False, verbose=0)
model.set_weights(initial_weights)

optimizer = mixed_precision.LossScaleOptimizer(keras.optimizers.RMSprop())
loss_object = tf.keras.losses.SparseCategoricalCrossentropy()
train_dataset = tf.data.Dataset.from_tensor_slices((x_train, y_train)).batch(16)


@tf.function
def train_step(x, y):
    with tf.GradientTape() as tape:
        predictions = model(x)
        loss = loss_object(y, predictions)
        scaled_loss = optimizer.get_scaled_loss(loss)
    scaled_gradients = tape.gradient(scaled_loss, model.trainable_variables)
    gradients = optimizer.get_unscaled_gradients(scaled_gradients)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return loss


losses = []
for epoch in range(2):
    average = tf.keras.metrics.Mean()
    for x, y in train_dataset:
        average.update_state(train_step(x, y))
    losses.append(float(average.result()))
v = tf.Variable(2.0)
with tf.GradientTape() as tape:
    square = v * v
losses.append(float(tape.gradient(square, v)))
print("LOSSES", [*history.history["loss"], *losses])
