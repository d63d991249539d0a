"""The table of Keras' names, by which `mptj check` judges without TensorFlow, against the installed packages."""

from __future__ import annotations

import pytest

from mptraining_api.problems import InvalidSpec
from mptraining_api.spec import KerasObject
from mptraining_api.validation.keras_names import Generation, Kind, is_known, table
from mptraining_trainer import keras_backend
from mptraining_trainer.model import applications
from mptraining_trainer.model.compile import classes, keras_object


@pytest.mark.parametrize("generation", ["Keras3", "Legacy"])
def test_the_table_has_the_names_of_the_installed_packages(generation: Generation) -> None:
    keras = keras_backend.load(generation)
    schedules = keras.module.optimizers.schedules
    base = schedules.LearningRateSchedule
    names = {kind: sorted(classes(keras, kind)) for kind in ("optimizers", "losses", "metrics")}
    names["applications"] = applications.names(keras)
    names["schedules"] = sorted(
        name
        for name, value in vars(schedules).items()
        if isinstance(value, type) and issubclass(value, base) and value is not base
    )
    assert {kind: list(known) for kind, known in table()[generation].names.items()} == names
    assert table()[generation].version == keras.module.__version__


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
