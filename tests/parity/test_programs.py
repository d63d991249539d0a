"""The programs that the bench generates, and its comparison; the trainings are in test_bench."""

from __future__ import annotations

import ast
import dataclasses
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given

from parity.comparison.bounds import ONE, TWO, bound
from parity.comparison.compare import compare, reason
from parity.programs.named import named_programs
from parity.programs.program import Program, problem
from parity.programs.source import source
from parity.programs.strategies import contains, drawn, programs, simplest
from parity.results import Results, report
from parity.training.environment import Numbers

PLAIN = Program()
REFERENCE = Numbers((np.ones((2, 2), np.float32),), ({"loss": 1.0, "val_loss": 2.0},))


@given(programs())
def test_every_program_is_one_and_is_source(program: Program) -> None:
    assert problem(program) is None
    ast.parse(source(program))
    assert Program.from_json(program.to_json()) == program


def test_the_same_seed_draws_the_same_programs() -> None:
    first, again, other = drawn(12, 3), drawn(12, 3), drawn(12, 4)
    assert first == again
    assert first != other
    assert len({program.key for program in first}) == 12
    assert {program.generation for program in first} == {"Keras3", "Legacy"}


def test_a_difference_shrinks_to_the_choices_that_it_needs() -> None:
    large = next(program for program in drawn(12, 6) if program.ema != "none" and program.metrics)
    asked = []

    def differs(program: Program) -> bool:
        asked.append(program)
        return program.ema == large.ema and program.metrics == large.metrics

    simple = simplest(large, differs)
    assert (simple.ema, simple.metrics) == (large.ema, large.metrics)
    assert (simple.optimizer, simple.extras, simple.callbacks) == ("SGD", (), ())
    assert len(asked) == len(set(asked)) < 80
    assert contains(large, simple)
    assert not contains(PLAIN, simple)


def test_named_cases_are_programs_of_both_generations() -> None:
    found = named_programs()
    assert {program.generation for program in found} == {"Keras3", "Legacy"}
    assert len({program.key for program in found}) == len(found) >= 32


def test_one_replica_in_float32_has_the_weights_of_keras_to_the_last_bit() -> None:
    assert bound(PLAIN, ONE).weights == 0.0
    changed = Numbers((REFERENCE.weights[0] + np.float32(1e-6),), REFERENCE.epochs)
    assert compare(PLAIN, ONE, REFERENCE, REFERENCE).verdict == "equal"
    assert compare(PLAIN, ONE, REFERENCE, changed).verdict == "different"
    assert compare(PLAIN, TWO, REFERENCE, changed).verdict == "equal"


@pytest.mark.parametrize(
    ("epochs", "said"),
    [
        (({"loss": 1.0},), "reports no val_loss"),
        (({"loss": 1.0, "val_loss": 2.0, "more": 1.0},), "reports more"),
        (({"loss": 1.1, "val_loss": 2.0},), "loss of epoch 1: 1.1, 1 in Keras"),
        (({"loss": 1.0, "val_loss": float("nan")},), "val_loss of epoch 1"),
        ((), "0 epochs are reported, 1 by Keras"),
    ],
)
def test_metrics_that_differ_are_named(epochs: tuple[dict[str, float], ...], said: str) -> None:
    found = compare(PLAIN, ONE, REFERENCE, Numbers(REFERENCE.weights, epochs))
    assert found.verdict == "different"
    assert said in found.what


def test_weights_that_differ_in_number_shape_or_finiteness_are_different() -> None:
    for weights in ((), (np.ones((2, 3)),), (np.full((2, 2), np.nan),)):
        assert compare(PLAIN, ONE, REFERENCE, Numbers(weights, REFERENCE.epochs)).verdict == "different"


def test_a_refusal_is_no_difference_and_any_other_end_is() -> None:
    refused = compare(PLAIN, ONE, REFERENCE, Numbers(refused="InvalidProgram: spec.program: 2 of parity_0123456789ab"))
    assert refused.verdict == "refused"
    raised = "InvalidProgram: spec.program: parity_0123456789ab:build raised ValueError: no"
    assert compare(PLAIN, ONE, REFERENCE, Numbers(refused=raised)).verdict == "different"
    assert reason(refused.what) == "InvalidProgram: spec.program: N of PROGRAM"
    assert compare(PLAIN, ONE, REFERENCE, Numbers(failed="ValueError: no")).verdict == "different"
    assert compare(PLAIN, ONE, Numbers(failed="TypeError: no"), REFERENCE).verdict == "no program"


def test_results_are_kept_for_the_sources_they_are_of(tmp_path: Path) -> None:
    file = tmp_path / "results.jsonl"
    answer = {"compared": [compare(PLAIN, ONE, REFERENCE, Numbers(failed="ValueError: no")).to_document()]}
    kept = Results(file, "one").add(PLAIN, answer, workers=False)
    with file.open("a") as cut:
        cut.write('{"sources": "one", "prog')
    assert Results(file, "one").get(PLAIN, workers=False) == kept
    assert Results(file, "one").get(PLAIN, workers=True) is None
    assert Results(file, "one").get(dataclasses.replace(PLAIN, ema="ema"), workers=False) is None
    assert Results(file, "two").get(PLAIN, workers=False) is None
    assert "1 replica: 1 different" in report([kept])
