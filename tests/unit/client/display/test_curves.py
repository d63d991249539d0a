"""Small curves: whole, escaped, readable on any background, and with the extremes of long series."""

from __future__ import annotations

import math
import sys
import xml.etree.ElementTree as ET
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mptraining.display import plot as plotting
from mptraining.display.curves import Curve, Panel, legend, panels, shown_by_default, svg
from mptraining.display.html import card, grid
from mptraining_api.problems import InvalidProgram

finite = st.floats(allow_nan=False, allow_infinity=False, width=32)


@given(st.lists(finite, min_size=1, max_size=40), st.text(max_size=8))
def test_every_curve_is_whole_svg_inside_its_box(values: list[float], label: str) -> None:
    # XML has no control characters; HTML parsers drop them.
    label = "".join(letter for letter in label if letter.isprintable())
    root = ET.fromstring(svg(Panel(label, (Curve(label, tuple(enumerate(values))),))))
    width, height = (float(part) for part in root.attrib["viewBox"].split()[2:])
    for line in root.iter("polyline"):
        for point in line.attrib["points"].split():
            x, y = map(float, point.split(","))
            assert 0 <= x <= width
            assert 0 <= y <= height


def test_a_series_of_many_powers_of_ten_is_logarithmic() -> None:
    assert ">log<" in svg(Panel("loss", (Curve("loss", ((0, 1e-3), (1, 1e3))),)))
    assert ">log<" not in svg(Panel("loss", (Curve("loss", ((0, 1.0), (1, 2.0))),)))
    assert svg(Panel("loss", (Curve("loss", ()),))) == ""


def test_text_takes_the_colour_of_the_page_and_nothing_is_a_script() -> None:
    html = card(
        "<b>title", lines=["<script>x</script>"], table=grid(["", "<i>"], [(["a", "&"], frozenset({1}))]),
        panels=[Panel("<u>", (Curve("<s>", ((0, 1.0), (1, 2.0))),))],
    )  # fmt: skip
    assert 'fill="currentColor"' in html
    assert not any(tag in html for tag in ("<script", "<style", "<link", "<i>", "<s>", "<u>", "<b>title", "http"))


def test_training_and_validation_share_a_chart_and_gauges_are_drawn_if_they_change() -> None:
    series = {"val_loss": [(1, 2.0)], "loss": [(1, 1.0)], "cpuTime_s": [(1, 0.1), (2, 0.2)]}
    charts = panels(series)
    assert [(panel.title, [curve.label for curve in panel.curves]) for panel in charts] == [
        ("loss", ["loss", "val_loss"]),
        ("CPU time s", ["cpuTime_s"]),
    ]
    assert "<b>2</b>" in legend(charts[0].curves)
    gauges = {"learning_rate": [(1, 0.1), (2, 0.1)], "gradient_norm": [(1, 0.1), (2, 0.2)]}
    assert shown_by_default(["accuracy", "loss"], gauges) == ["loss", "accuracy", "gradient_norm"]


class FakeAxes:
    """Records the calls of matplotlib's Axes."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments, **_: self.calls.append((name, arguments))


def test_matplotlib_draws_if_it_is_there_and_a_notebook_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = [Panel("loss", (Curve("loss", ((0, 1.0), (1, math.e))), Curve("val_loss", ((1, 99.0),), 1)))]
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(InvalidProgram, match="matplotlib is not installed here"):
        plotting.plot(drawn)
    with monkeypatch.context() as notebook:
        notebook.setattr(plotting, "is_notebook", lambda: True)
        shown = plotting.plot(drawn)
    assert repr(shown) == "<Drawing of loss>"
    assert "<svg" in shown._repr_html_()
    axes = [[FakeAxes()]]
    pyplot = SimpleNamespace(subplots=lambda *_, **__: (SimpleNamespace(tight_layout=lambda: None), axes))
    monkeypatch.setitem(sys.modules, "matplotlib", SimpleNamespace(pyplot=None))
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", pyplot)
    assert plotting.plot(drawn) == axes[0]
    assert [name for name, _ in axes[0][0].calls] == ["plot", "plot", "set_title", "set_xlabel", "set_yscale", "legend"]
