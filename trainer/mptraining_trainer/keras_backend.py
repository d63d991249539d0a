"""Common interface to Keras 3 and tf_keras for the training loop.

The two differ in how an optimizer applies gradients, in the divisor of a loss and in where dropout keeps its seed; this
module has all such differences. Import it before `keras` or `tf_keras`: `load` also selects what `tf.keras` is, through
TF_USE_LEGACY_KERAS.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Literal

import numpy as np
import tensorflow as tf

from mptraining_api.problems import InvalidSpec
from mptraining_trainer import keras_internals

Generation = Literal["Keras3", "Legacy"]

CLASS_WEIGHT = "spec.training.classWeight"


# Largest number of elements in a moving statistic; BatchNormalization has one per channel.
_LARGEST_STATISTIC = 1 << 20


@dataclass(frozen=True)
class Keras:
    """One generation of Keras: its module, and methods for the differences from the other generation."""

    module: ModuleType
    generation: Generation

    @property
    def legacy(self) -> bool:
        return self.generation == "Legacy"

    def function(self, call: Callable[..., Any], **options: Any) -> Any:
        """Return `tf.function` of a call of the program's functions, with its options.

        Only tf_keras converts them by AutoGraph, as in its own `fit`; that takes 2 s of processor time for a step.
        """
        return tf.function(call, autograph=self.legacy, **options)

    @property
    def version(self) -> str:
        return f"{'tf_keras' if self.legacy else 'keras'} {self.module.__version__}"

    def set_policy(self, policy: str) -> None:
        """Set the global precision policy; only models built afterwards follow it."""
        self.module.mixed_precision.set_global_policy(policy)

    @property
    def policy(self) -> str:
        """The name of the global precision policy."""
        return str(self.module.mixed_precision.global_policy().name)

    @property
    def graph_model(self) -> Any:
        """The class that tf_keras makes the base of all models after `disable_eager_execution`; None of Keras 3."""
        return keras_internals.graph_model() if self.legacy else None

    def clear_session(self) -> None:
        """Clear Keras' global state, so that the next models get the same names, and free models without a reference.

        The policy must be set again.
        """
        self.module.backend.clear_session()
        # A model is in reference cycles. tf_keras leaves it there, and a GPU may not have the memory for two.
        gc.collect()

    def set_seed(self, seed: int) -> None:
        """Seed Python, NumPy and TensorFlow, from which every unseeded initializer and dropout draws."""
        self.module.utils.set_random_seed(seed)
        if self.legacy:
            # Without it dropout draws from kernels with internal state, which no checkpoint can save.
            self.module.backend.experimental.enable_tf_random_generator()
        else:
            # The first use creates the generator again, from this seed and under this job's strategy.
            keras_internals.forget_global_generator()

    def inner_optimizer(self, optimizer: Any) -> Any:
        """Return the optimizer without the LossScaleOptimizer that `compile` may have wrapped around it."""
        scaling = isinstance(optimizer, self.module.mixed_precision.LossScaleOptimizer)
        return optimizer.inner_optimizer if scaling else optimizer

    def applied_steps(self, optimizer: Any) -> int | None:
        """Return how many steps Keras 3's LossScaleOptimizer has not skipped; None for other optimizers.

        tf_keras counts a skipped step as any other.
        """
        inner = self.inner_optimizer(optimizer)
        if self.legacy or inner is optimizer:
            return None
        return int(np.asarray(keras_internals.accumulated_iterations(inner)))

    def scale_loss(self, model: Any, loss: Any) -> Any:
        """Return the loss multiplied as `fit` does for the model's optimizer, which divides the gradients again."""
        return loss if self.legacy else self.inner_optimizer(model.optimizer).scale_loss(loss)

    def overwritten(self, variables: Sequence[Any]) -> list[bool]:
        """Return for each variable whether its gradient is its next value, as of FP8's scales and largest values."""
        return [getattr(variable, "overwrite_with_gradient", False) for variable in variables]

    def learning_rate(self, optimizer: Any) -> float | None:
        """Return the rate of the optimizer's next update (tf_keras: of the last, by a schedule); None if unknown."""
        inner = self.inner_optimizer(optimizer)
        # A user's own optimizer may have no rate, or one for each group of variables.
        with contextlib.suppress(Exception):
            rate = inner.learning_rate
            # Of a schedule it is a tensor, else Keras 3 wraps the variable.
            return float(np.asarray(rate if self.legacy else getattr(rate, "value", rate)))
        return None

    def apply_gradients(self, optimizer: Any, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        """Apply one update in replica context; the gradients are already summed over the replicas.

        `variables` are the Keras variables that were passed to `build_optimizer`.
        """
        optimizer.apply_gradients(zip(gradients, variables, strict=True))

    def build_optimizer(self, optimizer: Any, variables: Sequence[Any]) -> None:
        """Create the slots now, so that a checkpoint can be restored before the first step."""
        self.build_slots(optimizer, variables)
        self.disable_sums(optimizer)

    def parts(self, optimizer: Any) -> list[Any]:
        """Return the optimizers that update variables: a MultiOptimizer's, all known when it is built, or itself."""
        several = isinstance(optimizer, getattr(self.module.optimizers, "MultiOptimizer", ()))
        return list(optimizer.optimizers) if several else [optimizer]

    def disable_sums(self, optimizer: Any) -> None:
        """Make an optimizer take its gradients as summed over the replicas."""
        for part in self.parts(optimizer):
            keras_internals.take_summed_gradients(part, legacy=self.legacy)

    def build_slots(self, optimizer: Any, variables: Sequence[Any]) -> None:
        """Create the optimizer's variables; no counter among them depends on the number of traces."""
        optimizer.build(list(variables))
        if self.legacy:
            keras_internals.count_nadam_by_variable(optimizer)

    def pop_ema_overwrite_frequency(self, optimizer: Any) -> int | None:
        """Remove and return a Keras 3 optimizer's `ema_overwrite_frequency`; None if it has none.

        Keras 3 overwrites inside a `tf.cond` on the replicas, which tf.distribute does not support; the loop
        overwrites instead.
        """
        if self.legacy or not getattr(optimizer, "use_ema", False):
            return None
        frequency, optimizer.ema_overwrite_frequency = optimizer.ema_overwrite_frequency, None
        return int(frequency) if frequency else None

    def variables(self, owner: Any) -> list[Any]:
        """Return all TensorFlow variables of a model, optimizer or metric, with seeds, in a fixed order."""
        return self.variables_of(owner.variables)

    def variables_of(self, variables: Sequence[Any]) -> list[Any]:
        """Return the TensorFlow variables of Keras variables: Keras 3 wraps each, tf_keras does not."""
        return list(variables) if self.legacy else [variable.value for variable in variables]

    def forward_pass_variables(self, model: Any) -> list[Any]:
        """Return the TensorFlow variables that a forward pass changes: moving statistics, seeds; no frozen weights."""
        by_id = {
            id(variable): variable
            for layer in self.layers(model)
            for variable in (
                *keras_internals.own_non_trainable_variables(layer, legacy=self.legacy),
                *(() if self.legacy else (generator.state for generator in keras_internals.seed_generators(layer))),
            )
        }
        return self.variables_of(list(by_id.values()))

    def forward_pass_state(self, model: Any) -> list[Any]:
        """Return all TensorFlow variables that a forward pass changes, those that Keras does not track included."""
        return [*self.forward_pass_variables(model), *self.untracked_states(model)]

    def class_weights(self, weights: Mapping[str, float]) -> Callable[..., Any]:
        """Return Keras' function from (inputs, labels) to (inputs, labels, weights), by the weights of classes.

        Raises InvalidSpec if a name is no class number.
        """
        try:
            numbered = {int(number): float(weight) for number, weight in weights.items()}
            mapped = keras_internals.class_weight_map(numbered, legacy=self.legacy)
        except ValueError as error:
            raise InvalidSpec(
                CLASS_WEIGHT, f"{dict(weights)}: {error}", expected='class numbers, such as {"0": 1.0}'
            ) from None

        def weighed(inputs: Any, labels: Any) -> Any:
            # Keras rounds labels to class numbers; `tf.round` does not take booleans.
            numbers = tf.cast(labels, tf.int32) if tf.is_tensor(labels) and labels.dtype == tf.bool else labels
            _check_labels(numbers, 1 + max(map(int, weights)))
            # By the scope `report.errors` knows the errors of labels without a weight.
            with tf.name_scope(CLASS_WEIGHT):
                return mapped(inputs, numbers)

        return weighed

    def finalize(self, optimizer: Any, variables: Sequence[Any]) -> None:
        """Let the optimizer set the final weights as `fit` does at its end: with `use_ema`, their moving average."""
        optimizer.finalize_variable_values(list(variables))

    def sets_final_weights(self, optimizer: Any) -> bool:
        """Return whether `finalize` changes the weights: by `use_ema`, or by a method of the user's."""
        plain = self.module.optimizers.Optimizer.finalize_variable_values
        parts = self.parts(optimizer)
        return any(part.use_ema or type(part).finalize_variable_values is not plain for part in parts)

    def untracked_states(self, model: Any) -> list[Any]:
        """Return the TensorFlow variables that a forward pass may change and that are not among the model's variables.

        These are the states of stateful RNNs, `tf.Variable`s in Keras 3's layers, and the states of generators: of
        `tf.random.Generator`s, tf_keras' RandomGenerators, and Keras 3's global one, which layers without one use.
        """
        wrapper = keras_internals.tf_keras_generator() if self.legacy else self.module.Variable
        states = [] if self.legacy else [keras_internals.global_generator().state.value]
        for layer in self.layers(model):
            kept = [value for name, value in vars(layer).items() if name not in keras_internals.FIT_COUNTERS]
            for value in _inside(kept, (tf.Variable, tf.random.Generator, wrapper)):
                if isinstance(value, wrapper):
                    value = keras_internals.generator_in(value) if self.legacy else value.value  # noqa: PLW2901
                states.append(value.state if isinstance(value, tf.random.Generator) else value)
        known = {id(variable) for variable in [None, *self.variables(model)]}
        return [state for key, state in {id(state): state for state in states}.items() if key not in known]

    def moving_statistics(self, model: Any) -> list[Any]:
        """Return the TensorFlow variables that layers update in training, such as BatchNormalization's means.

        They are floating-point, not trainable, and of layers that are not frozen; each replica updates its own copy
        from its own rows. Variables of more than 2**20 elements are taken for constant tables: averaging one in each
        step would cost more than the step.
        """
        by_id = {}
        for layer in self.layers(model):
            of_layer = keras_internals.own_non_trainable_variables(layer, legacy=self.legacy)
            for variable in self.variables_of(of_layer) if layer.trainable else ():
                if variable.dtype.is_floating and variable.shape.num_elements() <= _LARGEST_STATISTIC:
                    by_id[id(variable)] = variable
        return list(by_id.values())

    def layers(self, model: Any) -> list[Any]:
        """Return the model and every layer inside it, nested ones included."""
        return keras_internals.layers(model)

    def output_layer(self, model: Any) -> Any:
        """Return the layer of the model's (first) output, also inside nested models."""
        for name in getattr(model, "output_names", None) or ():
            try:
                return self._innermost(model.get_layer(name))
            except ValueError:
                break
        return self._innermost(model.layers[-1]) if model.layers else model

    def _innermost(self, layer: Any) -> Any:
        return self.output_layer(layer) if isinstance(layer, self.module.Model) else layer

    def output_shape(self, model: Any) -> tuple[int | None, ...] | None:
        """Return the shape of the only output, batch dimension first; None if only a call of the model shows it."""
        try:
            shape = model.output_shape
        except (AttributeError, RuntimeError, ValueError, NotImplementedError):
            return None
        if isinstance(shape, list) and len(shape) == 1:
            (shape,) = shape
        return (
            shape if isinstance(shape, tuple) and all(size is None or isinstance(size, int) for size in shape) else None
        )

    def fixed_batch_size(self, model: Any) -> int | None:
        """Return the batch size that the model's Input fixes, as a stateful RNN needs; None for any size."""
        sizes = (tensor.shape[0] for tensor in getattr(model, "inputs", None) or ())
        return next((size for size in sizes if size is not None), None)

    def own_steps(self, model: Any) -> tuple[str, ...]:
        """Return those of `train_step` and `test_step` that the model's class overrides."""
        names = []
        for name in ("train_step", "test_step"):
            defined_by = next(cls for cls in type(model).__mro__ if name in vars(cls))
            if not issubclass(self.module.Model, defined_by):
                names.append(name)
        return tuple(names)

    def fold_replica_into_seeds(self) -> None:
        """Give each replica its own dropout masks.

        A Keras 3 SeedGenerator draws the same seed on every replica, and thus the same masks. All generators of the
        process are changed, wherever a layer keeps them. tf_keras creates one random op per replica, each with its own
        state.
        """
        if not self.legacy and not hasattr(self.module.random.SeedGenerator.next, "of_keras"):
            self.module.random.SeedGenerator.next = _with_replica(self.module.random.SeedGenerator.next)


def _inside(value: Any, kinds: tuple[Any, ...]) -> Iterator[Any]:
    """Yield the objects of these kinds in nested lists, tuples and dicts."""
    if isinstance(value, kinds):
        yield value
    elif isinstance(value, Mapping):
        yield from _inside(list(value.values()), kinds)
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _inside(part, kinds)


# The factor is odd and far from a SeedGenerator's increment (1 per draw), so that no two replicas draw the same seed:
# 2**32 divided by the golden ratio, as in Knuth, The Art of Computer Programming, volume 3, section 6.4.
_GOLDEN = 2654435769


def _with_replica(draw: Callable[..., Any]) -> Callable[..., Any]:
    def next_seed(generator: Any, ordered: bool = True) -> Any:
        seed = draw(generator, ordered)
        context = tf.distribute.get_replica_context()
        if context is None or context.num_replicas_in_sync == 1:
            return seed
        replica = tf.cast(context.replica_id_in_sync_group, tf.uint32)
        salt = tf.cast(replica * tf.constant(_GOLDEN, tf.uint32), seed.dtype)
        return seed + tf.stack([salt, tf.zeros_like(salt)])

    next_seed.of_keras = draw  # type: ignore[attr-defined]
    return next_seed


def load(generation: Generation) -> Keras:
    """Import and return Keras of this generation. Raise InvalidSpec if tf_keras is not installed."""
    if generation == "Keras3":
        return Keras(importlib.import_module("keras"), generation)
    os.environ["TF_USE_LEGACY_KERAS"] = "1"
    try:
        return Keras(importlib.import_module("tf_keras"), generation)
    except ImportError:
        raise InvalidSpec(
            "spec.keras",
            "'Legacy' needs the package tf-keras, which is not installed",
            next_step="pip install tf-keras",
        ) from None


def _check_labels(labels: Any, classes: int) -> None:
    """Raise InvalidSpec for a batch of labels that Keras cannot take for numbers of so many classes."""
    if not tf.is_tensor(labels):
        raise InvalidSpec(CLASS_WEIGHT, "given, and the records have several labels", expected="one label")
    if labels.dtype == tf.string:
        raise InvalidSpec(
            CLASS_WEIGHT,
            "given, and the label is text",
            expected="class numbers from 0",
            next_step="Map the label to class numbers in data.preprocess.",
        )
    last = labels.shape[-1] if labels.shape.rank is not None and labels.shape.rank > 1 else None
    if last is not None and last > max(1, classes):
        raise InvalidSpec(
            CLASS_WEIGHT,
            f"weights of the classes 0 to {classes - 1}, and a label has shape {labels.shape[1:].as_list()}, "
            f"whose last axis Keras takes for {last} one-hot classes",
            expected="a weight for each class",
            next_step="Labels with one class number for each pixel or step need a last axis of size 1.",
        )
