"""The loop: fused steps, replicas, masks, accumulation and the one decision about overflow, on real strategies."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from mptraining_trainer.data.input_stats import InputInterval
from mptraining_trainer.keras_backend import Keras
from mptraining_trainer.model.compiled import CompiledModel
from mptraining_trainer.numerics.loss_scaling import CEILING, LossScaler
from mptraining_trainer.step.train_loop import Loop, StepPlan, make_iterator
from tests.left_out import first_of
from tests.testbed.keras_generations import BOTH_GENERATIONS

FEATURES, CLASSES, BATCH = 8, 4, 16


def examples(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    numbers = np.random.default_rng(seed)
    inputs = numbers.normal(size=(count, FEATURES)).astype(np.float32)
    return inputs, inputs[:, :CLASSES].argmax(axis=1).astype(np.int64)


def strategy(replicas: int) -> Any:
    return tf.distribute.MirroredStrategy([f"CPU:{index}" for index in range(replicas)])


def model(keras: Keras, *, normalized: bool | str = False, dropout: float = 0.0, first: Any = None) -> Any:
    layers = keras.module.layers
    stack = [layers.Input((FEATURES,)), *([first()] if first else []), layers.Dense(16, activation="relu")]
    if normalized:
        stack.append(layers.BatchNormalization(synchronized=normalized != "plain"))
    if dropout:
        stack.append(layers.Dropout(dropout))
    return keras.module.Sequential([*stack, layers.Dense(CLASSES, dtype="float32")])


class Rig:
    """A loop with its model, strategy and endless batches of one replica, distributed in turn."""

    def __init__(
        self,
        keras: Keras,
        *,
        replicas: int = 1,
        policy: str = "float32",
        data: Sequence[np.ndarray] | None = None,
        masked: bool = False,
        accumulation: int = 1,
        scale: float | None = None,
        normalized: bool | str = False,
        jit: bool = False,
        checked: bool = False,
        dropout: float = 0.0,
        clipnorm: float | None = None,
        first: Any = None,
        float8: bool = False,
        optimizer: Callable[[Keras], Any] | None = None,
    ) -> None:
        keras.set_seed(1)
        keras.set_policy(policy)
        self.keras = keras
        self.strategy = strategy(replicas)
        with self.strategy.scope():
            self.model = model(keras, normalized=normalized, dropout=dropout, first=first)
            if float8:
                self.model.quantize("float8")
            sgd = keras.module.optimizers.SGD
            self.optimizer = optimizer(keras) if optimizer else sgd(0.1, momentum=0.9, clipnorm=clipnorm)
            self.scaler = LossScaler(initial=scale, dynamic=True) if scale else None
            if checked:
                self.scaler = LossScaler(scales=False)
            loss = keras.module.losses.SparseCategoricalCrossentropy(from_logits=True)
            accuracy = keras.module.metrics.SparseCategoricalAccuracy(name="accuracy")
            self.model.compile(self.optimizer, loss, metrics=[accuracy])
            self.model.optimizer = self.optimizer
            compiled = CompiledModel(keras, self.model)
            compiled.build((*(tf.constant(array) for array in examples(2)), ()))
            plan = StepPlan(BATCH, partial=masked, accumulation=accumulation, jit=jit)
            self.loop = Loop(self.strategy, compiled, self.optimizer, plan, scaler=self.scaler)
        self.batches = self.batches_of(data or examples(BATCH * 8), BATCH // replicas)

    def batches_of(self, arrays: Sequence[np.ndarray], batch: int) -> Any:
        inputs, labels, *rows = arrays
        slices = (inputs, labels, (), *rows)
        return make_iterator(self.strategy, lambda: tf.data.Dataset.from_tensor_slices(slices).repeat().batch(batch))

    def weights(self) -> list[np.ndarray]:
        return [np.array(array) for array in self.model.get_weights()]

    def every_copy(self) -> list[list[np.ndarray]]:
        """Return the trainable weights of each replica."""
        return [self.copies(one) for one in self.keras.variables_of(self.model.trainable_variables)]

    def copies(self, variable: Any) -> list[np.ndarray]:
        return [part.numpy() for part in self.strategy.experimental_local_results(variable)]

    def updates(self) -> int:
        return int(self.optimizer.iterations.numpy())


def same(first: list[np.ndarray], second: list[np.ndarray], tolerance: float = 0.0) -> bool:
    return all(np.allclose(a, b, rtol=tolerance, atol=tolerance) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("policy", first_of("mixed_float16", "mixed_bfloat16", "float32"))
def test_fused_steps_are_the_same_as_single_ones(keras: Keras, policy: str) -> None:
    scale = 1024.0 if policy == "mixed_float16" else None
    fused, single = (Rig(keras, policy=policy, scale=scale) for _ in range(2))
    together = fused.loop.execute(fused.batches, 6)
    apart = [single.loop.execute(single.batches, 1) for _ in range(6)]
    assert same(fused.weights(), single.weights())
    assert together.loss == pytest.approx(np.mean([one.loss for one in apart]), rel=1e-6)
    assert together.loss_sum == apart[-1].loss_sum, "to the last bit, however the steps are fused"
    assert together.metrics == apart[-1].metrics
    assert fused.updates() == single.updates() == 6


@pytest.mark.parametrize("replicas", first_of(2, 4))
def test_replicas_together_do_what_one_does_with_the_same_batch(keras: Keras, replicas: int) -> None:
    """Without dropout and with synchronized BatchNormalization; sums in another order differ by 1e-5 at most."""
    one, many = Rig(keras, normalized=True), Rig(keras, normalized=True, replicas=replicas)
    for _ in range(4):
        alone, together = one.loop.execute(one.batches, 2), many.loop.execute(many.batches, 2)
        assert together.loss == pytest.approx(alone.loss, rel=1e-5)
        assert together.metrics == pytest.approx(alone.metrics)
    assert same(one.weights(), many.weights(), 1e-5)
    assert not same(one.weights(), Rig(keras, normalized=True).weights(), 1e-3), "training moved the weights"


@BOTH_GENERATIONS
@pytest.mark.parametrize(("replicas", "poisoned"), first_of((2, 1), (1, 0), (2, 0), (4, 0), (4, 3)))
def test_an_overflow_on_any_one_replica_skips_the_step_on_all(keras: Keras, replicas: int, poisoned: int) -> None:
    inputs, labels = examples(BATCH * 3)
    inputs[BATCH + poisoned * (BATCH // replicas)] = 1e38  # second step: infinite as float16, on one replica alone
    rig = Rig(keras, replicas=replicas, policy="mixed_float16", scale=1024.0, data=(inputs, labels))

    first = rig.loop.execute(rig.batches, 1)
    before, copies = rig.weights(), rig.every_copy()
    second = rig.loop.execute(rig.batches, 1)

    assert (first.applied_steps, first.loss_scale, first.skipped_steps) == (1, 1024.0, 0)
    assert (second.applied_steps, second.loss_scale, second.skipped_steps) == (0, 1024.0, 1), "forward is not scaled"
    assert (second.failed_replica, second.forward_failed) == (poisoned, True)
    assert same(rig.weights(), before)
    assert all(
        np.array_equal(a, b)
        for one, two in zip(rig.every_copy(), copies, strict=True)
        for a, b in zip(one, two, strict=True)
    )
    assert rig.updates() == 1

    third = rig.loop.execute(rig.batches, 1)
    assert (third.applied_steps, third.loss_scale, third.skipped_in_a_row) == (1, 1024.0, 0)
    for copies_of_one in rig.every_copy():
        assert all(np.isfinite(copy).all() and np.array_equal(copy, copies_of_one[0]) for copy in copies_of_one)


@pytest.mark.parametrize("policy", first_of("mixed_float16", "mixed_bfloat16"))
def test_a_skipped_step_changes_nothing(keras: Keras, policy: str) -> None:
    """It changes neither statistics nor seeds nor metrics nor the result of the next step."""
    inputs, labels = examples(BATCH * 3)
    inputs[BATCH] = np.nan
    scale = 1024.0 if policy == "mixed_float16" else None
    parts: dict[str, Any] = {"replicas": 2, "policy": policy, "normalized": True, "dropout": 0.3}
    parts |= {"scale": scale, "checked": scale is None}
    poisoned = Rig(keras, data=(inputs, labels), **parts)
    kept = np.r_[0:BATCH, 2 * BATCH : 3 * BATCH]
    without = Rig(keras, data=(inputs[kept], labels[kept]), **parts)

    first = poisoned.loop.execute(poisoned.batches, 1)
    before = [variable.numpy() for variable in keras.variables(poisoned.model)]
    second = poisoned.loop.execute(poisoned.batches, 1)
    after = [variable.numpy() for variable in keras.variables(poisoned.model)]
    assert (second.applied_steps, second.skipped_in_a_row) == (0, 1)
    assert not np.isfinite(second.gradient_norm)
    assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))
    assert second.metrics == first.metrics

    third = poisoned.loop.execute(poisoned.batches, 1)
    expected = [without.loop.execute(without.batches, 1) for _ in range(2)][1]
    assert third.metrics == expected.metrics
    assert third.loss == pytest.approx(expected.loss, rel=1e-6)
    tolerance = 1e-3 if scale else 0.0  # under float16 the scale has halved
    assert same(poisoned.weights(), without.weights(), tolerance)


def test_checking_updates_first_changes_none_of_them(keras: Keras) -> None:
    plain, checked = Rig(keras, replicas=2), Rig(keras, replicas=2, checked=True)
    first, second = plain.loop.execute(plain.batches, 5), checked.loop.execute(checked.batches, 5)
    assert same(plain.weights(), checked.weights())
    assert (second.loss, second.gradient_norm) == pytest.approx((first.loss, first.gradient_norm))
    assert (second.loss_scale, second.skipped_steps) == (None, 0)


@pytest.mark.parametrize(("replicas", "accumulation", "scale"), first_of((2, 2, None), (4, 1, 1024.0)))
def test_the_gradient_norm_is_that_of_the_whole_batch(
    keras: Keras, replicas: int, accumulation: int, scale: float | None
) -> None:
    """Also that of the last of several steps, for any number of replicas, parts and loss scale."""
    rig = Rig(keras, replicas=replicas, accumulation=accumulation, scale=scale)
    assert rig.loop.execute(rig.batches, 2).finite_steps == 2
    x, y = (part[2 * BATCH : 3 * BATCH] for part in examples(BATCH * 8))
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, rig.model(x, training=True)))
    gradients = tape.gradient(loss, keras.variables_of(rig.model.trainable_variables))
    expected = np.sqrt(sum(float((gradient.numpy() ** 2).sum()) for gradient in gradients))
    assert rig.loop.execute(rig.batches, 1).gradient_norm == pytest.approx(expected, rel=1e-5)


def test_clipping_sees_the_whole_gradient(keras: Keras) -> None:
    """Keras 3 clips the share of each replica and sums afterwards."""
    one, many = (Rig(keras, replicas=replicas, clipnorm=0.05) for replicas in (1, 2))
    for rig in (one, many):
        rig.loop.execute(rig.batches, 4)
    assert same(one.weights(), many.weights(), 1e-5)
    assert not same(one.weights(), Rig(keras, clipnorm=0.05).weights(), 1e-3)


@pytest.mark.parametrize("scale", first_of(None, 1024.0))
def test_replicas_share_their_moving_statistics(keras: Keras, scale: float | None) -> None:
    """Plain BatchNormalization: each replica sees its own half of the batch, all continue with the mean of both."""
    rig = Rig(keras, replicas=2, scale=scale, normalized="plain", data=examples(BATCH * 3))
    rig.loop.execute(rig.batches, 3)
    statistics = [rig.copies(one) for one in rig.keras.moving_statistics(rig.model)]
    assert len(statistics) == 2
    for first, second in statistics:
        assert np.array_equal(first, second)
        assert not np.allclose(first, np.round(first), atol=1e-6), "they moved"


def test_a_table_is_no_moving_statistic(keras: Keras) -> None:
    class Table(keras.module.layers.Layer):  # type: ignore[name-defined, misc]
        def build(self, shape: Any) -> None:
            self.table = self.add_weight(shape=(1025, 1024), trainable=False, initializer="zeros", name="table")
            self.mean = self.add_weight(shape=(1024,), trainable=False, initializer="zeros", name="mean")

        def call(self, inputs: Any) -> Any:
            return inputs

    found = keras.moving_statistics(keras.module.Sequential([keras.module.layers.Input((2,)), Table()]))
    assert [list(variable.shape) for variable in found] == [[1024]]


def test_gradients_that_overflow_halve_the_scale(keras: Keras) -> None:
    rig = Rig(keras, replicas=2, policy="mixed_float16", scale=CEILING)
    first = rig.loop.execute(rig.batches, 1)
    assert (first.applied_steps, first.loss_scale, first.failed_replica) == (0, CEILING / 2, 0)
    assert not first.forward_failed
    result = rig.loop.execute(rig.batches, 30)
    assert result.applied_steps > 0
    assert result.loss_scale == CEILING / 2**result.skipped_steps


def test_the_scale_grows_after_enough_good_steps(keras3: Keras) -> None:
    rig = Rig(keras3, replicas=2, policy="mixed_float16", scale=16.0)
    assert rig.scaler is not None
    state = rig.scaler.state()
    rig.scaler.restore(type(state)(16.0, 1998, 0, 0))
    assert rig.loop.execute(rig.batches, 1).loss_scale == 16.0
    assert rig.loop.execute(rig.batches, 1).loss_scale == 32.0
    assert rig.scaler.state().good_steps == 0


@pytest.mark.parametrize(("dynamic", "scale", "seeks"), [(True, 2.0, True), (True, 1.0, False), (False, 2.0, False)])
def test_the_scale_of_the_failed_step_decides_whether_it_may_be_the_cause(
    keras3: Keras, dynamic: bool, scale: float, seeks: bool
) -> None:
    """After the step at 2 the scale is 1, which has not been tried."""
    inputs, labels = examples(BATCH)
    rig = Rig(keras3, scale=scale, data=(inputs, labels), optimizer=lambda keras: keras.module.optimizers.SGD(0.1))
    assert rig.scaler is not None
    rig.scaler.dynamic = dynamic
    rig.model.layers[-1].kernel.assign(tf.fill(rig.model.layers[-1].kernel.shape, 1e30))
    execution = rig.loop.execute(rig.batches, 1)
    assert (execution.skipped_steps, execution.forward_failed) == (1, False)
    assert (execution.seeks_scale, execution.failed_replica) == (seeks, 0)


@pytest.mark.parametrize("replicas", first_of(2, 1))
@pytest.mark.parametrize(
    "way", [{"scale": 2.0**15}, {"accumulation": 4}, {"jit": True}, {"jit": True, "scale": 2.0**15}], ids=str
)
def test_scaled_in_parts_or_compiled_a_step_is_the_same(keras: Keras, replicas: int, way: dict[str, Any]) -> None:
    plain, other = Rig(keras, replicas=replicas), Rig(keras, replicas=replicas, **way)
    for rig in (plain, other):
        rig.loop.execute(rig.batches, 3)
        assert rig.updates() == 3
    assert same(plain.weights(), other.weights(), 1e-5)


@pytest.mark.parametrize("accumulation", first_of(2, 1))
def test_masked_examples_do_not_count(keras: Keras, accumulation: int) -> None:
    """Half of each batch is masked, and full of NaN: it trains as the other half alone."""
    inputs, labels = examples(BATCH)
    mask = np.tile([1.0, 0.0], BATCH // 2).astype(np.float32)
    poisoned = np.where(mask[:, None] > 0, inputs, np.float32(1e3))
    rig = Rig(keras, replicas=2, masked=True, accumulation=accumulation, data=(poisoned, labels, mask))
    chosen = np.repeat(np.flatnonzero(mask), 2)
    alone = Rig(keras, data=(inputs[chosen], labels[chosen]))
    first, second = rig.loop.execute(rig.batches, 1), alone.loop.execute(alone.batches, 1)
    assert first.loss == pytest.approx(second.loss, rel=1e-5)
    assert first.metrics == pytest.approx(second.metrics)
    assert same(rig.weights(), alone.weights(), 1e-5)


@pytest.mark.parametrize("replicas", first_of(2, 1, 4))
def test_evaluation_counts_every_example_once(keras: Keras, replicas: int) -> None:
    count = BATCH * 2 + 5
    inputs, labels = examples(count)
    padded = -(-count // BATCH) * BATCH
    rows = np.arange(padded) % count
    mask = (np.arange(padded) < count).astype(np.float32)
    rig = Rig(keras, replicas=replicas, normalized=True)
    feed = rig.batches_of((inputs[rows], labels[rows], mask), BATCH // replicas)

    logits = np.asarray(rig.model(inputs, training=False))
    shifted = logits - logits.max(axis=1, keepdims=True)
    losses = np.log(np.exp(shifted).sum(axis=1)) - shifted[np.arange(count), labels]
    for _ in range(2):
        result = rig.loop.evaluation.run(feed, padded // BATCH, now=lambda: 0.0)
        assert result is not None
        assert result["loss"] == pytest.approx(losses.mean(), rel=1e-5)
        assert result["accuracy"] == pytest.approx((logits.argmax(axis=1) == labels).mean())


def test_evaluation_stops_between_two_calls_and_starts_again(keras: Keras) -> None:
    inputs, labels = examples(BATCH * 8)
    rig = Rig(keras, replicas=2)
    feed = rig.batches_of((inputs, labels, np.ones(len(labels), np.float32)), BATCH // 2)
    told = iter([False, True])
    evaluation, clock = rig.loop.evaluation, iter(np.arange(0, 1, 1 / 64)).__next__
    assert evaluation.run(feed, 8, now=clock, stop=lambda: next(told)) is None
    again = evaluation.run(rig.batches_of((inputs, labels, np.ones(len(labels), np.float32)), BATCH // 2), 8, now=clock)
    assert again is not None
    assert again["accuracy"] == pytest.approx(
        (rig.model(inputs, training=False).numpy().argmax(axis=1) == labels).mean()
    )


class Nested:
    """A layer with its generators in a list, a dict in a tuple, and an object that Keras does not track."""

    def __new__(cls, keras: Keras) -> Any:
        module = keras.module
        if keras.legacy:
            from tf_keras.src.backend import RandomGenerator as SeedGenerator
        else:
            SeedGenerator = module.random.SeedGenerator

        class NestedDropout(module.layers.Layer):  # type: ignore[name-defined, misc]
            def __init__(self) -> None:
                super().__init__()
                self.in_list = [SeedGenerator(1)]
                self.in_tuple = ({"dict": SeedGenerator(2)},)

            def call(self, inputs: Any, training: bool = False) -> Any:
                first, second = self.in_list[0], self.in_tuple[0]["dict"]
                if keras.legacy:
                    return first.dropout(second.dropout(inputs, 0.5), 0.5)
                random = module.random
                return random.dropout(random.dropout(inputs, 0.5, seed=second), 0.5, seed=first)

        return NestedDropout()


LAYERS = {
    "dropout": lambda keras: keras.module.layers.Dropout(0.5),
    "preprocessing": lambda keras: keras.module.layers.RandomRotation(0.5),
    "nested": Nested,
}


@pytest.mark.parametrize("name", LAYERS)
def test_replicas_draw_different_numbers(keras: Keras, name: str) -> None:
    over = strategy(2)
    keras.set_seed(1)
    with over.scope():
        layer = LAYERS[name](keras)
        drawing = keras.module.Sequential([keras.module.layers.Input((8, 8, 1)), layer])
        states = keras.untracked_states(drawing)
    keras.fold_replica_into_seeds()
    ramp = tf.reshape(tf.range(1.0, 65.0), [1, 8, 8, 1])
    draw = tf.function(lambda: over.run(lambda: drawing(ramp, training=True)))
    before = [state.numpy().tolist() for state in [*states, *keras.forward_pass_variables(drawing)]]
    seen = [drawn.numpy().tobytes() for _ in range(3) for drawn in over.experimental_local_results(draw())]
    assert len(set(seen)) == 6, "others on every replica and in every step"
    after = [state.numpy().tolist() for state in [*states, *keras.forward_pass_variables(drawing)]]
    assert before != after, "a checkpoint has their state"


def trained_by_keras(
    keras: Keras, steps: int, optimizer: Any, *, policy: str = "float32", float8: bool = False, first: Any = None
) -> Any:
    """Return the rig's model after so many batches of plain Keras on one device."""
    keras.set_seed(1)
    keras.set_policy(policy)
    plain = model(keras, first=first)
    if float8:
        plain.quantize("float8")
    loss = keras.module.losses.SparseCategoricalCrossentropy(from_logits=True)
    plain.compile(optimizer, loss)
    inputs, labels = examples(BATCH * 8)
    plain.fit(inputs[: steps * BATCH], labels[: steps * BATCH], batch_size=BATCH, shuffle=False, verbose=0)
    return plain


@pytest.mark.filterwarnings("ignore:Layer InputLayer does not have a `quantize` method")
@pytest.mark.parametrize("policy", first_of("mixed_float16", "mixed_bfloat16", "float32"))
@pytest.mark.parametrize(("replicas", "accumulation"), first_of((2, 2), (2, 1), (1, 2)))
def test_float8_trains_as_in_keras(keras3: Keras, policy: str, replicas: int, accumulation: int) -> None:
    """Its scales and largest values are overwritten by their gradients: neither sums, means nor unscaled."""
    sgd = keras3.module.optimizers.SGD
    scale = 2.0**15 if policy == "mixed_float16" else None
    parts: dict[str, Any] = {"replicas": replicas, "accumulation": accumulation, "scale": scale}
    rig = Rig(keras3, policy=policy, float8=True, optimizer=lambda keras: sgd(0.1), **parts)
    done = rig.loop.execute(rig.batches, 4)
    plain = trained_by_keras(keras3, 4, sgd(0.1), policy=policy, float8=True)
    assert (done.skipped_steps, done.finite_steps) == (0, 4)
    assert done.gradient_norm < 10
    for ours, theirs in zip(rig.model.trainable_variables, plain.trainable_variables, strict=True):
        # Quantization to 2 or 3 bits of mantissa makes more of a last digit.
        assert np.allclose(ours.numpy(), theirs.numpy(), rtol=0.05, atol=0.02 * np.abs(theirs.numpy()).max()), ours.path


def own_apply(keras: Keras) -> Any:
    """Return an optimizer with the two methods of `fit` that a class of the user's may override."""

    class Own(keras.module.optimizers.SGD):  # type: ignore[name-defined, misc]
        def apply_gradients(self, grads_and_vars: Any) -> Any:
            return super().apply_gradients([(0.5 * gradient, variable) for gradient, variable in grads_and_vars])

        def finalize_variable_values(self, var_list: Any) -> None:
            for variable in var_list:
                variable.assign(0.5 * variable)

    return Own(0.1, momentum=0.9)


def several(keras: Keras) -> Any:
    module = keras.module.optimizers
    inner = {".*bias": module.RMSprop(0.01, use_ema=True, ema_overwrite_frequency=3)}
    return module.MultiOptimizer(module.OptimizerMap(module.SGD(0.1, momentum=0.9, clipnorm=0.1), inner))


def fixed_scale(keras: Keras) -> Any:
    return keras.module.optimizers.SGD(0.1, clipnorm=0.1, loss_scale_factor=1024.0)


def assert_trains_as_in_keras(
    keras: Keras, optimizer: Callable[[Keras], Any], *, replicas: int, accumulation: int
) -> None:
    rig = Rig(keras, replicas=replicas, accumulation=accumulation, optimizer=optimizer)
    norm = rig.loop.execute(rig.batches, 4).gradient_norm
    keras.finalize(rig.optimizer, rig.model.trainable_variables)
    plain = trained_by_keras(keras, 4, optimizer(keras))
    assert same(rig.weights(), plain.get_weights(), 1e-6)
    assert norm < 10, "not that of a multiplied loss"


@BOTH_GENERATIONS
@pytest.mark.parametrize(("replicas", "accumulation"), first_of((2, 2), (1, 1)))
def test_an_optimizer_of_the_user_means_what_it_means_in_keras(keras: Keras, replicas: int, accumulation: int) -> None:
    assert_trains_as_in_keras(keras, own_apply, replicas=replicas, accumulation=accumulation)


@pytest.mark.parametrize("optimizer", [fixed_scale, several])
@pytest.mark.parametrize(("replicas", "accumulation"), first_of((2, 2), (1, 1)))
def test_an_optimizer_of_keras_3_means_what_it_means_there(
    keras3: Keras, optimizer: Callable[[Keras], Any], replicas: int, accumulation: int
) -> None:
    assert_trains_as_in_keras(keras3, optimizer, replicas=replicas, accumulation=accumulation)


@BOTH_GENERATIONS
def test_states_that_keras_does_not_track_are_found(keras: Keras) -> None:
    """A checkpoint and a skipped step need them: those of stateful RNNs and plain `tf.Variable`s."""

    class Counting(keras.module.layers.Layer):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.calls = {"seen": tf.Variable(0.0, trainable=False)}

        def call(self, inputs: Any) -> Any:
            self.calls["seen"].assign_add(1.0)
            return inputs

    layers = keras.module.layers
    counting = keras.module.Sequential([layers.Input((3, 2), 4), Counting(), layers.GRU(2, stateful=True)])

    def values() -> list[np.ndarray]:
        found = [*keras.untracked_states(counting), *keras.forward_pass_variables(counting)]
        return [np.array(variable.numpy()) for variable in found]

    before = values()
    counting(tf.ones((4, 3, 2)))
    changed = [
        array.shape for array, earlier in zip(values(), before, strict=True) if not np.array_equal(array, earlier)
    ]
    assert sorted(changed) == [(), (4, 2)]


def test_metrics_are_reset_at_an_epoch(keras3: Keras) -> None:
    rig = Rig(keras3, replicas=2)
    rig.loop.execute(rig.batches, 8)
    rig.loop.reset_metrics()
    # The data begin again after eight batches.
    inputs, labels = (array[:BATCH] for array in examples(BATCH * 8))
    right = (rig.model(inputs, training=False).numpy().argmax(axis=1) == labels).mean()
    assert rig.loop.execute(rig.batches, 1).metrics["accuracy"] == pytest.approx(right)


@pytest.mark.parametrize("replicas", first_of(2, 1, 4))
def test_a_plain_iterator_feeds_as_a_distributed_one_does(keras: Keras, replicas: int) -> None:
    """CPUs share a plain iterator because it is faster; the replicas must get the same batches from it."""
    plain, distributed = Rig(keras, replicas=replicas), Rig(keras, replicas=replicas)
    dataset = tf.data.Dataset.from_tensor_slices((*examples(BATCH * 8), ())).repeat().batch(BATCH // replicas)
    distributed.batches = iter(distributed.strategy.distribute_datasets_from_function(lambda context: dataset))
    first = plain.loop.execute(plain.batches, 5)
    second = distributed.loop.execute(distributed.batches, 5)
    assert first == second
    assert same(plain.weights(), distributed.weights())


@pytest.mark.parametrize(("slow", "least", "most"), first_of(("data", 80, 100), ("step", 0, 20)))
def test_the_time_that_is_spent_waiting_for_data(keras3: Keras, slow: str, least: float, most: float) -> None:
    rig = Rig(keras3)

    def pause() -> np.float32:
        time.sleep(0.2)
        return np.float32(0.0)

    def slowed(inputs: Any, labels: Any) -> tuple[Any, Any]:
        return inputs + tf.numpy_function(pause, [], tf.float32), tf.ensure_shape(labels, [BATCH])

    dataset = tf.data.Dataset.from_tensor_slices(examples(BATCH * 8)).repeat().batch(BATCH, drop_remainder=True)
    if slow == "data":
        dataset = dataset.map(slowed).map(lambda inputs, labels: (tf.ensure_shape(inputs, [BATCH, FEATURES]), labels))
    else:
        step = rig.loop._run_step

        def slow_step(batch: Any) -> Any:
            norm = step(batch)
            tf.numpy_function(pause, [], tf.float32)
            return norm

        rig.loop._run_step = slow_step
        dataset = dataset.prefetch(4)
    batches = make_iterator(rig.strategy, lambda: dataset.map(lambda inputs, labels: (inputs, labels, ())))
    rig.loop.execute(batches, 1)
    since = InputInterval()
    before = time.monotonic()
    execution = rig.loop.execute(batches, 5)
    since.add(time.monotonic() - before, execution.waited_seconds)
    assert since.seconds > 0.3
    assert since.bound_percent is not None
    assert least <= since.bound_percent <= most


@pytest.mark.parametrize(("keras", "replicas"), first_of(("Keras3", 2), ("Legacy", 1)), indirect=["keras"])
def test_what_xla_cannot_take_is_found_before_the_first_step(keras: Keras, replicas: int) -> None:
    class Outside(keras.module.layers.Layer):  # type: ignore[name-defined, misc]
        def call(self, inputs: Any) -> Any:
            given = tf.py_function(lambda array: array, [inputs], tf.float32)
            given.set_shape(inputs.shape)
            return given

    few = (*(tf.constant(array[:4]) for array in examples(BATCH)), ())
    fine, outside = (Rig(keras, replicas=replicas, jit=True, first=first) for first in (None, Outside))
    assert fine.loop.xla_error(few) is None
    assert "EagerPyFunc" in str(outside.loop.xla_error(few))
    outside.loop.disable_xla()
    assert outside.loop.execute(outside.batches, 1).applied_steps == 1


def test_on_one_replica_xla_compiles_the_optimizer_too(keras3: Keras) -> None:
    class Outside(keras3.module.optimizers.SGD):  # type: ignore[name-defined, misc]
        def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
            given = tf.py_function(lambda array: array, [gradient], tf.float32)
            super().update_step(tf.ensure_shape(given, gradient.shape), variable, learning_rate)

    few = (*(tf.constant(array[:4]) for array in examples(BATCH)), ())
    rig = Rig(keras3, jit=True, optimizer=lambda _: Outside(0.1))
    assert "EagerPyFunc" in str(rig.loop.xla_error(few))
    rig.loop.disable_xla()
    assert rig.loop.execute(rig.batches, 1).applied_steps == 1


@BOTH_GENERATIONS
def test_statistics_of_several_types_are_averaged(keras: Keras) -> None:
    """Under tf_keras those of Normalization have the policy's type, those of BatchNormalization float32."""

    def adapted() -> Any:
        layer = keras.module.layers.Normalization()
        layer.adapt(examples(2 * BATCH)[0])
        return layer

    rig = Rig(keras, replicas=2, policy="mixed_float16", scale=1024.0, normalized=True, first=adapted)
    assert np.isfinite(rig.loop.execute(rig.batches, 1).loss)


def test_a_layer_of_another_type_trains_as_in_keras(keras: Keras) -> None:
    def wide() -> Any:
        return keras.module.layers.Dense(FEATURES, dtype="float64")

    one, two = (Rig(keras, replicas=replicas, first=wide) for replicas in (1, 2))
    for rig in (one, two):
        rig.loop.execute(rig.batches, 2)
    optimizer = keras.module.optimizers.SGD(0.1, momentum=0.9)
    expected = trained_by_keras(keras, 2, optimizer, first=wide).get_weights()
    assert same(one.weights(), expected, 1e-6)
    assert same(two.weights(), expected, 1e-5)


@pytest.mark.parametrize("replicas", [1, 2])
def test_an_own_train_step_is_checked_by_what_it_returns_beside_the_compiled_metrics(
    keras3: Keras, replicas: int
) -> None:
    """A metric may be NaN, as under `fit`; a loss that is not finite is found in the step in which it is."""

    class Own(keras3.module.Sequential):  # type: ignore[name-defined, misc]
        def train_step(self, data: Any) -> Any:
            inputs, labels = data[:2]
            with tf.GradientTape() as tape:
                predictions = self(inputs, training=True)
                loss = self.compute_loss(inputs, labels, predictions)
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            return {"own": loss, **self.compute_metrics(inputs, labels, predictions)}

    def undefined(_labels: Any, predictions: Any) -> Any:
        return predictions[..., 0] * np.nan

    place = strategy(replicas)
    with place.scope():
        layers = keras3.module.layers
        model = Own([layers.Input((FEATURES,)), layers.Dense(CLASSES)])
        model.compile("sgd", keras3.module.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=[undefined])
        compiled = CompiledModel(keras3, model)
        compiled.build((*(tf.constant(array) for array in examples(2)), ()))
        loop = Loop(place, compiled, model.optimizer, StepPlan(BATCH))
        loop.prepare((*(tf.constant(array) for array in examples(2)), ()))

    def batches(inputs: Any, labels: Any) -> Any:
        rows = tf.data.Dataset.from_tensor_slices((inputs, labels, ())).repeat().batch(BATCH // replicas)
        return make_iterator(place, lambda: rows)

    inputs, labels = examples(BATCH * 3)
    execution = loop.execute(batches(inputs, labels), 3)
    assert (execution.finite_steps, np.isnan(execution.metrics["undefined"])) == (3, True)
    assert np.isfinite(execution.metrics["own"])
    inputs[BATCH:] = np.inf
    assert loop.execute(batches(inputs, labels), 3).finite_steps == 1
