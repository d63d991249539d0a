"""A run in a notebook's cell, as HTML."""

from __future__ import annotations

import re
from collections.abc import Callable
from html.parser import HTMLParser
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from mptraining.display.curves import MOST_POINTS
from mptraining.display.notebook import LINES_KEPT, LiveCurves, NotebookDisplay, page
from mptraining_api.events import Event, Finished, Notice, Progress, Recovered


class Cell:
    """The front end's current output, and the number of its updates."""

    def __init__(self) -> None:
        self.html = ""
        self.times = 0
        self.now = 0.0
        self.display = NotebookDisplay(self.show, lambda: self.now)

    def show(self, html: str) -> Callable[[str], None]:
        assert not self.times, "one output, that is replaced"
        self.update(html)
        return self.update

    def update(self, html: str) -> None:
        self.html, self.times = html, self.times + 1


def test_lines_stay_and_the_bar_moves(attempt_events: Callable[..., list[Event]]) -> None:
    cell = Cell()
    cell.display.say("Running: all 2 workers run")
    for event in attempt_events(steps=12):
        cell.now += 1
        cell.display.event(0, event)
    assert "training starts: Mirrored" in cell.html
    assert '<progress style="width:60%" max="12" value="12"></progress> 100%' in cell.html
    assert "step 10/12  epoch 1" in cell.html, "validation stays"
    common: dict[str, Any] = {"time": 1.0, "attempt": 1, "incarnation": "a", "worker": 0}
    cell.display.event(0, Finished(reason="Succeeded", exit_code=0, message="", **common))
    cell.display.close()
    assert "<progress" not in cell.html


def test_a_front_end_is_not_flooded() -> None:
    cell = Cell()
    for step in range(1000):
        cell.now += 0.001
        cell.display.event(0, progress(step))
    assert cell.times <= 5
    for number in range(LINES_KEPT + 7):
        cell.display.line(1, "stdout", f"line {number}.")
    cell.display.close()
    assert "7 earlier lines are not shown" in cell.html
    assert "[worker 1] line 6." not in cell.html


def progress(step: int) -> Progress:
    return Progress(time=1.0, attempt=1, incarnation="a", worker=0, step=step, epoch=1, metrics={"loss": 0.5})


@settings(max_examples=20)
@given(st.lists(st.text(), max_size=5))
def test_whatever_a_program_prints_is_text(lines: list[str]) -> None:
    class Tags(HTMLParser):
        found: list[str]

        def handle_starttag(self, tag: str, attrs: Any) -> None:
            self.found.append(tag)

    parser = Tags()
    parser.found = []
    parser.feed(page([(line, False) for line in lines], ""))
    assert parser.found == ["pre", "div"]


def noted(level: str, message: str) -> Notice:
    return Notice(time=1.0, attempt=1, incarnation="a", worker=0, level=level, topic="X", message=message)


def test_warnings_have_a_colour() -> None:
    cell = Cell()
    for event in (noted("Info", "all is well"), noted("Warning", "look <here>")):
        cell.display.event(0, event)
    cell.display.say("warning: the API server does not answer")
    coloured = re.findall(r'<span style="color:[^"]*">([^<]*)</span>', cell.html)
    assert coloured == ["warning: look &lt;here&gt;", "warning: the API server does not answer"]


def test_curves_grow_and_forget_what_is_trained_again(attempt_events: Callable[..., list[Event]]) -> None:
    cell = Cell()
    events = attempt_events(steps=20)
    for event in events[:2]:
        cell.display.event(0, event)
    assert "<svg" not in cell.html, "one point is no curve"
    for event in events[2:]:
        cell.display.event(0, event)
    cell.display.close()
    assert cell.html.count('role="img"') == 2, "loss and accuracy"
    assert "until step 20" in cell.html
    common: dict[str, Any] = {"time": 1.0, "attempt": 1, "incarnation": "a", "worker": 0}
    cell.display.event(0, Recovered(from_step=20, to_step=4, precision="float32", message="", **common))
    cell.display.close()
    assert "until step 4" in cell.html


def test_a_long_run_stays_small() -> None:
    curves = LiveCurves()
    for step in range(20_000):
        curves.add(progress(step).model_copy(update={"metrics": {"loss": float(step % 100)}}))
    (panel,) = curves.panels()
    assert len(panel.curves[0].points) <= 2 * MOST_POINTS
    assert panel.curves[0].points[-1][0] == 19_999
    assert {y for _, y in panel.curves[0].points} >= {0.0, 99.0}, "the extremes stay"
