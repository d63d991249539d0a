"""A tf.data source over a Python generator that keeps its read-ahead and parallel maps under op determinism.

`tf.data.Dataset.from_generator` calls Python through stateful operations. Under op determinism tf.data removes every
prefetch and parallel map from a pipeline with such an operation (core/grappler/optimizers/data/make_deterministic.cc),
because it might read variables that training writes. The generators of this package read nothing that training writes,
and one iterator requests one element at a time from its generator. So they are called by
`tf.numpy_function(stateful=False)`, and the rewrite does not apply. It still applies to a stateful map of the user's.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf


def from_generator(generate: Callable[[], Iterator[tuple[Any, ...]]], signature: Sequence[tf.TensorSpec]) -> Any:
    """Return a dataset of the tuples of arrays that `generate()` yields, one tensor for each spec of `signature`.

    Each iterator over the dataset has its own generator, which is closed when the iterator is released.
    """
    return _GeneratorSource(generate, tuple(signature)).dataset()


class _GeneratorSource:
    def __init__(self, generate: Callable[[], Iterator[tuple[Any, ...]]], signature: tuple[tf.TensorSpec, ...]) -> None:
        self._generate = generate
        self._signature = signature
        self._numbers = itertools.count()
        self._running: dict[int, Iterator[tuple[Any, ...]]] = {}

    def dataset(self) -> Any:
        number = tf.TensorSpec([], tf.int64)
        begin, element, end = (
            tf.function(call, autograph=False).get_concrete_function(number)
            for call in (self._begin, self._element, self._end)
        )
        variant = tf.raw_ops.GeneratorDataset(
            # The argument prevents constant folding of an operation without inputs.
            init_func_other_args=[tf.constant(0, tf.int64)],
            next_func_other_args=[],
            finalize_func_other_args=[],
            init_func=begin,
            next_func=element,
            finalize_func=end,
            output_types=[spec.dtype for spec in self._signature],
            output_shapes=[spec.shape for spec in self._signature],
        )
        dataset = tf.data.experimental.from_variant(variant, self._signature)
        # The dataset references the functions, because the Python callbacks must live as long as the graphs that call
        # them.
        dataset.functions = (begin, element, end)
        return dataset

    def _begin(self, unused: Any) -> Any:
        def begin(_: Any) -> Any:
            number = next(self._numbers)
            self._running[number] = self._generate()
            return np.int64(number)

        return tf.ensure_shape(tf.numpy_function(begin, [unused], tf.int64, stateful=False), [])

    def _element(self, number: Any) -> list[Any]:
        def element(number: Any) -> tuple[Any, ...]:
            # StopIteration ends the dataset.
            return next(self._running[int(number)])

        types = [spec.dtype for spec in self._signature]
        values = tf.numpy_function(element, [number], types, stateful=False)
        return [tf.ensure_shape(value, spec.shape) for value, spec in zip(values, self._signature, strict=True)]

    def _end(self, number: Any) -> Any:
        def end(number: Any) -> Any:
            generator = self._running.pop(int(number), None)
            close = getattr(generator, "close", None)
            if close is not None:
                close()
            return np.int64(0)

        return tf.ensure_shape(tf.numpy_function(end, [number], tf.int64, stateful=False), [])
