"""What is best, and what is noise."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from pathlib import Path
from statistics import mean, stdev

import pytest

from mptraining.comparison import compare
from mptraining.comparison.spread import best, repetition_spread, scatter
from mptraining_api.events import Progress, Started
from mptraining_api.run_folder import events_file

RunIn = Callable[..., Path]


def test_the_scatter_is_the_standard_deviation_of_noise() -> None:
    draw = random.Random(1)
    estimates = [scatter([draw.gauss(5, 2) for _ in range(200)]) or 0 for _ in range(20)]
    assert mean(estimates) == pytest.approx(2, rel=0.1)


def test_a_trend_and_one_hiccup_are_little_scatter() -> None:
    assert scatter([1 - 0.01 * step for step in range(20)]) == pytest.approx(0.0105, rel=0.01)
    assert scatter([1.0, 1.0, 1.0, 9.0, 1.0, 1.0, 1.0]) == 0


def test_few_values_have_no_known_scatter() -> None:
    assert scatter([1.0, 2.0, 3.0]) is None


def test_repetitions_are_pooled() -> None:
    assert repetition_spread([1.0, 3.0, 10.0], ["a", "a", "b"]) == pytest.approx(stdev([1, 3]))
    assert repetition_spread([1.0, 3.0, 10.0, 14.0], ["a", "a", "b", "b"]) == pytest.approx(((2 + 8) / 2) ** 0.5)
    assert repetition_spread([1.0, 3.0], ["a", "b"]) is None


def ranked(
    *values: float, spreads: tuple[float | None, ...] | None = None, direction: str = "lower"
) -> tuple[int, ...]:
    return best(
        values,
        [f"{value:.4g}" for value in values],
        direction,  # type: ignore[arg-type]
        able=range(len(values)),
        spreads=spreads or [None] * len(values),
    )


def test_nan_is_never_best() -> None:
    assert ranked(math.nan, 1.0, 2.0) == (1,)
    assert repetition_spread([1.0, 3.0, math.nan], ["a", "a", "a"]) == pytest.approx(stdev([1, 3]))


def test_a_difference_above_two_deviations_is_one() -> None:
    assert ranked(1.0, 1.3, spreads=(0.1, 0.1)) == (0,)
    assert ranked(1.0, 1.2, spreads=(0.1, 0.1)) == ()


def test_runs_within_the_spread_of_the_best_are_best_too() -> None:
    assert ranked(1.0, 1.1, 2.0, spreads=(0.1, 0.1, 0.1)) == (0, 1)
    assert ranked(1.0, 1.1, 2.0, spreads=(0.1, 0.1, 0.1), direction="higher") == (2,)


def test_single_numbers_differ_by_a_twentieth() -> None:
    assert ranked(804e6, 806e6) == ()
    assert ranked(804e6, 906e6) == (0,)


def test_a_lucky_pair_of_repetitions_does_not_make_single_numbers_exact() -> None:
    memory = best(
        [804e6, 803.9e6, 801e6], ["804", "804", "801"], "lower", able=range(3), spreads=[None] * 3, repeated=0.07e6
    )
    assert memory == ()


def test_what_the_table_does_not_show_is_no_difference() -> None:
    assert ranked(0.123_41, 0.123_44, spreads=(0.0, 0.0)) == ()


def write_validations(folder: Path, *, accuracies: list[float], examples: int | None) -> str:
    common = {"attempt": 1, "incarnation": "a-b", "worker": 0}
    started = Started(
        time=0.0, strategy="Mirrored", precision="float32", keras="keras 3", tensorflow="2", devices=(), workers=1,
        replicas_in_sync=1, validation_examples=examples, **common,
    )  # fmt: skip
    reports = [
        Progress(time=step, step=step, epoch=step, metrics={"val_accuracy": each}, **common)
        for step, each in enumerate(accuracies, start=1)
    ]
    lines = [each.to_json() for each in (started, *reports)]
    (folder / events_file(1, "a-b", 0, 0)).write_text("\n".join(lines))
    return str(folder)


@pytest.mark.parametrize(
    ("accuracies", "examples", "expected"),
    [
        ([0.9, 0.9, 0.9, 0.9, 0.9], None, (1,)),
        # The last validations scatter as much as the runs differ.
        ([0.87, 0.93, 0.88, 0.94, 0.9], None, ()),
        # One example in a hundred is within the error of the sample.
        ([0.9, 0.9, 0.9, 0.9, 0.9], 100, ()),
        ([0.9, 0.9, 0.9, 0.9, 0.9], 1_000_000, (1,)),
    ],
)
def test_validations_within_their_spread_have_no_best(
    run_in: RunIn, accuracies: list[float], examples: int | None, expected: tuple[int, ...]
) -> None:
    folders = []
    for name, last in (("one", 0.9), ("two", 0.93)):
        folder = run_in(name, result={"metrics": {"val_accuracy": last}})
        folders.append(write_validations(folder, accuracies=[*accuracies[:-1], last], examples=examples))
    row = next(each for each in compare(folders).rows if each.key == "val_accuracy")
    assert row.best == expected


def test_runs_that_differ_in_the_seed_show_the_noise_of_every_row(run_in: RunIn) -> None:
    def compared(*seconds: float) -> tuple[int, ...]:
        folders = [
            run_in(f"{seconds}-{at}", result={"seconds": each}, training={"seed": at, "epochs": 5 + at // 2})
            for at, each in enumerate(seconds)
        ]
        return next(each for each in compare(list(map(str, folders))).rows if each.key == "seconds").best

    # Two seeds of each length: 30 s and 36 s differ by 20 %, and so do repetitions.
    assert compared(30.0, 36.0, 38.0, 32.0) == ()
    assert compared(30.0, 30.5, 38.0, 38.5) == (0, 1)
