"""Text classification with an embedding: raw strings, a vocabulary that is learnt from them, two classes."""

import random

import keras
import tensorflow as tf

random.seed(3)
good = ["wonderful", "great", "moving", "clever", "funny"]
bad = ["dull", "awful", "boring", "clumsy", "sad"]
rest = ["the", "film", "was", "and", "plot", "with", "actors", "very"]
texts, labels = [], []
for number in range(320):
    label = number % 2
    words = random.choices(good if label else bad, k=3) + random.choices(rest, k=9)
    random.shuffle(words)
    texts.append(" ".join(words))
    labels.append(label)

raw_train_ds = tf.data.Dataset.from_tensor_slices((texts, labels)).batch(32)

vectorize_layer = keras.layers.TextVectorization(max_tokens=100, output_mode="int", output_sequence_length=16)
vectorize_layer.adapt(raw_train_ds.map(lambda text, label: text))


def vectorize_text(text, label):
    return vectorize_layer(tf.expand_dims(text, -1)), label


train_ds = raw_train_ds.map(vectorize_text).cache().prefetch(tf.data.AUTOTUNE)

model = keras.Sequential(
    [
        keras.layers.Embedding(100, 16),
        keras.layers.Dropout(0.2),
        keras.layers.GlobalAveragePooling1D(),
        keras.layers.Dropout(0.2),
        keras.layers.Dense(1, activation="sigmoid"),
    ]
)
model.compile(loss=keras.losses.BinaryCrossentropy(), optimizer="adam", metrics=[keras.metrics.BinaryAccuracy()])
history = model.fit(train_ds, validation_data=train_ds, epochs=3)
loss, accuracy = model.evaluate(train_ds)
print("Epochs:", len(history.history["val_binary_accuracy"]))
