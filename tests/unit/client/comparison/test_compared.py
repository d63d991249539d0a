"""Runs side by side, and the comparison as text at any width."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from mptraining.board.sources import folder_source
from mptraining.board.state import Board
from mptraining.comparison import Comparison, compare
from mptraining.comparison.compared import Row, table
from mptraining.comparison.quantities import Better, best
from mptraining.runs import Run, load_run
from mptraining_api.events import Event, Finished, Started
from mptraining_api.problems import InvalidSpec
from mptraining_api.run_folder import events_file

RunIn = Callable[..., Path]


@pytest.fixture
def comparison(run_in: RunIn) -> Comparison:
    fast = {"precision": "mixed_bfloat16", "step_seconds": 0.002, "examples_per_second": 32000.0}
    worse = {"metrics": {"loss": 0.4, "val_loss": 0.7, "val_accuracy": 0.75}}
    return compare([run_in("bf16", result=fast | worse), run_in("plain"), run_in("cut", steps=12, done=False)])


def row(comparison: Comparison, key: str) -> Row:
    return next(each for each in comparison.rows if each.key == key)


def test_labels_grow_until_they_differ(run_in: RunIn, comparison: Comparison) -> None:
    assert comparison.labels == ("bf16", "plain", "cut")
    runs = [str(run_in(name)) for name in ("a/run", "b/run")]
    assert compare(runs).labels == ("a/run", "b/run")
    assert compare([runs[0], runs[0]]).labels == (f"{runs[0]} (1)", f"{runs[0]} (2)")


def test_rows(comparison: Comparison) -> None:
    assert row(comparison, "outcome").texts == ("Succeeded", "Succeeded", "unfinished, step 12")
    assert row(comparison, "val_accuracy") == Row(
        "val_accuracy", "validation accuracy", (0.75, 0.8, 0.8), ("0.75", "0.8", "0.8"), best=(1,), better="higher"
    )
    assert row(comparison, "loss").best == (0,)
    assert row(comparison, "step_seconds").texts == ("2 ms", "4 ms", "-")
    assert row(comparison, "examples_per_second").best == (0,)


def test_speed_counts_from_the_only_run_in_float32_else_from_the_first(run_in: RunIn) -> None:
    bf16 = run_in("bf16", result={"precision": "mixed_bfloat16", "examples_per_second": 32000.0})
    speed = row(compare([str(bf16), str(run_in("plain"))]), "speed")
    assert (speed.title, speed.texts) == ("speed against plain", ("2.00x", "1.00x"))


def test_a_failed_run_is_best_in_nothing(run_in: RunIn) -> None:
    failed = run_in("failed", result={"reason": "Diverged", "exit_code": 3, "seconds": 1.0})
    compared = compare([str(failed), str(run_in("plain"))])
    assert {at for each in compared.rows for at in each.best} <= {1}


def test_a_result_of_an_earlier_attempt_is_not_the_outcome(
    run_in: RunIn, attempt_events: Callable[..., list[Event]]
) -> None:
    folder = run_in("again", steps=10)
    later = attempt_events(steps=12, first=10, attempt=2, begin=9000.0)
    (folder / "events" / "2-c-0-0.jsonl").write_text("".join(f"{each.to_json()}\n" for each in later))
    compared = compare([str(folder)])
    assert row(compared, "outcome").texts == ("unfinished, step 12",)
    assert row(compared, "loss").values == (1 / 12,)


def test_notes_explain_the_numbers(run_in: RunIn, comparison: Comparison) -> None:
    assert comparison.notes == ("bf16: no speed-up to be expected: this CPU has no native bfloat16",)
    big = run_in("big", result={"global_batch_size": 256, "notices": ("slow disk",)})
    half = run_in("half", result={"precision": "mixed_float16"})
    assert compare([str(big), str(half)]).notes == (
        "big: slow disk",
        "half: no speed-up to be expected: a CPU computes float16 more slowly than float32",
        "the runs have different global batch sizes: compare examples/s, not the time per step",
    )


def test_json_is_for_programs(comparison: Comparison) -> None:
    document = json.loads(json.dumps(comparison.to_document()))
    assert (document["runs"][0]["label"], document["runs"][0]["step_seconds"]) == ("bf16", 0.002)
    assert document["runs"][2]["peak_memory_bytes"] is None
    assert document["best"]["val_accuracy"] == ["plain"]
    assert document["notes"] == list(comparison.notes)


def test_a_run_a_folder_and_a_job_can_be_compared(run_in: RunIn) -> None:
    class Job:
        def run(self) -> Run:
            return load_run(str(folder))

    folder = run_in("one")
    compared = compare([load_run(str(folder)), folder, Job()])
    assert row(compared, "outcome").texts == ("Succeeded",) * 3
    # One run need not be in a list; a path is not read letter by letter.
    assert compare(str(folder)).labels == compare(load_run(str(folder))).labels == ("one",)
    with pytest.raises(InvalidSpec, match=r"runs: 3 is no run; expected a folder, a Run or a Job"):
        compare([3])  # type: ignore[list-item]


def test_metrics_can_be_chosen(run_in: RunIn) -> None:
    folder = str(run_in("one"))
    assert [each.key for each in compare([folder], metrics=["loss"]).rows][:2] == ["outcome", "loss"]
    with pytest.raises(InvalidSpec, match=r"metrics=…: no run has 'val_acuracy'. Did you mean 'val_accuracy'"):
        compare([folder], metrics=["val_acuracy"])


def test_runs_are_sorted_with_the_best_first_and_unknown_values_last(run_in: RunIn) -> None:
    low = run_in("low", result={"metrics": {"val_accuracy": 0.2, "loss": 9.0}})
    high = run_in("high", result={"metrics": {"val_accuracy": 0.9, "loss": 1.0}})
    none = run_in("none", steps=0, done=False)
    folders = [str(each) for each in (low, none, high)]
    for column in ("val_accuracy", "validation accuracy", "loss"):
        compared = compare(folders, sort=column)
        assert compared.labels == ("high", "low", "none"), column
        assert [run.folder for run in compared.runs] == [folders[2], folders[0], folders[1]]
        assert row(compared, "val_accuracy").best == (0,)
    with pytest.raises(InvalidSpec, match=r"'sped' is no column of this comparison. Did you mean 'speed'"):
        compare(folders, sort="sped")


def test_a_failure_is_explained(run_in: RunIn) -> None:
    failed = run_in("failed", steps=0, done=False)
    end = ended("InvalidData", 2, time=1000.0, message="no records")
    (failed / events_file(1, "a-b", 0, 0)).write_text(f"{end.to_json()}\n")
    compared = compare([str(failed), str(run_in("plain"))])
    assert row(compared, "outcome").texts == ("InvalidData", "Succeeded")
    assert "failed: InvalidData: no records" in compared.notes
    # A start that failed at once did not take 0 ms.
    assert row(compared, "seconds").texts == ("-", "33 s")


def test_the_last_metrics_are_those_of_the_end(run_in: RunIn, attempt_events: Callable[..., list[Event]]) -> None:
    folder = run_in("script", steps=1, done=False)
    events = [*attempt_events(steps=1), ended(step=40, metrics={"loss": 2e-21})]
    (folder / events_file(1, "a-b", 0, 0)).write_text("".join(f"{event.to_json()}\n" for event in events))
    run = load_run(str(folder))
    assert (run.metrics, run.succeeded) == ({"loss": 2e-21}, True)
    assert run.history.series("loss") == [(1, 1.0), (40, 2e-21)]
    assert row(compare(run), "loss").texts == ("2e-21",)


def ended(reason: str = "Succeeded", exit_code: int = 0, **fields: Any) -> Finished:
    common = {"time": 1060.0, "attempt": 1, "incarnation": "a-b", "worker": 0, "message": ""}
    return Finished(reason=reason, exit_code=exit_code, **(common | fields))


@pytest.mark.parametrize(
    ("values", "direction", "expected"),
    [
        ((1.0, 1.2), "lower", (0,)),
        ((1.0, 1.009), "lower", ()),
        ((1.0, 1.009, 1.02), "lower", (0, 1)),
        ((1.0, 1.97, 2.0), "higher", (2,)),
        ((1.0, 2.0), None, ()),
        ((math.nan, 1.0, 2.0), "lower", (1,)),
        ((None, "x", 2.0), "lower", ()),
        ((-1.0, -2.0), "lower", (1,)),
        ((0.0, 0.0, 5.0), "lower", (0, 1)),
    ],
)
def test_the_best_value_and_its_ties(values: tuple[float, ...], direction: Better, expected: tuple[int, ...]) -> None:
    assert best(values, direction, able=range(len(values))) == expected
    # Only some runs can be best: the first of these has failed.
    assert best([0.0, *values], direction, able=range(1, 1 + len(values))) == tuple(at + 1 for at in expected)


def test_the_board_marks_the_runs_that_the_comparison_marks(run_in: RunIn) -> None:
    results: list[dict[str, Any]] = [
        {"step_seconds": 0.004, "metrics": {"loss": 0.5, "val_accuracy": 0.9}},
        {"step_seconds": 0.002, "metrics": {"loss": 0.7, "val_accuracy": 0.899}},
        {"step_seconds": 0.001, "metrics": {"loss": 0.1, "val_accuracy": 0.99}, "reason": "Diverged", "exit_code": 3},
        {"step_seconds": 0.003, "metrics": {"loss": 0.504, "val_accuracy": 0.7}},
    ]
    folders = [run_in(f"run-{at}", result=result) for at, result in enumerate(results)]
    board = Board([folder_source(str(folders[0].parent))])
    board.refresh()
    marked = {row["name"]: set(row["best"]) for row in board.runs()["runs"]}
    compared = compare(folders).to_document()["best"]
    for key, column in {
        "step_seconds": "stepSeconds",
        "loss": "last:loss",
        "val_accuracy": "last:val_accuracy",
    }.items():
        assert sorted(name for name, keys in marked.items() if column in keys) == compared[key], key


def texts(comparison: Comparison) -> dict[str, tuple[str, ...]]:
    return {each.title: each.texts for each in comparison.rows if each.kind == "setting"}


def differing(comparison: Comparison) -> set[str]:
    return {each.title for each in comparison.rows if each.kind == "setting" and each.differs}


def adam(rate: Any, **config: Any) -> dict[str, Any]:
    return {"optimizer": {"className": "Adam", "config": {"learning_rate": rate, **config}}}


def test_the_named_settings_are_always_there_and_only_what_differs_is_different(run_in: RunIn) -> None:
    one = run_in("one", training=adam(0.01) | {"seed": 7})
    two = run_in("two", training=adam(0.02) | {"seed": 8})
    assert texts(compare([str(one)])) == {
        "precision": ("float32",), "XLA": ("off",), "strategy": ("Mirrored",), "replicas": ("1",),
        "global batch size": ("64",), "accelerator": ("CPU",), "Keras": ("3",), "optimizer": ("Adam",),
        "learning rate": ("0.01",), "epochs": ("5",), "seed": ("7",),
    }  # fmt: skip
    assert differing(compare([str(one), str(two)])) == {"learning rate", "seed"}
    schedule = {"class_name": "CosineDecay", "config": {"initial_learning_rate": 0.1, "decay_steps": 9}}
    assert texts(compare([str(run_in("three", training=adam(schedule)))]))["learning rate"] == ("CosineDecay",)


def test_every_other_field_that_differs_has_a_row(run_in: RunIn) -> None:
    one = run_in("one", training=adam(0.01, beta_1=0.8))
    two = run_in("two", training=adam(0.01) | {"gradientAccumulationSteps": 2, "classWeight": {"1": 3.0}})
    compared = compare([str(one), str(two)])
    assert differing(compared) == {"optimizer", "training.gradientAccumulationSteps"}
    assert texts(compared)["optimizer"] == ("Adam(beta_1=0.8)", "Adam")
    assert texts(compared)["training.gradientAccumulationSteps"] == ("1", "2")
    # A value that only one run has.
    assert texts(compared)["training.classWeight.1"] == ("-", "3")


def test_keras_is_named_alike_by_events_and_results(run_in: RunIn) -> None:
    folders = [run_in("done"), run_in("cut", done=False)]
    for folder in folders:
        path = folder / events_file(1, "a-b", 0, 0)
        started = Started(
            time=1.0, attempt=1, incarnation="a-b", worker=0, strategy="Mirrored", precision="float32",
            keras="keras 3.15.1", tensorflow="2.21.0", devices=("/cpu:0",), workers=1, replicas_in_sync=1,
        )  # fmt: skip
        path.write_text(f"{started.to_json()}\n")
    assert texts(compare([str(each) for each in folders]))["Keras"] == ("3.15.1", "3.15.1")


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
