"""A Python source of tf.data: every element once, and read ahead and mapped in parallel under op determinism too."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import config

from mptraining_records.tfrecord.example import encode
from mptraining_trainer.data.decode import decode_elements
from mptraining_trainer.data.generator import from_generator
from mptraining_trainer.data.pipeline import options
from mptraining_trainer.data.schema import Column, Columns
from mptraining_trainer.step.train_loop import graph_clock

COUNT = 20
SIGNATURE = (tf.TensorSpec([2], tf.int64), tf.TensorSpec([None], tf.string))
# Reached only if nothing is read ahead.
PATIENCE = 60.0


@pytest.fixture(params=[False, True], ids=["as usual", "deterministic"])
def determinism(request: pytest.FixtureRequest) -> Iterator[bool]:
    if request.param:
        tf.config.experimental.enable_op_determinism()
    yield request.param
    config.disable_op_determinism()


class Source:
    """Yields [n, n] and n texts; `asked` counts the elements that were requested."""

    def __init__(self) -> None:
        self.asked = 0
        self.closed = 0
        self._changed = threading.Condition()

    def generate(self) -> Iterator[tuple[Any, ...]]:
        try:
            for number in range(COUNT):
                with self._changed:
                    self.asked += 1
                    self._changed.notify_all()
                yield np.full([2], number), np.array([b"t"] * number, object)
        finally:
            self.closed += 1

    def waits_for(self, elements: int) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self.asked >= elements, PATIENCE)


def numbers(dataset: Any) -> list[int]:
    return [int(element[0][0]) for element in dataset]


@pytest.mark.usefixtures("determinism")
def test_elements_come_as_from_tensorflow_s_own_generator() -> None:
    own = tf.data.Dataset.from_generator(Source().generate, output_signature=SIGNATURE)
    ours = from_generator(Source().generate, SIGNATURE)

    assert ours.element_spec == own.element_spec
    for one, other in zip(ours.as_numpy_iterator(), own.as_numpy_iterator(), strict=True):
        assert [each.tolist() for each in one] == [each.tolist() for each in other]
    # Each iterator has a generator of its own, also while another one is active.
    assert numbers(tf.data.Dataset.zip(ours, ours).map(lambda a, b: a)) == list(range(COUNT))


@pytest.mark.usefixtures("determinism")
def test_elements_are_read_while_the_last_one_is_used() -> None:
    source = Source()
    dataset = from_generator(source.generate, SIGNATURE).prefetch(4).map(lambda n, _: n, num_parallel_calls=2)
    iterator = iter(dataset.prefetch(2).with_options(options()))
    assert next(iterator)[0] == 0
    # The consumer requests nothing more, as while it trains; without overlap the source would wait for it for ever.
    assert source.waits_for(8)
    assert [int(each[0]) for each in iterator] == list(range(1, COUNT))


@pytest.mark.usefixtures("determinism")
def test_elements_are_mapped_side_by_side() -> None:
    both = threading.Barrier(2)

    def meet(number: Any) -> Any:
        # It breaks, and so raises, unless two calls are active at once.
        both.wait(PATIENCE)
        return number

    dataset = from_generator(Source().generate, SIGNATURE).map(
        lambda n, _: tf.numpy_function(meet, [n[0]], tf.int64, stateful=False), num_parallel_calls=2
    )
    assert [int(option) for option in dataset.with_options(options())] == list(range(COUNT))


@pytest.mark.usefixtures("determinism")
def test_batches_are_decoded_and_repaired_side_by_side_in_order() -> None:
    both = threading.Barrier(2)
    sound = encode({"x": 1.0, "label": 2})

    def repair(records: Any, numbers: Any, mask: Any) -> tuple[Any, Any]:
        # It breaks, and so raises, unless two calls are active at once.
        both.wait(PATIENCE)
        return np.array([sound] * len(records), object), mask * 0

    columns = Columns(
        (Column("x", "float32", (), None, None), Column("label", "int64", (), None, None)), ("label",), None
    )
    batches = from_generator(Source().generate, SIGNATURE).map(
        lambda n, _: (tf.constant([sound, b""]), n, tf.ones([2]), n), num_parallel_calls=2
    )
    found = list(decode_elements(batches, columns, repair, parallel=2).with_options(options()))
    assert [int(number[0]) for *_, number in found] == list(range(COUNT))
    assert all((x.numpy().tolist(), mask.numpy().tolist()) == ([1, 1], [0, 0]) for x, _, _, mask, _ in found)


def test_what_determinism_protects_is_still_protected() -> None:
    """A random operation in a user's map function runs for one element after the other."""

    def drawn(parallel: int) -> list[float]:
        tf.random.set_seed(3)
        dataset = from_generator(Source().generate, SIGNATURE)
        dataset = dataset.map(lambda n, _: tf.random.uniform([], seed=4), num_parallel_calls=parallel)
        return [float(option) for option in dataset.with_options(options())]

    tf.config.experimental.enable_op_determinism()
    try:
        assert drawn(parallel=4) == drawn(parallel=1)
    finally:
        config.disable_op_determinism()


def test_a_released_iterator_closes_its_generator() -> None:
    source = Source()
    iterator = iter(from_generator(source.generate, SIGNATURE).prefetch(2))
    next(iterator)
    assert source.closed == 0
    del iterator
    gc.collect()
    assert source.closed == 1


def test_an_error_contains_pythons_message() -> None:
    def broken() -> Iterator[tuple[Any, ...]]:
        yield np.zeros([2], np.int64), np.array([b"a"], object)
        raise RuntimeError("the disk is gone")

    iterator = iter(from_generator(broken, SIGNATURE))
    next(iterator)
    with pytest.raises(tf.errors.OpError, match="the disk is gone"):
        next(iterator)


@pytest.mark.usefixtures("determinism")
def test_time_can_be_read_in_a_graph() -> None:
    clock = tf.function(graph_clock())
    moments = [float(clock()) for _ in range(3)]
    assert moments == sorted(set(moments))
