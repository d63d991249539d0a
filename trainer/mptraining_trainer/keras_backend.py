"""Keras 3 or tf_keras behind one face, so that the loop is written once.

The two differ in how an optimizer applies gradients, in what a loss divides by and in where dropout keeps its seed;
everything that depends on it stands here. Import this module before `keras` or `tf_keras`: the choice of `load` also
decides what `tf.keras` is, through TF_USE_LEGACY_KERAS.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Literal

import tensorflow as tf

from mptraining_api.problems import InvalidSpec

Generation = Literal["Keras3", "Legacy"]


# Numbers in a moving statistic; BatchNormalization has one a channel.
_LARGEST_STATISTIC = 1 << 20


@dataclass(frozen=True)
class Keras:
    """One generation of Keras: its module and what differs from the other one."""

    module: ModuleType
    generation: Generation

    @property
    def legacy(self) -> bool:
        return self.generation == "Legacy"

    @property
    def version(self) -> str:
        return f"{'tf_keras' if self.legacy else 'keras'} {self.module.__version__}"

    def set_policy(self, policy: str) -> None:
        """Sets the global precision policy; only models built afterwards follow it."""
        self.module.mixed_precision.set_global_policy(policy)

    def forget(self) -> None:
        """Drops what Keras keeps of earlier models; the next ones get the same names. The policy is to be set again."""
        self.module.backend.clear_session()

    def set_seed(self, seed: int) -> None:
        """Seeds Python, NumPy and TensorFlow, which every unseeded initializer and dropout draws from."""
        self.module.utils.set_random_seed(seed)
        if self.legacy:
            # Else dropout draws from kernels that keep their state to themselves, where no checkpoint can reach it.
            self.module.backend.experimental.enable_tf_random_generator()
        else:
            # Made anew, from this seed and under this job's strategy, by whoever needs it first.
            from keras.src.backend.common.global_state import set_global_attribute
            from keras.src.random.seed_generator import GLOBAL_SEED_GENERATOR

            set_global_attribute(GLOBAL_SEED_GENERATOR, None)

    def inner_optimizer(self, optimizer: Any) -> Any:
        """The optimizer without the LossScaleOptimizer that `compile` may have put around it."""
        return getattr(optimizer, "inner_optimizer", optimizer)

    def apply_gradients(self, optimizer: Any, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        """One update in replica context with gradients that are summed over the replicas already.

        `variables` are Keras' own, those that `build_optimizer` was given, and made ready by it.
        """
        if self.legacy:
            optimizer.apply_gradients(zip(gradients, variables, strict=True), skip_gradients_aggregation=True)
        else:
            optimizer.apply(list(gradients))

    def build_optimizer(self, optimizer: Any, variables: Sequence[Any]) -> None:
        """Makes the slots now, so that a checkpoint can be restored before the first step."""
        self.build_slots(optimizer, variables)
        if not self.legacy:
            # Keras 3 clips each replica's share and sums afterwards, without a switch: so it is given the sums, and
            # its own summing taken away. tf_keras has an argument for that.
            optimizer._all_reduce_sum_gradients = list

    def build_slots(self, optimizer: Any, variables: Sequence[Any]) -> None:
        """Makes the optimizer's own variables, which count no trace of a step."""
        optimizer.build(list(variables))
        if self.legacy and hasattr(optimizer, "_u_product_counter"):
            _count_by_variable(optimizer)

    def overwriting_average(self, optimizer: Any) -> int | None:
        """Takes `ema_overwrite_frequency` from a Keras 3 optimizer; None where it has none.

        Keras 3 overwrites inside a condition of the replicas, which tf.distribute cannot; the loop does it instead.
        """
        if self.legacy or not getattr(optimizer, "use_ema", False):
            return None
        frequency, optimizer.ema_overwrite_frequency = optimizer.ema_overwrite_frequency, None
        return int(frequency) if frequency else None

    def variables(self, owner: Any) -> list[Any]:
        """All TensorFlow variables of a model, an optimizer or a metric, seeds included, in a fixed order."""
        return self.variables_of(owner.variables)

    def variables_of(self, variables: Sequence[Any]) -> list[Any]:
        """The TensorFlow variables behind Keras' own: Keras 3 wraps each, tf_keras does not."""
        return list(variables) if self.legacy else [variable.value for variable in variables]

    def updated_by_calls(self, model: Any) -> list[Any]:
        """The TensorFlow variables that a forward pass itself changes: moving statistics, seeds; no frozen weights."""
        found = {
            id(variable): variable
            for layer in self.layers(model)
            for variable in (
                layer._non_trainable_weights
                if self.legacy
                else [*layer._non_trainable_variables, *(each.state for each in layer._seed_generators)]
            )
        }
        return self.variables_of(list(found.values()))

    def class_weights(self, weights: Mapping[str, float]) -> Callable[..., Any]:
        """Keras' own function from (inputs, labels) to (inputs, labels, weights), by the weights of class numbers."""
        if self.legacy:
            from tf_keras.src.engine.data_adapter import _make_class_weight_map_fn as make
        else:
            from keras.src.trainers.data_adapters.tf_dataset_adapter import make_class_weight_map_fn as make
        try:
            mapped: Callable[..., Any] = make({int(number): float(weight) for number, weight in weights.items()})
        except ValueError as error:
            raise InvalidSpec(
                "spec.training.classWeight", f"{dict(weights)}: {error}", expected='class numbers, such as {"0": 1.0}'
            ) from None

        def weighed(inputs: Any, labels: Any) -> Any:
            # Keras rounds labels to class numbers; TensorFlow rounds no booleans.
            numbers = tf.cast(labels, tf.int32) if tf.is_tensor(labels) and labels.dtype == tf.bool else labels
            return mapped(inputs, numbers)

        return weighed

    def finalize(self, optimizer: Any, variables: Sequence[Any]) -> None:
        """What `fit` does with the weights at its end: an optimizer with `use_ema` overwrites them by the average."""
        if getattr(optimizer, "use_ema", False):
            optimizer.finalize_variable_values(list(variables))

    def random_states(self, model: Any) -> list[Any]:
        """TensorFlow variables of random numbers that are not among the model's own.

        Of tf_keras those of each layer's generator; of Keras 3 the one that layers without a generator draw from.
        """
        if not self.legacy:
            return [self._global_generator().state.value]
        from tf_keras.src.backend import RandomGenerator

        generators = {
            id(value): value
            for layer in self.layers(model)
            for value in vars(layer).values()
            if isinstance(value, RandomGenerator)
        }
        found = []
        for generator in generators.values():
            generator._maybe_init()
            if generator._generator is not None:
                found.append(generator._generator.state)
        return found

    def moving_statistics(self, model: Any) -> list[Any]:
        """TensorFlow variables that layers move themselves while they train, such as BatchNormalization's means.

        Floating, not trained, and of layers that are not frozen: each replica moves its own, by what it saw. Those of
        more than a million numbers are taken for tables, which nobody moves: to average one in each step would cost
        more than the step.
        """
        found = {}
        for layer in self.layers(model):
            own = getattr(layer, "_non_trainable_weights" if self.legacy else "_non_trainable_variables", ())
            for variable in self.variables_of(own) if layer.trainable else ():
                if variable.dtype.is_floating and variable.shape.num_elements() <= _LARGEST_STATISTIC:
                    found[id(variable)] = variable
        return list(found.values())

    def _global_generator(self) -> Any:
        from keras.src.random.seed_generator import global_seed_generator

        return global_seed_generator()

    def layers(self, model: Any) -> list[Any]:
        """The model and every layer inside it, nested ones included."""
        return list(model._flatten_layers())

    def output_layer(self, model: Any) -> Any:
        """The layer that makes the model's (first) output, found inside nested models too."""
        for name in getattr(model, "output_names", None) or ():
            try:
                return self._innermost(model.get_layer(name))
            except ValueError:
                break
        return self._innermost(model.layers[-1]) if model.layers else model

    def _innermost(self, layer: Any) -> Any:
        return self.output_layer(layer) if isinstance(layer, self.module.Model) else layer

    def output_shape(self, model: Any) -> tuple[int | None, ...] | None:
        """Shape of the one output, batch dimension first; None when only a call of the model tells."""
        try:
            shape = model.output_shape
        except (AttributeError, RuntimeError, ValueError, NotImplementedError):
            return None
        if isinstance(shape, list) and len(shape) == 1:
            (shape,) = shape
        return (
            shape if isinstance(shape, tuple) and all(size is None or isinstance(size, int) for size in shape) else None
        )

    def own_steps(self, model: Any) -> tuple[str, ...]:
        """Which of `train_step` and `test_step` the model's class overrides."""
        found = []
        for name in ("train_step", "test_step"):
            defined_by = next(cls for cls in type(model).__mro__ if name in vars(cls))
            if not issubclass(self.module.Model, defined_by):
                found.append(name)
        return tuple(found)

    def fold_replica_into_seeds(self, model: Any) -> int:
        """Gives each replica its own dropout masks; returns how many seed generators there are.

        A Keras 3 SeedGenerator draws the same seed on every replica, so its masks are the same there. tf_keras makes
        one random op a replica, each with its own state.
        """
        if self.legacy:
            return 0
        generators = {
            id(value): value
            for layer in self.layers(model)
            for value in vars(layer).values()
            if isinstance(value, self.module.random.SeedGenerator)
        }
        shared = self._global_generator()
        generators[id(shared)] = shared
        for generator in generators.values():
            generator.next = _with_replica(generator.next)
        return len(generators)


# Odd and far from the increments of a SeedGenerator (1 a draw), so that no two replicas meet the same seed:
# 2**32 divided by the golden ratio, as in Knuth, The Art of Computer Programming, volume 3, section 6.4.
_GOLDEN = 2654435769


def _with_replica(draw: Callable[..., Any]) -> Callable[..., Any]:
    def next_seed(ordered: bool = True) -> Any:
        seed = draw(ordered)
        context = tf.distribute.get_replica_context()
        if context is None or context.num_replicas_in_sync == 1:
            return seed
        replica = tf.cast(context.replica_id_in_sync_group, tf.uint32)
        salt = tf.cast(replica * tf.constant(_GOLDEN, tf.uint32), seed.dtype)
        return seed + tf.stack([salt, tf.zeros_like(salt)])

    return next_seed


def load(generation: Generation) -> Keras:
    """The Keras of that generation. Raises InvalidSpec when tf_keras is asked for and not installed."""
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


def _count_by_variable(nadam: Any) -> None:
    """Gives each variable of tf_keras' Nadam the count that it has in `fit`, which traces its step twice.

    Its `update_step` compares a Python number, which every trace and every replica counts on, with the iterations:
    without this, weights depend on how often a step was traced.
    """
    update = nadam.update_step

    def update_step(gradient: Any, variable: Any) -> None:
        nadam._u_product_counter = 1 + len(nadam._index_dict) + nadam._index_dict[nadam._var_key(variable)]
        update(gradient, variable)

    nadam.update_step = update_step
