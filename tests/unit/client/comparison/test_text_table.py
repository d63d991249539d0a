"""The comparison as text at any width."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from mptraining.comparison import Comparison, compare, table

RunIn = Callable[..., Path]


@pytest.fixture
def many(run_in: RunIn) -> Comparison:
    """Twelve runs of several learning rates, the last of which diverged."""
    folders = []
    for at in range(12):
        rate = 10.0**-at
        failed = {"reason": "Diverged", "exit_code": 3, "message": "the loss is NaN at step 7"}
        optimizer = {"className": "Adam", "config": {"learning_rate": rate}}
        metrics = {"loss": 0.5 + at, "val_loss": 0.6 + at, "val_accuracy": 0.8}
        result = {"metrics": metrics} | (failed if at == 11 else {})
        folders.append(run_in(f"learning-rate-{at:02}", result=result, training={"optimizer": optimizer}))
    return compare(list(map(str, folders)))


def drawn(comparison: Comparison, width: int) -> list[str]:
    console = Console(width=10_000, color_system=None)
    with console.capture() as capture:
        console.print(table(comparison, width))
    return capture.get().splitlines()


@pytest.mark.parametrize("width", [60, 120])
def test_many_runs_are_rows_that_fit(many: Comparison, width: int) -> None:
    lines = drawn(many, width)
    assert max(map(len, lines)) <= width
    # No value is cut, and every block names its runs.
    blocks = sum("run" in line.split()[:1] for line in lines)
    assert sum(line.startswith("learning-rate-03") for line in lines) == blocks
    first = next(line for line in lines if line.startswith("learning-rate-11"))
    assert first.split()[:3] == ["learning-rate-11", "1e-11", "Diverged"]
    assert " ".join(lines).count("the same in all: validation accuracy 0.8") == 1
    assert sum(line.startswith("learning-rate-00") for line in drawn(many, 200)) == 1, "wide output is one block"
    text = str(many)
    assert "learning-rate-11" in text
    assert text.endswith("note: learning-rate-11: Diverged: the loss is NaN at step 7")
    assert repr(many).startswith("<Comparison of 12 runs: learning-rate-00, ")


def test_few_runs_are_columns(run_in: RunIn) -> None:
    compared = compare([str(run_in("one", training={"seed": 1})), str(run_in("two", training={"seed": 2}))])
    lines = drawn(compared, 80)
    assert lines[0].split() == ["one", "two"]
    assert ["outcome", "Succeeded", "Succeeded"] in [line.split() for line in lines]
    table_rows = [line.split() for line in lines]
    assert ["seed", "1", "2"] in table_rows
    assert not any(words[:1] == ["strategy"] for words in table_rows), "what is the same is named below"
    assert "strategy Mirrored" in " ".join(lines)


def test_few_runs_with_long_names_are_rows_where_columns_do_not_fit(run_in: RunIn) -> None:
    folders = [str(run_in(f"a-rather-long-name-of-a-run-{at}", training={"seed": at})) for at in range(4)]
    lines = drawn(compare(folders), 60)
    assert max(map(len, lines)) <= 60
    assert lines[0].split()[0] != "a-rather-long-name-of-a-run-0"


def test_best_values_are_green_and_differing_settings_bold(run_in: RunIn) -> None:
    better = run_in("better", result={"metrics": {"val_accuracy": 0.99}}, training={"epochs": 4})
    compared = compare([str(better), str(run_in("plain"))])
    styles = {
        line.plain.split("  ")[0]: {str(span.style) for span in line.spans}
        for line in table(compared, 80).renderables
        if line.plain.split()
    }
    assert "bold green" in styles["validation accuracy"]
    assert "bold green" not in styles["outcome"]
    assert styles["epochs"] == {"bold"}
