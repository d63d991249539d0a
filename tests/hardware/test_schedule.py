"""What is measured next, under a budget of time."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hardware.cells import COUNTS, MODELS, POLICIES, SOURCES, turns
from hardware.results import Results, Round, load, save, without_failures
from hardware.schedule import estimate, limit, next_turn
from tests.hardware.runs import CPU, GPU, TPU, measured, memory, out_of_memory, results


def run(found: Results, seconds: float, taking: float = 10.0) -> Results:
    """Measure by the plan; each measurement takes so many seconds."""
    while (turn := next_turn(found, seconds - found.seconds)) is not None:
        found = measured(found, turn.cell, turn.round, taking, examples_per_second=1.0, weights="w")
    return found


def test_the_plan_has_every_policy_model_source_and_number_of_devices() -> None:
    cells = {turn.cell for turn in turns(GPU, "full")}
    speeds = {(one.model, one.policy, one.xla, one.source) for one in cells if one.section == "policies"}
    assert speeds == {(m, p, x, s) for m in MODELS for p in POLICIES for x in (True, False) for s in SOURCES}
    assert {one.devices for one in cells if one.section == "scaling"} == set(COUNTS)
    assert {one.section for one in cells} == {"policies", "overflow", "resume", "determinism", "scaling", "memory"}


def test_each_cell_and_round_has_one_key() -> None:
    keys = [(turn.cell.key, turn.round) for turn in turns(GPU, "full")]
    assert len(keys) == len(set(keys))


def test_a_short_hour_measures_the_goals_first() -> None:
    found = run(results(CPU), 30.0)
    assert [one.key.split("/")[:3] for one in found.rounds] == [
        ["policies", "resnet50", "float32"],
        ["policies", "resnet50", "mixed_bfloat16"],
        ["policies", "resnet50", "mixed_float16"],
    ]


def test_what_the_machine_lacks_is_named_and_never_started() -> None:
    needs = {(turn.cell.policy, turn.cell.needs) for turn in turns(GPU, "full") if turn.cell.section == "policies"}
    assert ("tf32", "needs compute capability 8.0, and this GPU has 7.0") in needs
    assert ("mixed_float16", None) in needs
    assert ("mixed_float16", "float16: needs a GPU") in {(t.cell.policy, t.cell.needs) for t in turns(TPU, "full")}
    assert {turn.cell.needs for turn in turns(CPU, "small") if turn.cell.policy == "tf32"} == {"needs a GPU"}
    assert {t.cell.needs for t in turns(CPU, "small") if t.cell.devices == 4} == {
        "needs 4 GPUs, and this machine has 0"
    }
    two = replace(GPU, count=2)
    assert {t.cell.needs for t in turns(two, "full") if t.cell.devices == 4} == {"needs 4 GPUs, and this machine has 2"}
    assert not any("tf32" in one.key for one in run(results(GPU), 1e9).rounds)


@given(st.floats(0, 1000), st.floats(5, 60))
def test_the_time_is_kept_once_one_measurement_has_shown_how_long_they_take(seconds: float, taking: float) -> None:
    found = run(results(CPU), seconds, taking)
    # Only the first rests on a guess, and cells of several processes take as long as the others here.
    assert found.seconds <= max(seconds, taking)


@given(st.integers(0, 30))
def test_a_run_that_was_killed_continues_as_if_it_had_not_been(stopped_after: int) -> None:
    whole = run(results(CPU), 400.0)
    part = replace(whole, rounds=whole.rounds[:stopped_after])
    assert run(part, 400.0) == whole


def test_rounds_of_the_goals_are_apart_in_time() -> None:
    keys = [one.key for one in run(results(GPU), 1e9).rounds]
    headline = keys[0]
    places = [place for place, key in enumerate(keys) if key == headline]
    assert len(places) == 7
    assert places[1] - places[0] > 50


def test_after_a_batch_that_ran_out_of_memory_larger_ones_are_not_tried() -> None:
    found = results(GPU)
    found = out_of_memory(found, memory(found, "float32", 256))
    done = {one.key for one in run(found, 1e9).rounds}
    assert memory(found, "float32", 512).key not in done
    assert memory(found, "float32", 128).key in done
    assert memory(found, "mixed_float16", 2048).key in done


def test_a_cell_that_failed_gets_no_further_round_until_failures_are_retried() -> None:
    found = results(CPU)
    first = next_turn(found, 1e9)
    assert first is not None
    found = found.with_round(Round(first.cell.key, 0, "failed", 5.0, "it broke"))
    assert sum(one.key == first.cell.key for one in run(found, 1e9).rounds) == 1
    assert next_turn(without_failures(found), 1e9) == first


def test_estimates_follow_the_machine_and_a_hanging_process_is_ended() -> None:
    found = results(CPU)
    turn = next_turn(found, 1e9)
    assert turn is not None
    other = memory(found, "float32", 16)
    before = estimate(other, found)
    found = measured(found, turn.cell, seconds=3 * estimate(turn.cell, found))
    assert estimate(other, found) == pytest.approx(3 * before)
    assert limit(other, found) >= 180.0


def test_the_file_is_written_whole_and_read_back(tmp_path: object) -> None:
    from pathlib import Path

    file = Path(str(tmp_path), "deep", "results.json")
    found = run(results(CPU), 50.0)
    save(found, file)
    assert load(file.read_text(), "results.json") == found
    assert [path.name for path in file.parent.iterdir()] == ["results.json"]
    with pytest.raises(ValueError, match=r"results\.json: not of version 1"):
        load('{"version": 0}', "results.json")
