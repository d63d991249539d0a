"""Curves as they are drawn: nothing that a reader would see is lost by downsampling."""

from __future__ import annotations

import random

import numpy as np
import pytest

from mptraining.board.series import PIXELS, chart, groups, numbers, unit, whole_series
from mptraining.display.curves import kept_points
from mptraining.runs.columns import Axis, Column, Curves, Series


def noisy(count: int, seed: int = 0) -> tuple[Column, Column]:
    draw = random.Random(seed)
    x = np.cumsum([draw.random() for _ in range(count)])
    return x, np.array([draw.gauss(0, 1) for _ in range(count)])


@pytest.mark.parametrize("count", [1, 2, 5, 199, 200, 201, 5000])
@pytest.mark.parametrize("pixels", [1, 2, 50, 100])
def test_every_pixel_keeps_its_minimum_and_its_maximum(count: int, pixels: int) -> None:
    x, y = noisy(count)
    kept = kept_points(x, y, pixels)
    at, values = x[kept], y[kept]
    assert len(at) <= max(2 * pixels, 4)
    assert (at[0], at[-1]) == (x[0], x[-1])
    assert (values.min(), values.max()) == (y.min(), y.max())
    assert set(zip(at, values, strict=True)) <= set(zip(x, y, strict=True))
    assert (np.diff(at) >= 0).all()
    # For each pixel column, drawn over the same range of x.
    columns = max(1, pixels - 1)
    width = (x[-1] - x[0]) / columns or 1.0
    of_all, of_kept = ((each - x[0]) // width for each in (x, at))
    for column in np.unique(of_all[:-1]):
        if column < columns:
            assert values[of_kept == column].min() == y[of_all == column].min()
            assert values[of_kept == column].max() == y[of_all == column].max()


def test_a_range_has_one_point_beyond_each_side() -> None:
    x = np.arange(10.0)
    curves = Curves(step=x, epoch=x, seconds=10 * x, values={"loss": Series(np.arange(10), x)})
    (found,) = chart("loss", "step", {"a": curves}, pixels=100, begin=3, end=5)["series"]
    assert found["x"] == [2, 3, 4, 5, 6]
    (found,) = chart("loss", "seconds", {"a": curves}, pixels=100, begin=85)["series"]
    assert found["x"] == [80, 90]
    (found,) = chart("loss", "step", {"a": curves}, pixels=100, begin=50)["series"]
    assert found["x"] == []


def test_a_series_has_only_the_points_that_know_it() -> None:
    x = np.arange(5.0)
    values = {"val_loss": Series(np.array([1, 3, 4]), np.array([1.0, 2.0, np.nan]))}
    curves = Curves(x, x, np.array([1.0, 1, 2, 2, 3]), x, values, steps_per_epoch=2)
    shown = chart("val_loss", "epoch", {"a": curves, "b": Curves()})
    series = [{"run": "a", "x": [0.5, 1.5], "y": [1, 2]}]
    assert shown == {"name": "val_loss", "x": "epoch", "unit": "number", "series": series}
    whole = {"unit": "number", "step": [1, 3], "epoch": [0.5, 1.5], "seconds": [1, 3], "y": [1, 2]}
    assert whole_series(curves) == {"val_loss": whole}


@pytest.mark.parametrize("axis", ["step", "epoch", "seconds"])
def test_the_live_and_the_exported_page_get_the_same_points(axis: Axis) -> None:
    seconds, y = noisy(5000)
    step = np.arange(5000.0)
    curves = Curves(seconds, step, step // 100, seconds, {"loss": Series(np.arange(5000), y)}, steps_per_epoch=100)
    (live,) = chart("loss", axis, {"a": curves})["series"]
    exported = whole_series(curves)["loss"]
    assert (live["x"], live["y"]) == (exported[axis], exported["y"])
    assert len(live["x"]) <= 2 * PIXELS


def test_numbers_have_seven_digits_and_are_never_nan() -> None:
    given = np.array([1 / 3, 1e-30 / 3, -2e30 / 3, 0.0, np.inf, np.nan, 1e-320])
    assert numbers(given) == [0.3333333, 3.333333e-31, -6.666667e29, 0.0, None, None, pytest.approx(0, abs=1e-300)]
    assert numbers(np.array([1.0, 2e9])) == [1, 2_000_000_000]
    assert numbers(np.array([])) == []


def test_groups_and_units() -> None:
    names = ["loss", "deviceMemoryUsedBytes", "val_loss", "lossScale", "gradientNorm", "stepSeconds"]
    assert groups(names) == {
        "training": ["loss"], "validation": ["val_loss"], "numbers": ["gradientNorm", "lossScale"],
        "system": ["deviceMemoryUsedBytes", "stepSeconds"],
    }  # fmt: skip
    # A metric may have the name of a unit.
    shown = ("deviceMemoryUsedBytes", "stepSeconds", "inputBoundPercent", "examplesPerSecond", "myBytes")
    assert [unit(each) for each in shown] == ["bytes", "seconds", "percent", "examples/s", "number"]
