"""Handwritten digits with the functional API: an image and a table of row sums go in, a class comes out."""

import keras
import numpy as np
from keras import layers
from sklearn.datasets import load_digits

digits = load_digits()
images = digits.images[:480, ..., np.newaxis].astype("float32") / 16.0
rows = images.sum(axis=2).reshape(len(images), -1)
labels = digits.target[:480]

image_input = keras.Input(shape=(8, 8, 1), name="image")
x = layers.Conv2D(8, 3, activation="relu")(image_input)
x = layers.BatchNormalization()(x)
x = layers.MaxPooling2D(2)(x)
x = layers.Flatten()(x)
row_input = keras.Input(shape=(8,), name="rows")
y = layers.Dense(8, activation="relu")(row_input)
x = layers.concatenate([x, y])
x = layers.Dropout(0.2)(x)
outputs = layers.Dense(10, activation="softmax")(x)
model = keras.Model(inputs=[image_input, row_input], outputs=outputs, name="digits")
model.summary()

model.compile(
    loss=keras.losses.SparseCategoricalCrossentropy(),
    optimizer=keras.optimizers.Adam(),
    metrics=["accuracy"],
)
history = model.fit(
    {"image": images[:400], "rows": rows[:400]}, labels[:400], batch_size=40, epochs=3, validation_split=0.1
)
scores = model.evaluate({"image": images[400:], "rows": rows[400:]}, labels[400:], verbose=0)
print("Test loss:", scores[0])
print("Test accuracy:", scores[1])
print("Epochs:", len(history.history["val_accuracy"]))
