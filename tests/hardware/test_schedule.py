"""What is measured next, under a budget of time."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hardware.cells import GOAL_ROUNDS, MODELS, POLICIES, SOURCES, STREAMED_MODELS, TWO_MODELS, first_pass, turns
from hardware.machine import COUNTS, Machine
from hardware.results import Results, Round, load, save, without_failures
from hardware.schedule import estimate, goal_rounds, guess, is_useful, left_out, limit, memory_limits, next_turn
from tests.hardware.runs import CPU, GPU, TPU, cell, measured, memory, out_of_memory, results

T4 = replace(GPU, device="Tesla T4", accelerator="nvidia-tesla-t4", capability=7.5)
A100 = replace(GPU, device="NVIDIA A100", accelerator="nvidia-tesla-a100", capability=8.0)
HOUR = 3600.0


def run(found: Results, seconds: float, taking: float = 10.0) -> Results:
    """Measure by the plan; each measurement takes so many seconds."""
    while (turn := next_turn(found, seconds - found.seconds)) is not None:
        found = measured(found, turn.cell, turn.round, taking, examples_per_second=1.0, weights="w")
    return found


def test_the_plan_has_every_policy_model_source_and_number_of_devices() -> None:
    cells = {turn.cell for turn in turns(GPU, "full")}
    speeds = [one for one in cells if one.section == "policies"]
    plain = [one for one in speeds if one.xla and one.source == "synthetic"]
    assert {(one.model, one.policy) for one in plain} == {
        (model, policy)
        for model in MODELS
        for policy in POLICIES
        if model in TWO_MODELS or policy in ("float32", "mixed_float16")
    }
    assert {(one.model, one.policy) for one in speeds if not one.xla} == {
        (model, policy) for model in TWO_MODELS for policy in ("float32", "mixed_float16")
    }
    assert {(one.model, one.policy) for one in speeds if one.source == "streamed"} == {
        (model, policy) for model in STREAMED_MODELS for policy in ("float32", "mixed_float16")
    }
    assert {one.source for one in speeds} == set(SOURCES)
    assert {one.devices for one in cells} == set(COUNTS)
    assert {one.section for one in cells} == {"policies", "overflow", "resume", "determinism", "scaling", "memory"}


def by_guess(machine: Machine, gib: float) -> Results:
    """An hour in which everything takes what the schedule guesses; float32 takes 0.1 GiB an example, others half."""
    found = results(machine)
    while (turn := next_turn(found, HOUR - found.seconds)) is not None:
        one = turn.cell
        seconds = estimate(one, found)
        needed = one.batch * (0.1 if one.policy == "float32" else 0.05)
        outcome = "out of memory" if one.section == "memory" and needed > gib else "measured"
        found = found.with_round(Round(one.key, turn.round, outcome, seconds))
    return found


@pytest.mark.parametrize("count", [1, 8])
@pytest.mark.parametrize("gib", [16, 1e9], ids=["small-memory", "large-memory"])
@pytest.mark.parametrize("machine", [GPU, T4, A100, TPU], ids=["V100", "T4", "A100", "TPU"])
def test_a_whole_pass_with_the_rounds_of_the_goals_fits_into_an_hour(machine: Machine, gib: float, count: int) -> None:
    found = by_guess(replace(machine, count=count), gib)
    assert found.seconds <= HOUR
    assert left_out(found) == []
    assert goal_rounds(found) >= GOAL_ROUNDS
    done = {(one.key, one.number) for one in found.rounds}
    first = [turn for turn in first_pass(found.machine, "full") if not turn.cell.needs]
    assert {(t.cell.key, t.round) for t in first if t.cell.section != "memory"} <= done
    goals = [cell(found, "policies", model="resnet50", policy=p, xla=True) for p in ("float32", first[1].cell.policy)]
    if machine.kind == "gpu" and count == 8:
        goals += [cell(found, "scaling", devices=devices) for devices in (4, 8)]
    assert all(len(found.measured(one)) >= GOAL_ROUNDS for one in goals)


def test_what_does_not_fit_is_left_out_from_the_end() -> None:
    found = run(results(GPU), 600.0, 100.0)
    missing = left_out(found)
    assert cell(found, "policies", model="mlp", source="streamed", policy="float32") in missing
    assert cell(found, "policies", model="resnet50", xla=True, policy="float32") not in missing
    assert not any(one.needs or not is_useful(one, found) for one in missing)


@given(st.integers(1, 1100), st.integers(1, 2200))
def test_the_largest_batch_is_found_to_a_quarter(plain: int, mixed: int) -> None:
    """A process for each batch that is tried: one that runs out of memory may end it."""
    found = results(GPU)
    fits = {"float32": plain, "mixed_float16": mixed}
    cells = dict.fromkeys(turn.cell for turn in found.turns() if turn.cell.section == "memory")
    while one := next((one for one in cells if not found.of(one) and is_useful(one, found)), None):
        found = out_of_memory(found, one) if one.batch > fits[one.policy] else measured(found, one)
    for policy in ("float32", "mixed_float16"):
        largest, full = memory_limits(found, policy)
        assert largest <= fits[policy]
        if full is not None and largest:
            assert fits[policy] < full <= 1.25 * largest
        tried = [one for one in found.rounds if one.key.startswith(f"memory/resnet50/{policy}/")]
        assert len(tried) <= 7
    assert not any(turn.cell.shares_process for turn in found.turns() if turn.cell.section == "memory")


def test_each_cell_and_round_has_one_key() -> None:
    keys = [(turn.cell.key, turn.round) for turn in turns(GPU, "full")]
    assert len(keys) == len(set(keys))


def test_a_short_hour_measures_the_goals_first() -> None:
    found = run(results(CPU), 50.0)
    assert [one.key.split("/")[:3] for one in found.rounds][:3] == [
        ["policies", "resnet50", "float32"],
        ["policies", "resnet50", "mixed_bfloat16"],
        ["overflow", "mlp", "mixed_float16"],
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


@given(st.floats(0, 1000), st.floats(0.5, 6))
def test_the_time_is_kept_once_one_measurement_has_shown_how_long_they_take(seconds: float, factor: float) -> None:
    found = results(CPU)
    while (turn := next_turn(found, seconds - found.seconds)) is not None:
        found = measured(found, turn.cell, turn.round, factor * guess(turn.cell, CPU, "small"))
    # Only the first rests on a guess.
    assert found.seconds <= max(seconds, found.rounds[0].seconds if found.rounds else 0.0) + 1e-6


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
    assert all(later - earlier >= 4 for earlier, later in itertools.pairwise(places))


def test_after_a_batch_that_ran_out_of_memory_larger_ones_are_not_tried() -> None:
    found = results(GPU)
    found = out_of_memory(found, memory(found, "float32", 256))
    done = {one.key for one in run(found, 1e9).rounds}
    assert memory(found, "float32", 512).key not in done
    assert memory(found, "float32", 128).key in done
    assert memory(found, "mixed_float16", 1024).key in done


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
    with pytest.raises(ValueError, match=r"results\.json: not of version 2"):
        load('{"version": 0}', "results.json")
