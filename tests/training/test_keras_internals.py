"""Contracts of the private names of Keras, tf_keras and TensorFlow that the trainer uses.

`make test-all` runs this file against the newest releases that are not final too: a failure here is a change there.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from mptraining_trainer import keras_internals as internals
from mptraining_trainer.keras_backend import Keras
from mptraining_trainer.step.batch_reduction import Part, reduce_as_part, wrap_reductions

pytestmark = pytest.mark.parametrize("keras", ["Keras3", "Legacy"], indirect=True)
ROWS = np.ones((4, 3), np.float32)


def compiled(keras: Keras, **arguments: Any) -> Any:
    """Return a built model with the inputs a and b and the outputs first and second, compiled."""
    layers = keras.module.layers
    inputs = {name: layers.Input((3,), name=name) for name in ("a", "b")}
    hidden = layers.Dropout(0.5)(layers.BatchNormalization()(layers.Concatenate()(list(inputs.values()))))
    model = keras.module.Model(inputs, {name: layers.Dense(1, name=name)(hidden) for name in ("first", "second")})
    losses = {"first": keras.module.losses.Huber(delta=2.0), "second": "mse"}
    metrics = {"first": ["mae"], "second": []}
    optimizer = arguments.pop("optimizer", None) or keras.module.optimizers.SGD(0.5)
    model.compile(optimizer, losses, metrics=metrics, loss_weights={"first": 1.0, "second": 3.0}, **arguments)
    return model


def batch() -> tuple[dict[str, Any], dict[str, Any]]:
    return {name: tf.constant(ROWS) for name in "ab"}, {name: tf.zeros([4, 1]) for name in ("first", "second")}


def trained(keras: Keras, **arguments: Any) -> Any:
    model = compiled(keras, **arguments)
    model.fit(*batch(), verbose=0)
    return model


def test_the_structure_of_a_model(keras: Keras) -> None:
    model, legacy = compiled(keras), keras.legacy
    inputs = internals.input_structure(model, legacy=legacy)
    assert {name: internals.input_layer(tensor).name for name, tensor in inputs.items()} == {"a": "a", "b": "b"}
    assert internals.input_layer(tf.constant(1)) is None
    assert set(internals.output_structure(model, legacy=legacy)) == {"first", "second"}
    nested = keras.module.Model(model.inputs, model(inputs))
    assert {"Dense", "BatchNormalization"} <= {type(layer).__name__ for layer in internals.layers(nested)}
    internals.rename(model, "member", legacy=legacy)
    assert model.name == "member"


def test_variables_and_generators_of_layers(keras: Keras) -> None:
    model = compiled(keras)
    kinds = {type(layer).__name__: layer for layer in internals.layers(model)}
    own = internals.own_non_trainable_variables(kinds["BatchNormalization"], legacy=keras.legacy)
    assert [variable.name.rpartition("/")[2].partition(":")[0] for variable in own] == [
        "moving_mean",
        "moving_variance",
    ]
    assert internals.own_non_trainable_variables(kinds["Dense"], legacy=keras.legacy) == []
    if keras.legacy:
        keras.set_seed(1)
        wrapped = kinds["Dropout"]._random_generator
        assert isinstance(wrapped, internals.tf_keras_generator())
        return
    assert len(internals.seed_generators(kinds["Dropout"])) == 1
    before = internals.global_generator()
    assert internals.global_generator() is before
    internals.forget_global_generator()
    assert internals.global_generator() is not before


def test_masks(keras: Keras) -> None:
    embedded = keras.module.layers.Embedding(4, 2, mask_zero=True)(tf.constant([[1, 0]]))
    assert internals.mask_of(embedded).numpy().tolist() == [[True, False]]
    internals.set_mask(embedded, None)
    assert internals.mask_of(embedded) is internals.mask_of(tf.constant(1)) is None


def test_what_was_compiled(keras: Keras) -> None:
    model, legacy = trained(keras), keras.legacy
    assert internals.is_compiled(model, legacy=legacy)
    assert not internals.is_compiled(keras.module.Model(model.inputs, model.outputs), legacy=legacy)
    arguments = internals.compiled_arguments(model, legacy=legacy)
    assert arguments["loss_weights"] == {"first": 1.0, "second": 3.0}
    assert set(arguments["metrics"]) == {"first", "second"}
    losses = dict(internals.losses_of_outputs(model, legacy=legacy))
    assert set(losses) == {"first", "second"}
    assert internals.loss_arguments(losses["first"])["delta"] == 2.0
    assert internals.compiled_metrics(model, legacy=legacy).metrics
    assert len(internals.output_loss_trackers(model, legacy=legacy)) == 2
    assert internals.loss_tracker(model, legacy=legacy).name == "loss"
    accuracy, curve = keras.module.metrics.BinaryAccuracy(), keras.module.metrics.AUC()
    assert [internals.better_direction(metric) for metric in (accuracy, curve)] == (
        [None, None] if legacy else ["up", "up"]
    )
    score = keras.module.metrics.R2Score()
    assert internals.is_metric_built(accuracy)
    assert not internals.is_metric_built(score)


def test_the_total_loss_has_weights_and_regularizers(keras: Keras) -> None:
    model = trained(keras)
    inputs, labels = batch()
    predictions = model(inputs, training=False)
    loss = internals.total_loss(model, inputs, labels, predictions, None, training=False, legacy=keras.legacy)
    first, second = (tf.reduce_mean(tf.square(predictions[name])) for name in ("first", "second"))
    huber = keras.module.losses.Huber(delta=2.0)(labels["first"], predictions["first"])
    assert float(loss) == pytest.approx(float(huber + 3 * second), rel=1e-5)
    assert float(first) > 0


def test_building_without_a_call(keras: Keras) -> None:
    model = compiled(keras)
    specs = tf.nest.map_structure(lambda tensor: tf.TensorSpec(tensor.shape, tensor.dtype), batch())
    if keras.legacy:
        predictions = model(batch()[0])
        model.compiled_metrics.build(predictions, internals.conform_labels(model, predictions, batch()[1]))
        internals.update_metrics_by_weight(model, batch()[1], predictions, None, tf.constant([1.0, 0.0, 0.0, 0.0]))
        (metric,) = (one for one in model.compiled_metrics.metrics if "mae" in one.name)
        assert float(metric.result()) == pytest.approx(abs(float(predictions["first"][0, 0])), rel=1e-5)
        return
    assert internals.takes_training(model)
    internals.build_symbolically(model, (*specs, None))
    assert internals.compiled_loss(model, legacy=False).built
    assert internals.compiled_metrics(model, legacy=False).built


def test_layers_losses_by_thread(keras: Keras) -> None:
    if keras.legacy:
        pytest.skip("Keras 3's list")

    class Adds(keras.module.layers.Layer):  # type: ignore[name-defined, misc]
        def call(self, inputs: Any) -> Any:
            self.add_loss(tf.reduce_sum(inputs))
            return inputs

    inputs = keras.module.layers.Input((3,))
    model = keras.module.Model(inputs, Adds()(inputs))
    internals.keep_losses_by_replica(model)
    model(ROWS)
    others: list[Any] = []
    other = threading.Thread(target=lambda: others.extend((model(2 * ROWS), *model.losses)))
    other.start()
    other.join()
    assert [float(loss) for loss in model.losses] == [12.0]
    assert float(others[1]) == 24.0


def test_class_weights(keras: Keras) -> None:
    weigh = internals.class_weight_map({0: 1.0, 1: 5.0}, legacy=keras.legacy)
    assert weigh(tf.zeros([2, 1]), tf.constant([1, 0]))[2].numpy().tolist() == [5.0, 1.0]


def test_every_loss_is_reduced_by_the_wrapped_function(keras: Keras) -> None:
    """A rename in Keras would change losses on several replicas without an error: this is the canary."""

    class Own(keras.module.losses.Loss):  # type: ignore[name-defined, misc]
        def call(self, y_true: Any, y_pred: Any) -> Any:
            return tf.reduce_sum(y_pred - y_true, axis=-1)

    wrap_reductions(legacy=keras.legacy)
    for loss in (Own(reduction="sum"), keras.module.losses.MeanSquaredError(reduction="sum")):
        assert float(loss(tf.zeros([2, 1]), tf.ones([2, 1]))) == 2.0
        with reduce_as_part(Part(4, tf.identity)):
            assert float(loss(tf.zeros([2, 1]), tf.ones([2, 1]))) == 8.0


def test_rates_of_optimizers(keras: Keras) -> None:
    optimizer = trained(keras).optimizer
    assert float(internals.rate_or_schedule(optimizer)) == 0.5
    schedule = keras.module.optimizers.schedules.ExponentialDecay(0.25, 1, 0.5)
    internals.set_schedule(optimizer, schedule, legacy=keras.legacy)
    assert internals.rate_or_schedule(optimizer) is schedule
    assert float(np.asarray(optimizer.learning_rate)) == pytest.approx(0.125)


def test_variables_of_optimizers(keras: Keras) -> None:
    sgd = keras.module.optimizers.SGD
    if keras.legacy:
        optimizer = keras.module.optimizers.Nadam()
        model = compiled(keras, optimizer=optimizer)
        optimizer.build(model.trainable_variables)
        internals.count_nadam_by_variable(optimizer)
        assert "update_step" in vars(optimizer)
        model.fit(*batch(), verbose=0)
        assert np.isfinite(model.get_weights()[0]).all()
        return
    model = trained(keras, optimizer=sgd(0.5, use_ema=True, ema_momentum=0.5))
    pairs = internals.moving_averages(model.optimizer)
    assert [variable for variable, _ in pairs] == internals.trainable_variables(model.optimizer)
    assert all(average is not None and average.shape == variable.shape for variable, average in pairs)
    assert int(internals.accumulated_iterations(model.optimizer).value) == 1


def test_an_optimizer_takes_summed_gradients(keras: Keras) -> None:
    """Two replicas apply a gradient of 1 each: it is applied once and not as 2."""
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        variable = keras.module.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
        variable.build((None, 1))
        optimizer = keras.module.optimizers.SGD(1.0)
        keras.build_optimizer(optimizer, variable.trainable_variables)
    internals.take_summed_gradients(optimizer, legacy=keras.legacy)
    step = tf.function(
        lambda: strategy.run(lambda: keras.apply_gradients(optimizer, [tf.ones([1, 1])], variable.trainable_variables))
    )
    step()
    assert float(variable.get_weights()[0][0, 0]) == -1.0


def test_callbacks(keras: Keras, tmp_path: Path) -> None:
    board = keras.module.callbacks.TensorBoard(str(tmp_path), update_freq=1, profile_batch=0)
    model = trained(keras)
    model.fit(*batch(), verbose=0, callbacks=[board])
    assert not internals.traces_batches(board)
    assert internals.traces_batches(keras.module.callbacks.TensorBoard(str(tmp_path), profile_batch=2))
    assert internals.writers(board)
    internals.set_training_step(board, model, 7)
    assert board._global_train_batch == 7
    internals.stop_tracing(board)
    assert set(vars(keras.module.callbacks.Callback())) <= internals.CALLBACK_BASE


def test_the_state_of_callbacks(keras: Keras, tmp_path: Path) -> None:
    callbacks = keras.module.callbacks
    every = [
        callbacks.EarlyStopping(monitor="loss"),
        callbacks.ModelCheckpoint(str(tmp_path / "model.keras"), monitor="loss", save_best_only=True),
        callbacks.ReduceLROnPlateau(monitor="loss"),
        callbacks.TensorBoard(str(tmp_path)),
    ]
    compiled(keras).fit(*batch(), verbose=0, callbacks=every)
    for callback in every:
        missing = set(internals.CALLBACK_STATE[type(callback).__name__]) - set(vars(callback))
        # Each generation lacks names that the other has.
        assert missing <= ({"_global_test_batch"} if keras.legacy else {"epochs_since_last_save"})


def test_keys_between_workers(keras: Keras) -> None:
    """Without a coordination service TensorFlow refuses, by its own error."""
    with pytest.raises((tf.errors.OpError, RuntimeError)):
        internals.wait_for_worker_key("mptraining/no", 0.01)
    with pytest.raises((tf.errors.OpError, RuntimeError)):
        internals.set_worker_key("mptraining/no", "")
