"""The facts of real models, and preflight's findings from them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mptraining_api.problems import InvalidData, InvalidProgram
from mptraining_api.resolved_job import ResolvedJob
from mptraining_trainer.keras_backend import Keras
from mptraining_trainer.model.compiled import CompiledModel
from mptraining_trainer.model.first_look import gather_facts
from mptraining_trainer.model.preflight import Facts, InputFacts, LabelFacts, OutputFacts, warnings
from tests.jobs import resolved_job

SPARSE = "SparseCategoricalCrossentropy"


@pytest.fixture
def job() -> ResolvedJob:
    return resolved_job(training={"batchSize": {"global": 16}})


BATCH = np.linspace(-1, 1, 16 * 5, dtype="float32").reshape(16, 5), np.arange(16) % 3


def model(keras: Keras, activation: str | None, dtype: str = "float32") -> Any:
    layers = keras.module.layers
    body = keras.module.Sequential([keras.module.Input((5,)), layers.Dense(8, name="wide")], name="body")
    head = layers.Dense(3, activation=activation, dtype=dtype, name="head")
    return keras.module.Sequential([keras.module.Input((5,)), body, head])


def facts_of(keras: Keras, built: Any, job: ResolvedJob, loss: Any = None, inputs: Any = BATCH[0]) -> Facts:
    loss = loss or keras.module.losses.SparseCategoricalCrossentropy(from_logits=True)
    built.compile(loss=loss)
    facts = gather_facts(CompiledModel(keras, built), (inputs, BATCH[1]), keras, job)
    assert facts is not None
    return facts


@pytest.mark.parametrize(("activation", "probabilities"), [("softmax", True), (None, False)])
def test_one_forward_pass_distinguishes_probabilities_from_logits(
    keras: Keras, job: ResolvedJob, activation: str | None, probabilities: bool
) -> None:
    facts = facts_of(keras, model(keras, activation), job)
    expected = OutputFacts("head", "float32", (3,), activation or "linear", probabilities=probabilities, finite=True)
    assert facts.output == expected
    assert (facts.loss, facts.from_logits) == (SPARSE, True)
    assert facts.label == LabelFacts("int64", (), whole=True, minimum=0.0, maximum=2.0)
    assert facts.widths == (("wide", 8),)
    assert facts.per_replica_batch == 16
    assert facts.inputs == (InputFacts("inputs", "float32", finite=True),)


def test_a_loss_by_function_and_a_half_precision_output_are_seen(keras: Keras, job: ResolvedJob) -> None:
    loss = keras.module.losses.get("sparse_categorical_crossentropy")
    facts = facts_of(keras, model(keras, "softmax"), job, loss)
    assert (facts.loss, facts.from_logits) == (SPARSE, False)
    assert warnings(facts) == []
    half = facts_of(keras, model(keras, "softmax", "mixed_bfloat16"), job, loss)
    assert [finding.topic for finding in warnings(half)] == ["OutputPrecision"]


def test_what_cannot_be_trained_is_the_fault_of_data_or_program(keras: Keras, job: ResolvedJob) -> None:
    inputs = BATCH[0].copy()
    inputs[-1, 0] = np.nan
    with pytest.raises(InvalidData, match="NaN or Inf in the first batch"):
        warnings(facts_of(keras, model(keras, None), job, inputs=inputs))
    overflowing = model(keras, None)
    overflowing.layers[-1].set_weights([np.full((8, 3), 1e38, "float32"), np.full(3, np.inf, "float32")])
    with pytest.raises(InvalidProgram, match="NaN or Inf"):
        warnings(facts_of(keras, overflowing, job))
    with pytest.raises(InvalidProgram, match="fails on the first batch") as raised:
        facts_of(keras, model(keras, None), job, inputs=np.zeros((16, 4), "float32"))
    assert "\n" not in str(raised.value)
