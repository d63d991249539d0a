"""A run in a notebook's cell, as HTML."""

from __future__ import annotations

import re
from collections.abc import Callable
from html.parser import HTMLParser
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from mptraining.display.curves import MOST_POINTS
from mptraining.display.narrator import Line
from mptraining.display.notebook import LINES_KEPT, LiveCurves, NotebookDisplay, page
from mptraining_api.events import Event, Finished, Notice, Progress, Recovered

COMMON: dict[str, Any] = {"time": 1.0, "attempt": 1, "incarnation": "a", "worker": 0}


class Cell:
    """The contents of the cell, the last one at the end."""

    def __init__(self) -> None:
        self.contents: list[str] = []
        self.now = 0.0
        self.display = NotebookDisplay(self.contents.append, lambda: self.now)

    @property
    def html(self) -> str:
        return self.contents[-1]

    def follow(self, events: list[Event]) -> None:
        for event in events:
            self.now += 1
            self.display.event(0, event)


def progress(step: int, loss: float = 0.5) -> Progress:
    return Progress(step=step, epoch=1, metrics={"loss": loss}, **COMMON)


def test_lines_stay_and_the_bar_moves(attempt_events: Callable[..., list[Event]]) -> None:
    cell = Cell()
    cell.display.say("Running: all 2 workers run")
    cell.display.waiting("starting <TensorFlow>…")
    assert "<div>starting &lt;TensorFlow&gt;…</div>" in cell.html
    cell.follow(attempt_events(steps=12))
    assert "training starts: Mirrored" in cell.html
    assert "starting" not in cell.html
    assert '<progress style="width:60%" max="12" value="12"></progress> 100%' in cell.html
    assert "step 10/12  epoch 1" in cell.html, "validation stays"
    cell.follow([Finished(reason="Succeeded", exit_code=0, message="", **COMMON)])
    assert "<progress" not in cell.html


def test_a_front_end_is_not_flooded() -> None:
    cell = Cell()
    for step in range(1000):
        cell.now += 0.001
        cell.display.event(0, progress(step))
    assert len(cell.contents) <= 5
    for number in range(LINES_KEPT + 7):
        cell.display.line(1, "stdout", f"line {number}.")
    cell.display.close()
    assert "7 earlier lines are not shown" in cell.html
    assert "[worker 1] line 6." not in cell.html


@settings(max_examples=20)
@given(st.lists(st.text(), max_size=5))
def test_whatever_a_program_prints_is_text(lines: list[str]) -> None:
    tags: list[str] = []

    class Tags(HTMLParser):
        def handle_starttag(self, tag: str, attrs: Any) -> None:
            tags.append(tag)

    Tags().feed(page(list(map(Line, lines)), ""))
    assert tags == ["pre", "div"]


def test_warnings_have_a_colour() -> None:
    cell = Cell()
    for level, message in (("Info", "all is well"), ("Warning", "look <here>")):
        cell.display.event(0, Notice(level=level, topic="X", message=message, **COMMON))
    cell.display.say("warning: the API server does not answer")
    coloured = re.findall(r'<span style="color:[^"]*">([^<]*)</span>', cell.html)
    assert coloured == ["warning: look &lt;here&gt;", "warning: the API server does not answer"]


def test_curves_grow_and_forget_what_is_trained_again(attempt_events: Callable[..., list[Event]]) -> None:
    cell = Cell()
    events = attempt_events(steps=20)
    cell.follow(events[:2])
    assert "<svg" not in cell.html, "one point is no curve"
    cell.follow(events[2:])
    assert cell.html.count('role="img"') == 2, "loss and accuracy"
    assert "until step 20" in cell.html
    cell.follow([Recovered(from_step=20, to_step=4, precision="float32", message="", **COMMON)])
    assert "until step 4" in cell.html


def test_a_long_run_stays_small() -> None:
    curves = LiveCurves()
    for step in range(20_000):
        curves.add(progress(step, float(step % 100)))
    (panel,) = curves.panels()
    assert len(panel.curves[0].points) <= 2 * MOST_POINTS
    assert panel.curves[0].points[-1][0] == 19_999
    assert {y for _, y in panel.curves[0].points} >= {0.0, 99.0}, "the extremes stay"
