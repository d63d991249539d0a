"""Goals and page from results."""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree

import pytest

from hardware.cells import POLICIES, Cell
from hardware.goals import goals, headline
from hardware.page import page, pictures
from hardware.pictures import bar_chart, line_chart
from hardware.results import Results, Round
from tests.hardware.runs import CPU, GPU, TPU, cell, measured, memory, out_of_memory, results


def verdicts(found: Results) -> dict[str, tuple[str, str]]:
    return {one.claim: (one.measured, one.verdict) for one in goals(found)}


def with_speeds(found: Results, mixed: float) -> Results:
    policy = "mixed_bfloat16" if found.machine.kind == "tpu" else "mixed_float16"
    for number, noise in enumerate((1.0, 0.5, 2.0)):
        found = measured(found, headline(found, "float32"), number, examples_per_second=100 * noise)
        found = measured(found, headline(found, policy), number, examples_per_second=100 * mixed * noise)
    return found


def determinism(found: Results) -> tuple[Cell, Cell]:
    """Return the cells of the rows Never and Always."""
    repeatable = cell(found, "determinism")
    return cell(found, "policies", model="resnet50", policy=repeatable.policy, xla=False), repeatable


@pytest.mark.parametrize(("ratio", "verdict"), [(3.2, "met"), (2.9, "**not met**")])
def test_three_times_on_a_gpu_is_the_median_of_the_rounds_ratios(ratio: float, verdict: str) -> None:
    found = goals(with_speeds(results(GPU), ratio))[0]
    assert (found.measured, found.verdict) == (f"{ratio:.2f}", verdict)
    assert goals(with_speeds(results(GPU), ratio))[1].verdict == "not measured here: needs a TPU"


def test_rounds_that_differ_have_no_ratio() -> None:
    found = results(CPU)
    free, repeatable = determinism(found)
    for number, (ours, theirs) in enumerate(((728.0, 272.0), (217.0, 194.0))):
        found = measured(found, free, number, examples_per_second=ours, weights="w")
        found = measured(found, repeatable, number, examples_per_second=theirs, weights="w")
    assert "| `Always` | 233 (rounds differ: 0.37 to 0.89) | yes |" in page(found, [])


def test_a_ratio_is_that_of_the_two_figures_of_the_row() -> None:
    found = results(CPU)
    free, repeatable = determinism(found)
    found = measured(found, free, 0, examples_per_second=100.0, weights="w")
    found = measured(found, repeatable, 0, examples_per_second=50.0, weights="w")
    assert "| 50 (0.50) |" in page(found, [])
    found = measured(found, repeatable, 1, examples_per_second=150.0, weights="w")
    assert "| 100 (rounds differ: 0.50 to 1.00) |" in page(found, [])


def test_a_goal_is_not_decided_by_rounds_on_both_sides_of_it() -> None:
    found = results(GPU)
    for number, speed in enumerate((200.0, 320.0)):
        found = measured(found, headline(found, "float32"), number, examples_per_second=100.0)
        found = measured(found, headline(found, "mixed_float16"), number, examples_per_second=speed)
    first = goals(found)[0]
    assert (first.measured, first.verdict) == ("rounds differ: 2.00 to 3.20", "not decided: the rounds differ")


def test_a_load_that_was_not_recorded_is_said() -> None:
    found = measured(results(CPU), cell(results(CPU), "resume"), weights="a", straight_weights="a")
    assert "| load average while measuring | load not recorded |" in page(found, [])
    found = measured(found, cell(found, "scaling", devices=2), load=1.5)
    assert "| 1.5 to 1.5; not recorded in 1 measurements |" in page(found, [])


def test_sixty_percent_on_a_tpu() -> None:
    first, second = goals(with_speeds(results(TPU), 1.7))[:2]
    assert first.verdict == "not measured here: needs a GPU with Tensor Cores"
    assert (second.measured, second.verdict) == ("1.70", "met")


def test_twice_the_batch_is_decided_by_the_batches_that_fit() -> None:
    found = results(GPU)
    for policy, batches in (("float32", (64, 128)), ("mixed_float16", (64, 128, 256))):
        for batch in batches:
            found = measured(found, memory(found, policy, batch), memory_bytes=batch * 2**20)
    claim = goals(found)[2].claim
    assert "the largest batch tried" in verdicts(found)[claim][1]
    found = out_of_memory(found, memory(found, "float32", 256))
    assert verdicts(found)[claim] == ("2.00: 256 against 128", "met")
    assert "Under float32 128 fits and 256 does not." in page(found, [])
    assert "out of memory at batch 256" in page(found, [])


def test_scaling_needs_its_gpus() -> None:
    found = results(GPU)
    found = measured(found, headline(found, "mixed_float16"), examples_per_second=100.0)
    found = measured(found, cell(found, "scaling", devices=8), examples_per_second=700.0)
    four, eight = goals(found)[3:5]
    assert four.verdict.startswith("not measured here: left out for lack of time")
    assert (eight.measured, eight.verdict) == ("7.00", "**not met**")
    assert goals(results(CPU))[3].verdict == "not measured here: needs 4 GPUs"


def test_overflow_resume_and_determinism_compare_exactly() -> None:
    found = results(CPU)
    values = {"skipped_steps": 8, "loss_scale": 128.0, "keras_skipped_steps": 8, "keras_loss_scale": 128.0}
    found = measured(found, cell(found, "overflow"), **values)
    found = measured(found, cell(found, "resume"), weights="a", straight_weights="b")
    repeatable = cell(found, "determinism", deterministic=True)
    found = measured(found, repeatable, 0, weights="a")
    assert goals(found)[7].verdict.startswith("not measured here")
    found = measured(found, repeatable, 1, weights="a")
    assert [one.verdict for one in goals(found)[5:]] == ["met", "**not met**", "met"]
    assert goals(found)[5].measured == "8 and 128; Keras 8 and 128"


def test_a_cpus_page_says_so_in_its_first_line() -> None:
    text = page(results(CPU), [])
    first = text.splitlines()[2]
    assert first.startswith(
        "Measured on a CPU: shows that the program works, not what a GPU does. The models are small"
    )
    assert "| accelerator | none |" in text
    assert "needs a GPU" in text
    assert page(results(GPU), []).splitlines()[2] == "Measured on 8 x Tesla V100."


def test_every_table_has_as_many_cells_in_each_row() -> None:
    found = out_of_memory(with_speeds(results(GPU), 3.0), memory(results(GPU), "float32", 512))
    found = found.with_round(Round("policies/mlp/float32", 0, "failed", 1.0, "a | b\nc"))
    for block in page(found, []).split("\n\n"):
        rows = [line for line in block.splitlines() if line.startswith("|")]
        assert len({row.count("|") for row in rows}) <= 1
    assert "| failed | a / b c |" in page(found, [])


def test_pictures_are_drawn_of_what_there_is() -> None:
    found = results(GPU)
    assert pictures(found) == {}
    for policy in ("float32", "mixed_float16"):
        for batch in (64, 128):
            found = measured(found, memory(found, policy, batch), memory_bytes=batch * 2**20)
    found = with_speeds(found, 3.1)
    drawn = pictures(found)
    assert set(drawn) == {"hardware-memory.svg", "hardware-speed.svg"}
    for text in drawn.values():
        ElementTree.fromstring(text)
    assert "mixed_float16, 128: 128" in drawn["hardware-memory.svg"]
    assert "resnet50, mixed_float16: 3.1" in drawn["hardware-speed.svg"]
    assert "pictures/hardware-memory.svg" in page(found, drawn)


@pytest.mark.parametrize("most", [0.003, 1.0, 3.2, 99.0, 100.0, 81_234.0])
def test_nothing_is_drawn_outside_the_picture(most: float) -> None:
    for text in (
        line_chart("t", "x", "y", {"a": [(64, most / 2), (128, most)], "b": [(64, 0.0)]}, "ab"),
        bar_chart("t", "y", {name: dict.fromkeys(POLICIES, most) for name in ("one", "two")}, POLICIES),
    ):
        marks = [
            node.attrib
            for node in ElementTree.fromstring(text).iter()
            if "cy" in node.attrib or "height" in node.attrib
        ]
        heights = [float(one.get("cy", one.get("y", "0"))) for one in marks]
        assert all(30 <= height <= 360 for height in heights)
        assert text.count('class="g"') in range(4, 13)


def small(found: Results) -> Results:
    for number in range(3):
        for policy in ("float32", "mixed_bfloat16"):
            found = measured(found, headline(found, policy), number, examples_per_second=12_800.0)
            found = measured(found, memory(found, policy, 16), number, memory_bytes=2**20)
    return found


def test_small_models_are_not_called_by_the_names_of_large_ones() -> None:
    """Twelve thousand images a second on a CPU are not those of resnet50."""
    found = small(results(CPU)).with_round(Round(cell(results(CPU), "resume").key, 0, "failed", 1.0, "no"))
    text = page(found, [])
    head, tables = text.split("## Policies and XLA")
    assert "a residual net (for resnet50)" in head.split("## Goals")[0]
    assert "| small residual net, batch 16 | on | 12,800 |" in tables
    assert "`resume/small residual net/" in tables
    for name in ("resnet50", "efficientnetb0", "vit", "transformer", "mlp"):
        assert name not in tables
        assert all(name not in picture for picture in pictures(found).values())


def test_small_models_on_a_gpu_decide_no_goal_about_speed() -> None:
    found = replace(results(GPU), scale="small")
    for policy in ("float32", "mixed_float16"):
        found = measured(found, headline(found, policy), examples_per_second=100.0)
    assert goals(found)[0].verdict.startswith("not measured here: needs the models of an accelerator's size")


def test_what_had_no_time_is_listed_and_what_failed_is_not() -> None:
    found = results(GPU)
    found = found.with_round(
        Round(cell(found, "resume").key, 0, "failed", 1.0, "an operation has no deterministic form")
    )
    text = page(found, [])
    listed = text.split("## Left out for lack of time")[1].split("## How")[0]
    assert f"- `{headline(found, 'float32').key}`" in listed
    assert "resume/" not in listed
    assert "tf32" not in listed
    assert "3 more rounds of what decides the goals" in listed
    assert [one.verdict for one in goals(found)[6:]] == [
        "not measured here: a measurement failed, see below",
        "not measured here: left out for lack of time",
    ]
    values = {"examples_per_second": 1.0, "weights": "w", "straight_weights": "w", "memory_bytes": 1}
    values |= {"skipped_steps": 9, "loss_scale": 64.0, "keras_skipped_steps": 9, "keras_loss_scale": 64.0}
    for turn in found.turns():
        if not turn.cell.needs:
            found = measured(found, turn.cell, turn.round, **values)
    assert "Left out" not in page(found, [])
