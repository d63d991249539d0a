"""Axes with round numbers, and lines that stay inside them."""

from __future__ import annotations

import re

import pytest

from mptraining.comparison_html import (
    HEIGHT,
    WIDTH,
    Curve,
    chart,
    linear_axis,
    logarithmic_axis,
    thinned,
    tick_text,
    value_axis,
)


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0, 2000, [0, 500, 1000, 1500, 2000]),
        (0.12, 0.93, [0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (-1, 1, [-1, -0.5, 0, 0.5, 1]),
        (0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (1e6, 5e6, [1e6, 2e6, 3e6, 4e6, 5e6]),
    ],
)
def test_linear_axis(low: float, high: float, ticks: list[float]) -> None:
    assert list(linear_axis(low, high).ticks) == pytest.approx(ticks)


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0.06, 2.2, [0.05, 0.1, 0.2, 0.5, 1, 2, 5]),
        (1e-6, 90, [1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1, 10, 100]),
    ],
)
def test_logarithmic_axis(low: float, high: float, ticks: list[float]) -> None:
    assert list(logarithmic_axis(low, high).ticks) == pytest.approx(ticks)


@pytest.mark.parametrize("values", [[1.0], [0.0], [-3.0, -3.0], [1e-9, 1e9], [1e-300, 1.0], [0.1, 0.11], [5, 150]])
def test_every_value_lies_on_its_axis(values: list[float]) -> None:
    axis = value_axis(values)
    assert all(-1e-9 <= axis.share(value) <= 1 + 1e-9 for value in values)
    assert 2 <= len(axis.ticks) <= 14


def test_only_values_far_apart_and_above_zero_are_logarithmic() -> None:
    assert value_axis([0.05, 5]).logarithmic
    assert not value_axis([0.5, 5]).logarithmic
    assert not value_axis([-1, 500]).logarithmic


def test_tick_text() -> None:
    axis = linear_axis(0, 100_000)
    assert [tick_text(each, axis) for each in (0, 0.30000000000000004, 1500, 20000, 1e-5)] == [
        "0", "0.3", "1500", "20k", "1e-05",
    ]  # fmt: skip


def test_thinned_keeps_the_ends() -> None:
    points = [(float(at), 0.0) for at in range(1000)]
    kept = thinned(points, 10)
    assert (len(kept), kept[0], kept[-1]) == (10, points[0], points[-1])


def test_lines_stay_inside_the_view_box() -> None:
    curve = Curve("a", tuple((x, 1 / x) for x in range(1, 100)), colour=9, dashed=True)
    svg = chart([curve], title="t", x_label="x", y_label="y", point_text=lambda curve, x, y: "<here>")
    points = re.search(r'class="line c1 dashed" points="([^"]+)"', svg)
    assert points
    for pair in points[1].split():
        x, y = map(float, pair.split(","))
        assert 0 <= x <= WIDTH
        assert 0 <= y <= HEIGHT
    assert "<title>&lt;here&gt;</title>" in svg


def test_nothing_to_draw_is_nothing() -> None:
    assert chart([Curve("a", (), 0)], title="", x_label="", y_label="", point_text=lambda *_: "") == ""
