"""Keras' serialization in a job, as objects of either generation."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from mptraining_api.problems import InvalidSpec
from mptraining_api.spec import KerasObject
from mptraining_trainer.keras_backend import Keras
from mptraining_trainer.model.compile import Kind, keras_object

KINDS: dict[str, Kind] = dict(zip(("optimizer", "loss", "metric"), get_args(Kind), strict=True))


def made(keras: Keras, field: str, **document: Any) -> Any:
    return keras_object(keras, KINDS[field], KerasObject.parse(document), f"spec.training.{field}")


@pytest.mark.parametrize("key", ["class_name", "className"])
def test_a_schedule_may_be_written_either_way(keras: Keras, key: str) -> None:
    schedule = {key: "CosineDecay", "config": {"initial_learning_rate": 0.5, "decay_steps": 10}}
    optimizer = made(keras, "optimizer", className="SGD", config={"learning_rate": schedule})
    assert float(optimizer.learning_rate) == pytest.approx(0.5)


@pytest.mark.parametrize("name", ["SparseCategoricalCrossentropy", "sparse_categorical_crossentropy"])
def test_a_functions_name_selects_its_class(keras: Keras, name: str) -> None:
    loss = made(keras, "loss", className=name, config={"from_logits": True})
    assert type(loss) is keras.module.losses.SparseCategoricalCrossentropy


@pytest.mark.parametrize(
    ("field", "document", "where", "says"),
    [
        ("optimizer", {"className": "Adamm"}, "optimizer", "Did you mean 'Adam'?"),
        ("optimizer", {"className": "Adamm"}, "optimizer", ": there is no optimizer 'Adamm' in "),
        ("loss", {"className": "Nothing"}, "loss", ": there is no loss 'Nothing' in "),
        ("optimizer", {"className": "Adam", "config": {"lr_": 1}}, "optimizer.config", "lr_"),
        ("optimizer", {"className": "Adam", "config": {"lr_": 1}}, "optimizer.config", "Adam(learning_rate"),
        (
            "optimizer",
            {"className": "Adam", "config": {"learning_rate": {"className": "Cosine", "config": {}}}},
            "optimizer",
            "Did you mean 'CosineDecay'?",
        ),
        ("loss", {"className": "CategoricalCrossEntropy"}, "loss", "Did you mean 'CategoricalCrossentropy'?"),
        ("loss", {"className": "SparseCategoricalCrossentropy", "config": {"logits": True}}, "loss.config", "logits"),
        ("metric", {"className": "AUCC"}, "metric", "Did you mean 'AUC'?"),
    ],
)
def test_what_keras_does_not_know_is_refused_by_field(
    keras: Keras, field: str, document: dict[str, Any], where: str, says: str
) -> None:
    with pytest.raises(InvalidSpec) as raised:
        made(keras, field, **document)
    assert raised.value.where.startswith(f"spec.training.{where}")
    assert says in str(raised.value)
    assert "\n" not in str(raised.value)
