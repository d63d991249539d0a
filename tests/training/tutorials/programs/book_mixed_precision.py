"""The Keras book, 13.2: mixed precision by the script itself."""

import keras
import numpy as np

keras.utils.set_random_seed(3)
keras.mixed_precision.set_global_policy("mixed_float16")
model = keras.Sequential(
    [keras.Input((8,)), keras.layers.Dense(32, activation="relu"), keras.layers.Dense(3, dtype="float32")]
)
model.compile(optimizer="sgd", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
rng = np.random.default_rng(0)
x, y = rng.random((64, 8)).astype("float32"), rng.integers(0, 3, 64)
print("LOSSES", model.fit(x, y, epochs=2, batch_size=16, shuffle=False, verbose=0).history["loss"])
