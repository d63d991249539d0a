"""Keras' own loss scaling over the model whose gradients overflow: `fit` under mixed_float16, as its guide shows it."""

from __future__ import annotations

from typing import Any

from hardware.jobs import OVERFLOW_STEPS, SEED


def keras_fit(train: str) -> dict[str, Any]:
    """Return the skipped steps and the last scale of Keras' LossScaleOptimizer over the same records and steps."""
    import keras
    import tensorflow as tf

    from hardware.models import overflowing

    for gpu in tf.config.list_physical_devices("GPU"):
        tf.config.experimental.set_memory_growth(gpu, True)
    keras.utils.set_random_seed(SEED)
    keras.mixed_precision.set_dtype_policy("mixed_float16")
    shape = {"vector": tf.io.FixedLenFeature([32], tf.float32), "label": tf.io.FixedLenFeature([1], tf.int64)}

    def parse(record: Any) -> Any:
        read = tf.io.parse_single_example(record, shape)
        return read["vector"], read["label"]

    files = tf.data.Dataset.list_files(train, shuffle=False)
    batches = tf.data.TFRecordDataset(files).map(parse).batch(8, drop_remainder=True).repeat()
    made = overflowing()
    model = made.pop("model")
    model.compile(**made)
    model.fit(batches, steps_per_epoch=OVERFLOW_STEPS, epochs=1, verbose=0)
    applied = int(model.optimizer.inner_optimizer.iterations.numpy())
    return {"skipped_steps": OVERFLOW_STEPS - applied, "loss_scale": float(model.optimizer.dynamic_scale.numpy())}
