"""Messages about mistakes; exit code, budget and reason agree."""

from __future__ import annotations

import pytest

from mptraining_api import problems
from mptraining_api.outcomes import OUTCOMES, PROGRAM_FAILED, Budget, Outcome, by_exit_code, by_reason
from mptraining_api.problems import ArgumentPlace, FieldPlace, InvalidSpec, Place, nearest
from mptraining_api.validation.mistakes import InvalidJobFile, Mistake

MODELS = ("VGG16", "VGG19", "ResNet50", "ResNet101", "MobileNetV2", "mse", "MSE")


def test_the_nearest_name_whatever_its_case() -> None:
    # Of two spellings the one that shares more letters.
    meant = {"vgg16": "VGG16", "RESNET_50": "ResNet50", "MobilNetV2": "MobileNetV2", "Mse": "mse", "MSEE": "MSE"}
    assert {word: nearest(word, MODELS) for word in meant} == {w: f"Did you mean {m!r}?" for w, m in meant.items()}
    assert nearest("Val", ["train", "validationFreq", "validation"]) == "Did you mean 'validation'?"
    assert nearest("obj", ["job", "objective"]) == "Did you mean 'objective'?"
    assert nearest("va", ["validation"]) == ""
    assert nearest("nothing", ["demo", "tests", "notes", "points"]) == ""


def test_each_surface_names_the_places_of_a_problem_in_its_own_words() -> None:
    output = ArgumentPlace("output=…", "--run-folder DIR")

    def option(place: Place) -> str | Place:
        return place.option if isinstance(place, ArgumentPlace) else {"spec.data.predict": "RECORDS"}[place.path]

    # The user's own text keeps what looks like an argument or a field.
    folder = InvalidSpec("runs/x", "'output=…'", next_step=("Choose another: ", output, "."))
    records = InvalidSpec("spec.data.predict: gs://b/x", "not spec.data.predict", expected="records")
    assert str(folder) == "runs/x: 'output=…'. Choose another: output=…."
    assert records.place == FieldPlace("spec.data.predict")
    both = InvalidJobFile([Mistake("", None, folder), Mistake("job.yaml", 3, records)]).renamed(option)
    assert str(both).splitlines() == [
        "runs/x: 'output=…'. Choose another: --run-folder DIR.",
        "job.yaml:3: RECORDS: gs://b/x: not spec.data.predict; expected records",
    ]
    assert str(InvalidSpec("spec.data.train", "missing").at("spec.job.data.train")) == "spec.job.data.train: missing"


@pytest.mark.parametrize("outcome", OUTCOMES, ids=lambda outcome: outcome.reason)
def test_a_reason_finds_its_outcome(outcome: Outcome) -> None:
    assert by_reason(outcome.reason) == outcome
    assert by_exit_code(outcome.exit_code).budget == outcome.budget, "one exit code, one budget"


def test_an_exit_code_is_charged_to_one_budget() -> None:
    budgets = {
        0: Budget.NONE, 1: Budget.BACKOFF_LIMIT, 2: Budget.NEVER_RETRY, 3: Budget.NEVER_RETRY,
        75: Budget.INFRASTRUCTURE_RETRIES, 76: Budget.UNDECIDED, 137: Budget.BACKOFF_LIMIT, -9: Budget.BACKOFF_LIMIT,
    }  # fmt: skip
    assert {code: by_exit_code(code).budget for code in budgets} == budgets
    assert by_reason("MeteorStrike") == PROGRAM_FAILED, "a reason of a newer version"


def test_every_problem_has_an_outcome() -> None:
    for problem in problems.Problem.__subclasses__():
        assert by_reason(problem.reason).reason == problem.reason
