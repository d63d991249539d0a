"""Every row of tests/golden/specs.yaml through the models, the rules and `resolve`."""

from __future__ import annotations

import functools
import re

import pytest

from mptraining_api.problems import InvalidSpec
from mptraining_api.resolve.resolve import ClusterSettings, resolve
from mptraining_api.rules.check import check, rules
from mptraining_api.spec import MPTrainingJob
from tests.specs import ROWS, document_of


@functools.cache
def refusal(number: int, step: str) -> str:
    """Return the row's refusal by the schema's rules or by `resolve`; empty when it is accepted."""
    row = ROWS[number]
    try:
        job = MPTrainingJob.parse(document_of(row))
        check(job)
        if step == "resolve":
            resolve(job, ClusterSettings(**row.get("settings", {})))
    except InvalidSpec as problem:
        return str(problem)
    return ""


@pytest.mark.parametrize("number", range(len(ROWS)), ids=[row["name"] for row in ROWS])
def test_the_rules_and_resolve_agree_with_the_table(number: int) -> None:
    row = ROWS[number]
    refused = "schema" if row["schema"] != "valid" else "resolve" if row["resolve"] != "valid" else None
    assert refusal(number, "schema") == "" or refused == "schema"
    if refused is None:
        assert refusal(number, "resolve") == ""
    else:
        assert row["message"] in refusal(number, refused)
        assert refusal(number, refused)


def test_every_rule_is_broken_by_some_row_with_a_message_for_people() -> None:
    """Except the transition rules, which a single object cannot break. No message has a model as Python writes it."""
    said = [refusal(number, step) for number in range(len(ROWS)) for step in ("schema", "resolve")]
    assert [text for text in said if re.search(r"[A-Z]\w+\(|\w=None|\w='|<[A-Z]\w+\.", text)] == []
    unbroken = [rule.expected for rule in rules() if not any(rule.expected in text for text in said)]
    assert unbroken == [
        "no change after the job has started, except of runPolicy.suspend, runPolicy.activeDeadlineSeconds, "
        "runPolicy.ttlSecondsAfterFinished, checkpoint.maxToKeep",
        "no change",
    ]
    names = [row["name"] for row in ROWS]
    assert len(names) == len(set(names))
