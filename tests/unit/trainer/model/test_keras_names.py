"""The table of Keras' names, by which `mptj check` judges without TensorFlow, against the installed packages."""

from __future__ import annotations

import pytest

from hack.keras_names import TABLE, installed_names, text
from mptraining_api.problems import InvalidSpec
from mptraining_api.spec import KerasObject
from mptraining_api.validation.keras_names import Kind, is_known, table
from mptraining_trainer import keras_backend
from mptraining_trainer.model.compile import keras_object


def test_the_table_has_the_names_of_the_installed_packages() -> None:
    assert TABLE.read_text() == text(installed_names()), "stale. Run: python -m hack.keras_names"


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("optimizers", "Adam"), ("optimizers", "adam"), ("optimizers", "Adamm"), ("losses", "mean_squared_error"),
        ("losses", "MeanSquaredErrors"), ("losses", "sparse_categorical_crossentropy"), ("metrics", "accuracy"),
        ("metrics", "Acc"), ("optimizers", "LossScaleOptimizer"), ("losses", "Loss"),
    ],
)  # fmt: skip
def test_the_trainer_and_the_check_know_the_same_names(kind: Kind, name: str) -> None:
    assert kind != "applications"
    assert kind != "schedules"
    keras = keras_backend.load("Keras3")
    try:
        keras_object(keras, kind, KerasObject(class_name=name), "spec.training")
        known = True
    except InvalidSpec as problem:
        known = "there is no" not in str(problem)
    assert is_known(kind, name) is known


def test_both_generations_are_in_the_table() -> None:
    assert "RegNetX002" in table()["Legacy"].names["applications"]
    assert not is_known("applications", "RegNetX002")
    assert is_known("applications", "RegNetX002", "Legacy")
