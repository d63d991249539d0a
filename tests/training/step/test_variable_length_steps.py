"""Steps over batches of varying length: several replicas, each with its own padding, and plain Keras."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from mptraining_trainer.devices.aligned_sizes import align
from mptraining_trainer.keras_backend import Keras
from mptraining_trainer.model.compiled import CompiledModel
from mptraining_trainer.step.train_loop import Loop, StepPlan, make_iterator

BATCH, STEPS, WORDS = 8, 3, 20
DRAW = np.random.default_rng(3)
# The first half of each batch is shorter than the second.
LENGTHS = [2 + row % 3 if row % BATCH < BATCH // 2 else 6 + row % 4 for row in range(BATCH * STEPS)]
ROWS = [DRAW.integers(1, WORDS, length).astype(np.int32) for length in LENGTHS]


def batches(size: int, per_step: bool) -> Any:
    """Return batches of `size` rows, each padded to its own longest by TensorFlow; the label is the parity."""

    def rows() -> Any:
        for row in ROWS:
            yield row, row % 2 if per_step else row[0] % 2

    label = tf.TensorSpec([None] if per_step else [], tf.int32)
    dataset = tf.data.Dataset.from_generator(rows, output_signature=(tf.TensorSpec([None], tf.int32), label))
    return dataset.padded_batch(size, drop_remainder=True)


def model(keras: Keras, *, masked: bool, per_step: bool) -> Any:
    layers = keras.module.layers
    tokens = layers.Input((None,), dtype="int32")
    hidden = layers.Embedding(WORDS, 4, mask_zero=masked)(tokens)
    hidden = hidden if per_step else layers.GlobalAveragePooling1D()(hidden)
    made = keras.module.Model(tokens, layers.Dense(2, dtype="float32")(hidden))
    loss = keras.module.losses.SparseCategoricalCrossentropy(from_logits=True)
    made.compile(optimizer=keras.module.optimizers.SGD(0.5), loss=loss)
    return made


@pytest.mark.parametrize(
    ("masked", "per_step"),
    [
        pytest.param(True, True, id="padding is masked, a label a token"),
        pytest.param(False, False, id="padding is read, one label"),
    ],
)
def test_two_replicas_do_what_keras_does_with_the_whole_batch(keras3: Keras, masked: bool, per_step: bool) -> None:
    keras3.set_seed(1)
    plain = model(keras3, masked=masked, per_step=per_step)
    before = [np.array(weight) for weight in plain.get_weights()]
    loss = plain.fit(batches(BATCH, per_step).repeat(), steps_per_epoch=STEPS, shuffle=False, verbose=0).history[
        "loss"
    ][0]

    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        replicated = model(keras3, masked=masked, per_step=per_step)
        replicated.set_weights(before)
        compiled = CompiledModel(keras3, replicated)
        compiled.build((*next(iter(batches(2, per_step))), ()))
        alignment = partial(align, padding=(0, 0, ()))
        loop = Loop(strategy, compiled, replicated.optimizer, StepPlan(BATCH), align=alignment)
    parts = make_iterator(strategy, lambda: batches(BATCH // 2, per_step).map(lambda *batch: (*batch, ())))
    result = loop.execute(parts, STEPS)
    assert result.loss == pytest.approx(loss, rel=1e-5)
    for one, other in zip(plain.get_weights(), replicated.get_weights(), strict=True):
        assert np.allclose(one, other, rtol=1e-5, atol=1e-6)
    assert not np.allclose(before[0], plain.get_weights()[0], atol=1e-3), "training moved the weights"


def test_a_ragged_batch_trains_as_the_masked_one(keras: Keras) -> None:
    """A model of TensorFlow's ragged operations, against Keras' own layers over the padded batches."""
    masked = model(keras, masked=True, per_step=False)
    table, kernel, bias = (np.array(weight) for weight in masked.get_weights())
    loss = masked.fit(batches(BATCH, False).repeat(), steps_per_epoch=STEPS, shuffle=False, verbose=0).history["loss"][
        0
    ]

    class Mean(keras.module.Model):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.table = self.add_weight(shape=table.shape, name="table")
            self.head = keras.module.layers.Dense(2, dtype="float32")

        def call(self, tokens: Any) -> Any:
            return self.head(tf.reduce_mean(tf.gather(tf.convert_to_tensor(self.table), tokens), axis=1))

    ragged = Mean()
    reduction = keras.module.losses.SparseCategoricalCrossentropy(from_logits=True)
    ragged.compile(optimizer=keras.module.optimizers.SGD(0.5), loss=reduction)
    rows = batches(BATCH, False).map(
        lambda tokens, labels: (tf.RaggedTensor.from_tensor(tokens, padding=0), labels, ())
    )
    compiled = CompiledModel(keras, ragged)
    ragged(next(iter(rows))[0])
    compiled.build(next(iter(rows)))
    ragged.table.assign(table)
    ragged.head.set_weights([kernel, bias])
    strategy = tf.distribute.get_strategy()
    loop = Loop(strategy, compiled, ragged.optimizer, StepPlan(BATCH))
    result = loop.execute(make_iterator(strategy, lambda: rows), STEPS)
    assert result.loss == pytest.approx(loss, rel=1e-5)
    trained = [tf.convert_to_tensor(ragged.table).numpy(), *ragged.head.get_weights()]
    for one, other in zip(masked.get_weights(), trained, strict=True):
        assert np.allclose(one, other, rtol=1e-5, atol=1e-6)
