"""Every row of tests/golden/specs.yaml through the models, the rules and `resolve`."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from mptraining_api.problems import InvalidSpec
from mptraining_api.resolve.resolve import ClusterSettings, resolve
from mptraining_api.rules.check import check, rules
from mptraining_api.spec import MPTrainingJob

TABLE = yaml.load(
    (Path(__file__).parents[2] / "golden" / "specs.yaml").read_text(encoding="utf-8"), Loader=yaml.CSafeLoader
)
ROWS: list[dict[str, Any]] = TABLE["rows"]


def merged(base: Any, patch: Any) -> Any:
    if not isinstance(base, dict) or not isinstance(patch, dict):
        return patch
    both = base | {key: merged(base.get(key), value) for key, value in patch.items()}
    return {key: value for key, value in both.items() if value is not None}


def document(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "mptraining.dev/v1alpha1",
        "kind": "MPTrainingJob",
        "metadata": {"name": row.get("job", "flowers")},
        "spec": merged(TABLE["bases"][row["base"]], row.get("patch", {})),
    }


@functools.cache
def refusal(number: int, step: str) -> str:
    """Return the row's refusal by the schema's rules or by `resolve`; empty when it is accepted."""
    row = ROWS[number]
    try:
        job = MPTrainingJob.parse(document(row))
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
