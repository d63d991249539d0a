"""The configuration of a run in a comparison, and what differs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from mptraining.comparison import Comparison, compare
from mptraining_api.events import Started
from mptraining_api.run_folder import events_file

RunIn = Callable[..., Path]


def texts(comparison: Comparison) -> dict[str, tuple[str, ...]]:
    return {each.title: each.texts for each in comparison.rows if each.kind == "setting"}


def differing(comparison: Comparison) -> set[str]:
    return {each.title for each in comparison.rows if each.kind == "setting" and each.differs}


def adam(rate: Any, **config: Any) -> dict[str, Any]:
    return {"optimizer": {"className": "Adam", "config": {"learning_rate": rate, **config}}}


def test_the_named_settings_are_always_there_and_only_what_differs_is_different(run_in: RunIn) -> None:
    one = run_in("one", training=adam(0.01) | {"seed": 7})
    two = run_in("two", training=adam(0.02) | {"seed": 8})
    assert texts(compare([str(one)])) == {
        "precision": ("float32",), "XLA": ("off",), "strategy": ("Mirrored",), "replicas": ("1",),
        "global batch size": ("64",), "accelerator": ("CPU",), "Keras": ("3",), "optimizer": ("Adam",),
        "learning rate": ("0.01",), "epochs": ("5",), "seed": ("7",),
    }  # fmt: skip
    assert differing(compare([str(one), str(two)])) == {"learning rate", "seed"}
    schedule = {"class_name": "CosineDecay", "config": {"initial_learning_rate": 0.1, "decay_steps": 9}}
    assert texts(compare([str(run_in("three", training=adam(schedule)))]))["learning rate"] == ("CosineDecay",)


def test_every_other_field_that_differs_has_a_row(run_in: RunIn) -> None:
    one = run_in("one", training=adam(0.01, beta_1=0.8))
    two = run_in("two", training=adam(0.01) | {"gradientAccumulationSteps": 2, "classWeight": {"1": 3.0}})
    compared = compare([str(one), str(two)])
    assert differing(compared) == {"optimizer", "training.gradientAccumulationSteps"}
    assert texts(compared)["optimizer"] == ("Adam(beta_1=0.8)", "Adam")
    assert texts(compared)["training.gradientAccumulationSteps"] == ("1", "2")
    # A value that only one run has.
    assert texts(compared)["training.classWeight.1"] == ("-", "3")


def test_keras_is_named_alike_by_events_and_results(run_in: RunIn) -> None:
    folders = [run_in("done"), run_in("cut", done=False)]
    for folder in folders:
        path = folder / events_file(1, "a-b", 0, 0)
        started = Started(
            time=1.0, attempt=1, incarnation="a-b", worker=0, strategy="Mirrored", precision="float32",
            keras="keras 3.15.1", tensorflow="2.21.0", devices=("/cpu:0",), workers=1, replicas_in_sync=1,
        )  # fmt: skip
        path.write_text(started.to_json())
    assert texts(compare([str(each) for each in folders]))["Keras"] == ("3.15.1", "3.15.1")
