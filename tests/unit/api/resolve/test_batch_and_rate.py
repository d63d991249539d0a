"""Defaults of the batch size; the scaling of the learning rate, and the advice about it."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mptraining_api.problems import InvalidSpec
from mptraining_api.resolve.batch_size import scaling_factor, scaling_rule, scaling_suggestion, warmup_steps
from tests.unit.api.resolve.resolved_jobs import choice, resolved


@pytest.mark.parametrize(
    ("type", "accelerator", "size"),
    [("cpu", {}, 32), ("nvidia-l4", {}, 32), ("tpu-v6e-slice", {"topology": "2x2"}, 128)],
)
def test_the_default_batch_is_keras_own_or_fills_the_matrix_units(
    type: str, accelerator: dict[str, Any], size: int
) -> None:
    assert resolved(type, accelerator=accelerator).per_replica_batch_size == size


@given(count=st.sampled_from([1, 2, 4, 8]), nodes=st.integers(1, 16), total=st.integers(1, 4096))
def test_a_global_batch_is_shared_evenly_or_refused_with_the_nearest(count: int, nodes: int, total: int) -> None:
    replicas = count * nodes
    spec: dict[str, Any] = {"nodes": nodes, "training": {"batchSize": {"global": total}}}
    if total % replicas == 0:
        job = resolved("nvidia-l4", accelerator={"countPerNode": count}, **spec)
        assert job.global_batch_size == total
        assert job.per_replica_batch_size == total // replicas
        return
    with pytest.raises(InvalidSpec) as caught:
        resolved("nvidia-l4", accelerator={"countPerNode": count}, **spec)
    nearest = [int(word.strip(".")) for word in caught.value.next_step.split() if word.strip(".").isdecimal()]
    assert nearest
    assert all(size % replicas == 0 and abs(size - total) < replicas for size in nearest)


@pytest.mark.parametrize(
    ("rule", "accumulation", "factor"),
    [("Linear", 1, 4.0), ("SquareRoot", 1, 2.0), ("Linear", 2, 8.0), ("SquareRoot", 4, 4.0), ("None", 1, 1.0)],
)
def test_the_learning_rate_follows_the_examples_of_an_update(rule: str, accumulation: int, factor: float) -> None:
    scaling = {"rule": rule, "warmupSteps": 10} | ({"baseBatchSize": 64} if rule != "None" else {})
    training = {"batchSize": {"global": 256}, "gradientAccumulationSteps": accumulation, "learningRateScaling": scaling}
    job = resolved(training=training)
    assert math.isclose(job.learning_rate.factor, factor)
    assert job.learning_rate.warmup_steps == 10
    assert job.global_batch_size == 256, "accumulation is counted in the factor, not in the batch of a step"
    if accumulation > 1:
        assert "accumulated" in choice(job, "spec.training.learningRateScaling").because


def test_the_rule_follows_the_optimizer() -> None:
    rules = {"SGD": "Linear", "Adam": "SquareRoot", "AdamW": "SquareRoot", "RMSprop": "SquareRoot", "Mine": None}
    assert {optimizer: scaling_rule(optimizer) for optimizer in rules} == rules


@given(st.integers(1, 10**6), st.integers(1, 10**6), st.integers(1, 10**6))
def test_two_changes_are_one(first: int, second: int, third: int) -> None:
    for rule in ("Linear", "SquareRoot"):
        both = scaling_factor(rule, first, second) * scaling_factor(rule, second, third)
        assert math.isclose(both, scaling_factor(rule, first, third))
    assert math.isclose(scaling_factor("SquareRoot", first, second) ** 2, scaling_factor("Linear", first, second))


@pytest.mark.parametrize(
    ("per_epoch", "total", "expected"), [(None, 100, None), (10, None, 50), (10, 1000, 50), (10, 100, 10), (3, 4, 1)]
)
def test_warm_up_is_five_epochs_or_a_tenth(per_epoch: int | None, total: int | None, expected: int | None) -> None:
    assert warmup_steps(per_epoch, total) == expected
    assert "warmupSteps" not in scaling_suggestion("SGD", 256, 64), "a smaller rate needs no warm-up"
    assert "SquareRoot for Adam" in scaling_suggestion(None, 64, 256)
