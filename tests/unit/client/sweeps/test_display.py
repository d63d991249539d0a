"""Displays of a sweep that runs: a cell of a notebook, and the table of a terminal."""

from __future__ import annotations

import io
from collections.abc import Callable

from rich.console import Console

from mptraining.sweeps.display import CellDisplay, LiveTable, live_table
from mptraining_api.events import Progress
from tests.testbed.sweep_files import trial, view_of

PROGRESS = Progress(
    time=1.0, attempt=1, incarnation="x", worker=0, step=30, total_steps=120, epoch=1, metrics={"loss": 0.5}
)


class Cell:
    def __init__(self) -> None:
        self.shown: list[str] = []

    def __call__(self, html: str) -> Callable[[str], None]:
        self.shown.append(html)
        return self.shown.append


def test_the_cell_shows_the_sweep_and_is_drawn_again_when_a_trial_changes() -> None:
    now, cell = [0.0], Cell()
    display = CellDisplay(cell, clock=lambda: now[0])
    display.say("note: before the first view")
    first = view_of([trial(1, 0.01, None)])
    display.update(first, {1: PROGRESS})
    assert len(cell.shown) == 1
    assert "note: before the first view" in cell.shown[0]
    assert "trial 1: step 30/120  epoch 1  loss 0.5" in cell.shown[0]
    display.update(first, {1: PROGRESS})
    assert len(cell.shown) == 1, "too early for progress alone"
    now[0] = 2.0
    display.update(first, {1: PROGRESS})
    display.update(view_of([trial(1, 0.01, 0.5), trial(2, 0.02, 0.75)]), {})
    assert len(cell.shown) == 3
    assert "best val_accuracy so far" in cell.shown[-1]
    display.say("Succeeded")
    display.close()
    assert "Succeeded" in cell.shown[-1]


def printed(console: Console) -> str:
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def test_the_table_has_running_trials_first_and_the_best_ended_ones() -> None:
    trials = [trial(number, 0.001 * number, number / 100) for number in range(1, 13)]
    view = view_of([*trials, trial(13, 0.02, None)])
    console = Console(file=io.StringIO(), width=120)
    console.print(live_table(view, {13: PROGRESS}))
    lines = printed(console).splitlines()
    assert lines[0].strip() == "flowers: TPE, 12 of 20 trials (1 running)"
    assert "best: val_accuracy 0.12 (trial 12" in lines[1]
    numbers = [line.split()[0] for line in lines[4:-1]]
    assert numbers == ["13", "12", "11", "10", "9", "8", "7", "6", "5", "4", "3"]
    assert "step 30/120" in lines[4]
    assert lines[-1].strip() == "and 2 more"
    # Ended trials stay above the table.
    console = Console(file=io.StringIO(), width=200, force_terminal=False)
    display = LiveTable(console)
    display.update(view, {})
    display.ended(view, view.trials[0])
    display.close()
    assert "trial 1  succeeded  val_accuracy 0.01" in printed(console)
