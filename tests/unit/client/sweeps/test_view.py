"""The view of a sweep: names, order, counts, lines, and the displays of one that runs."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Literal

import optuna
import pytest
from rich.console import Console

from mptraining.sweeps.display import CellDisplay, LiveTable, live_table, sweep_html, sweep_panels
from mptraining.sweeps.importance import importance
from mptraining.sweeps.view import lines, newly_ended, one_line, short_names, trial_line
from mptraining_api.events import Progress
from mptraining_api.problems import InvalidSpec
from tests.testbed.sweep_files import trial, view_of


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (["training.optimizer.config.learning_rate"], ["learning_rate"]),
        (["training.batchSize.global"], ["batchSize.global"]),
        (["a.size", "b.size"], ["a.size", "b.size"]),
        (["size", "a.size"], ["size", "a.size"]),
    ],
)
def test_short_names_tell_the_paths_apart(paths: list[str], names: list[str]) -> None:
    assert list(short_names(paths).values()) == names


def test_the_text_of_a_sweep() -> None:
    ended = {"type": "Finished", "status": "True", "reason": "MaxTrials", "message": "3 of 3 trials have ended"}
    failed = trial(3, 0.5, None, state="Failed", message="Diverged: the loss is NaN")
    view = view_of(
        [trial(1, 0.01, 0.5), trial(2, 0.02, 0.75), failed],
        phase="Succeeded",
        failed=1,
        running=0,
        conditions=[ended | {"lastTransitionTime": "2026-01-01T00:03:00Z"}],
        completionTime="2026-01-01T00:03:00Z",
    )
    assert one_line(view) == (
        "flowers: Succeeded, 3 of 20 trials (1 failed); best val_accuracy 0.75 "
        "(trial 2: learning_rate 0.02, batchSize.global 32)"
    )
    assert lines(view) == [
        "flowers: Succeeded  (runs/flowers)",
        "  algorithm   TPE",
        "  objective   val_accuracy, Maximize",
        "  trials      3 of 20 trials (1 failed)",
        "  best        val_accuracy 0.75 (trial 2: learning_rate 0.02, batchSize.global 32)",
        "  time        3 min 0 s",
        "  ended       MaxTrials: 3 of 3 trials have ended",
        "  failed      trial 3: Diverged: the loss is NaN",
    ]
    assert trial_line(view, view.trials[1]) == (
        "trial 2  succeeded  val_accuracy 0.75  learning_rate 0.02, batchSize.global 32  1 min 0 s"
    )


def test_trials_that_ended_since_the_last_look() -> None:
    before = view_of([trial(1, 0.1, 0.5), trial(2, 0.1, None)]).trials
    now = view_of([trial(1, 0.1, 0.5), trial(2, 0.1, 0.6), trial(3, 0.1, None), trial(4, 0.1, 0.7)])
    assert [each.number for each in newly_ended(before, now.trials)] == [2, 4]
    assert [each.number for each in now.ranked()] == [4, 2, 1, 3]
    with pytest.raises(InvalidSpec, match="there is no trial 9 in flowers; expected 1 to 4"):
        now.trial(9)


@pytest.mark.parametrize("algorithm", ["TPE", "Random", "CMA-ES", "Hyperband"])
def test_the_importance_does_not_depend_on_the_algorithm(algorithm: Literal["TPE", "Random", "Hyperband"]) -> None:
    view = view_of([trial(number, 0.001 * number, 1 - abs(number - 4) / 10) for number in range(1, 11)])
    named = view.sweep.spec.algorithm.model_copy(update={"name": algorithm})
    spec = view.sweep.spec.model_copy(update={"algorithm": named})
    shares = importance(replace(view, sweep=view.sweep.model_copy(update={"spec": spec})))
    assert next(iter(shares)) == "training.optimizer.config.learning_rate"
    assert sum(shares.values()) == pytest.approx(1)
    assert importance(view_of([trial(number, 0.001 * number, 0.5) for number in range(1, 8)])) == {}, "too few"
    # Optuna's own call over a study of its own.
    study = optuna.create_study(direction="maximize")
    rate = optuna.distributions.FloatDistribution(1e-4, 1e-1, log=True)
    batch = optuna.distributions.CategoricalDistribution((0, 1))
    for each in view.trials:
        params = {"training.optimizer.config.learning_rate": 0.001 * each.number, "training.batchSize.global": 0}
        space = {"training.optimizer.config.learning_rate": rate, "training.batchSize.global": batch}
        study.add_trial(optuna.trial.create_trial(value=each.objective, params=params, distributions=space))
    assert shares == pytest.approx(optuna.importance.get_param_importances(study))


def test_the_cell_of_a_notebook_has_the_curve_of_the_best_so_far() -> None:
    view = view_of([trial(1, 0.1, 0.5), trial(2, 0.1, 0.25), trial(3, 0.1, 0.75)])
    best, each = sweep_panels(view)[0].curves
    assert [y for _, y in best.points] == [0.5, 0.5, 0.75]
    assert [y for _, y in each.points] == [0.5, 0.25, 0.75]
    text = sweep_html(view)
    assert "trial 3" in text
    assert "<svg" in text
    assert "&lt;" not in text


PROGRESS = Progress(
    time=1.0, attempt=1, incarnation="x", worker=0, step=30, total_steps=120, epoch=1, metrics={"loss": 0.5}
)


def test_the_cell_shows_the_sweep_and_is_drawn_again_when_a_trial_changes() -> None:
    now: list[float] = [0.0]
    contents: list[str] = []
    display = CellDisplay(contents.append, clock=lambda: now[0])
    display.say("note: before the first view")
    first = view_of([trial(1, 0.01, None)])
    display.update(first, {1: PROGRESS})
    assert len(contents) == 1
    assert "note: before the first view" in contents[0]
    assert "trial 1: step 30/120  epoch 1  loss 0.5" in contents[0]
    display.update(first, {1: PROGRESS})
    assert len(contents) == 1, "too early for progress alone"
    now[0] = 2.0
    display.update(first, {1: PROGRESS})
    display.update(view_of([trial(1, 0.01, 0.5), trial(2, 0.02, 0.75)]), {})
    assert len(contents) == 3
    assert "best val_accuracy so far" in contents[-1]
    display.say("Succeeded")
    display.close()
    assert "Succeeded" in contents[-1]


def test_the_table_has_running_trials_first_and_the_best_ended_ones() -> None:
    trials = [trial(number, 0.001 * number, number / 100) for number in range(1, 13)]
    view = view_of([*trials, trial(13, 0.02, None)])
    file = io.StringIO()
    Console(file=file, width=120).print(live_table(view, {13: PROGRESS}))
    lines = file.getvalue().splitlines()
    assert lines[0].strip() == "flowers: TPE, 12 of 20 trials (1 running)"
    assert "best: val_accuracy 0.12 (trial 12" in lines[1]
    assert [line.split()[0] for line in lines[4:-1]] == ["13", "12", "11", "10", "9", "8", "7", "6", "5", "4", "3"]
    assert "step 30/120" in lines[4]
    assert lines[-1].strip() == "and 2 more"
    # Ended trials stay above the table.
    display = LiveTable(Console(file=file, width=200, force_terminal=False))
    display.update(view, {})
    display.ended(view, view.trials[0])
    display.close()
    assert "trial 1  succeeded  val_accuracy 0.01" in file.getvalue()
