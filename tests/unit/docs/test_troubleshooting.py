"""docs/guide/troubleshooting.md: a row for each outcome, with its budget and its exit code."""

from __future__ import annotations

import re

import pytest

from mptraining_api.outcomes import OPERATOR_OUTCOMES, OUTCOMES, Budget, Outcome
from tests.unit.docs.blocks import ROOT

TEXT = (ROOT / "docs" / "guide" / "troubleshooting.md").read_text(encoding="utf-8")
# The letters of the column `Budget`.
_LETTERS = {
    Budget.BACKOFF_LIMIT: "P",
    Budget.INFRASTRUCTURE_RETRIES: "M",
    Budget.NEVER_RETRY: "never",
    Budget.NONE: "",
    Budget.UNDECIDED: "",
}
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in TEXT.splitlines() if line.startswith("| ")]
BUDGETS = {reason: row[2] for row in ROWS if len(row) == 4 for reason in re.findall(r"`(\w+)`", row[0])}


@pytest.mark.parametrize("outcome", [*OUTCOMES[1:], *OPERATOR_OUTCOMES], ids=lambda outcome: outcome.reason)
def test_an_outcome_has_a_row_with_its_budget(outcome: Outcome) -> None:
    assert BUDGETS[outcome.reason] == _LETTERS[outcome.budget]


def test_every_exit_code_of_a_process_has_a_row() -> None:
    section = TEXT.split("\n## Exit codes\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (\d[\d, ]*) \|", section, re.MULTILINE)
    documented = {int(code) for row in rows for code in row.split(",")}
    assert {outcome.exit_code for outcome in OUTCOMES} <= documented
