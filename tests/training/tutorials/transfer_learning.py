"""Transfer learning: a head on a frozen base, then the whole model at a low learning rate."""

import numpy as np
from sklearn.datasets import load_digits
from tensorflow import keras

initial_epochs, fine_tune_epochs = 1, 2
digits = load_digits()
images = np.repeat(digits.images[:64, ..., np.newaxis], 3, axis=-1) / 8.0 - 1.0
images = np.kron(images, np.ones((1, 4, 4, 1))).astype("float32")
labels = digits.target[:64]

base_model = keras.applications.MobileNet(input_shape=(32, 32, 3), alpha=0.25, include_top=False, weights=None)
base_model.trainable = False

inputs = keras.Input(shape=(32, 32, 3))
x = base_model(inputs, training=False)
x = keras.layers.GlobalAveragePooling2D()(x)
x = keras.layers.Dropout(0.2)(x)
outputs = keras.layers.Dense(10)(x)
model = keras.Model(inputs, outputs)

loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(optimizer=keras.optimizers.Adam(1e-3), loss=loss, metrics=["accuracy"])
history = model.fit(images, labels, batch_size=16, epochs=initial_epochs)

base_model.trainable = True
for layer in base_model.layers[:60]:
    layer.trainable = False
model.compile(optimizer=keras.optimizers.RMSprop(1e-5), loss=loss, metrics=["accuracy"])
history_fine = model.fit(
    images,
    labels,
    batch_size=16,
    epochs=initial_epochs + fine_tune_epochs,
    initial_epoch=history.epoch[-1] + 1,
)
accuracy = history.history["accuracy"] + history_fine.history["accuracy"]
print("Epochs:", len(accuracy))
