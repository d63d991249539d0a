"""The direction of improvement, for the names that both generations of Keras give their metrics."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mptraining_api.problems import InvalidSpec
from mptraining_trainer.session.best_weights import Mode, Monitor, log_names, mode_of, monitor


@pytest.mark.parametrize(
    ("metric", "directions", "mode"),
    [
        *(("loss", {}, "min"), ("val_loss", {}, "min"), ("val_mae", {}, "min"), ("lift_of_mine", {}, None)),
        ("val_accuracy", {}, "max"),
        ("val_accuracy", {"accuracy": None}, "max"),
        ("val_accuracy", {"accuracy": "down"}, "min"),
        ("val_mean_io_u", {"mean_io_u": "up"}, "max"),
    ],
)
def test_a_name_decides_the_direction_where_keras_does_not(
    metric: str, directions: dict[str, str | None], mode: Mode | None
) -> None:
    assert mode_of(metric, directions) == mode


@given(st.sampled_from(["min", "max"]), st.lists(st.floats(), min_size=1, max_size=20))
def test_the_best_is_the_first_of_the_finite_extremes(mode: Mode, values: list[float]) -> None:
    watched, best = Monitor("loss", mode), None
    for value in values:
        if watched.is_better(value, best):
            best = value
    finite = [value for value in values if math.isfinite(value)]
    assert best == ((min if mode == "min" else max)(finite) if finite else None)


def test_an_unknown_metric_is_named_with_those_there_are() -> None:
    assert log_names(["accuracy", "loss"], validated=True) == ["loss", "accuracy", "val_loss", "val_accuracy"]
    with pytest.raises(InvalidSpec) as raised:
        monitor("val_acuracy", {"accuracy": None}, validated=True, where="spec.export.monitor")
    assert str(raised.value) == (
        "spec.export.monitor: 'val_acuracy' is no metric of this training; expected one of loss, accuracy, val_loss, "
        "val_accuracy. Did you mean 'val_accuracy'?"
    )
    with pytest.raises(InvalidSpec, match=r"expected one of loss, accuracy\."):
        monitor("val_loss", {"accuracy": None}, validated=False, where="spec.export.monitor")


def test_an_unknown_metric_is_taken_to_go_down_and_marked_as_a_guess() -> None:
    assert monitor("lift", {"lift": None}, validated=False, where="") == Monitor("lift", "min", is_mode_known=False)
    assert monitor("accuracy", {"accuracy": "up"}, validated=False, where="") == Monitor("accuracy", "max")
