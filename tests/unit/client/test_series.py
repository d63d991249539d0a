"""Curves as they are drawn: nothing that a reader would see is lost by downsampling."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from mptraining.display.curves import kept_points
from mptraining.runs.columns import Axis, Column, Curves, Series
from mptraining.runs.series import PIXELS, chart, label, numbers, sections, unit, whole_series


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
    series = [{"run": "a", "x": [0.5, 1.5], "y": [1, 2], "index": [0, 1]}]
    about = {"label": "validation loss", "unit": "number"}
    assert shown == about | {"name": "val_loss", "x": "epoch", "series": series}
    whole = about | {"step": [1, 3], "epoch": [0.5, 1.5], "seconds": [1, 3], "y": [1, 2], "index": [0, 1]}
    assert whole_series(curves) == {"val_loss": whole}


@pytest.mark.parametrize("axis", ["step", "epoch", "seconds"])
def test_the_live_and_the_exported_page_get_the_same_points(axis: Axis) -> None:
    seconds, y = noisy(5000)
    step = np.arange(5000.0)
    curves = Curves(seconds, step, step // 100, seconds, {"loss": Series(np.arange(5000), y)}, steps_per_epoch=100)
    (live,) = chart("loss", axis, {"a": curves})["series"]
    exported = whole_series(curves)["loss"]
    assert (live["x"], live["y"], live["index"]) == (exported[axis], exported["y"], exported["index"])
    assert len(live["x"]) <= 2 * PIXELS
    # Smoothing counts the points that were left out: a part has the same numbers as the whole.
    (part,) = chart("loss", "step", {"a": curves}, begin=4000, end=4999)["series"]
    assert part["index"] == part["x"]
    assert set(live["index"]) <= set(range(5000))


def test_a_validation_counts_once_however_often_it_is_reported() -> None:
    x = np.arange(6.0)
    values = {"val_loss": Series(np.arange(6), np.array([2.0, 2, 1, 1, 1, 3]))}
    (shown,) = chart("val_loss", "step", {"a": Curves(x, x, x, x, values)})["series"]
    assert (shown["x"], shown["y"], shown["index"]) == ([0, 2, 5], [2, 1, 3], [0, 1, 2])


def test_numbers_have_seven_digits_and_are_never_nan() -> None:
    given = np.array([1 / 3, 1e-30 / 3, -2e30 / 3, 0.0, np.inf, np.nan, 1e-320])
    assert numbers(given) == [0.3333333, 3.333333e-31, -6.666667e29, 0.0, None, None, pytest.approx(0, abs=1e-300)]
    assert numbers(np.array([1.0, 2e9])) == [1, 2_000_000_000]
    assert numbers(np.array([])) == []


def titles(charts: list[dict[str, Any]]) -> dict[str, list[tuple[str, list[str]]]]:
    return {part["title"]: [(chart["title"], chart["names"]) for chart in part["charts"]] for part in charts}


def test_a_run_and_a_comparison_have_charts_by_section() -> None:
    memory = ["deviceMemoryUsedBytes", "deviceMemoryPeakBytes"]
    names = ["accuracy", *memory, "val_loss", "loss", "lossScale", "gradientNorm", "stepSeconds"]
    assert titles(sections(names, single=True)) == {
        "Training and validation": [("loss", ["loss", "val_loss"]), ("accuracy", ["accuracy"])],
        "Numbers": [("gradient norm", ["gradientNorm"]), ("loss scale", ["lossScale"])],
        "System": [("GPU or TPU memory", memory), ("Time per step", ["stepSeconds"])],
    }
    many = titles(sections(names, together=False))
    assert many["Metrics"] == [("validation loss", ["val_loss"]), ("loss", ["loss"]), ("accuracy", ["accuracy"])]
    assert [names for _, names in many["System"]] == [[memory[0]], [memory[1]], ["stepSeconds"]]
    assert sections([]) == []


def test_names_and_units_of_series() -> None:
    shown = ("val_top_k", "cpuPercent", "error_percent")
    assert [label(name) for name in shown] == ["validation top k", "CPU", "error percent"]
    # A metric may have the name of a unit.
    shown = ("diskReadBytesPerSecond", "stepSeconds", "inputBoundPercent", "examplesPerSecond", "myBytes")
    assert [unit(name) for name in shown] == ["bytes/s", "seconds", "percent", "examples/s", "number"]
