"""The rules as objects; their refusals are in tests/golden/specs.yaml."""

from __future__ import annotations

from typing import Any

import pytest

from mptraining_api.problems import InvalidSpec
from mptraining_api.rules.check import check, rules, violations
from mptraining_api.spec import MPTrainingJob


def job(**spec: Any) -> MPTrainingJob:
    base = {
        "accelerator": {"type": "cpu"},
        "program": {"application": {"name": "mlp"}},
        "data": {"train": ["x.tfrecord"]},
    }
    return MPTrainingJob.parse({"metadata": {"name": "digits"}, "spec": base | spec})


def test_all_violations_are_found_and_check_raises_the_first() -> None:
    assert violations(job()) == []
    check(job())
    found = violations(job(training={"epochs": 3, "totalSteps": 50}, profile={"firstStep": 9, "lastStep": 1}))
    assert [problem.where for problem in found] == ["spec.training.totalSteps", "spec.profile.lastStep"]
    line = "spec.training.totalSteps: 50; expected at most one of epochs and totalSteps. Keep one."
    assert str(found[0]) == line
    with pytest.raises(InvalidSpec) as caught:
        check(job(training={"epochs": 3, "totalSteps": 50}))
    assert str(caught.value) == line


@pytest.mark.parametrize(
    ("spec", "found"),
    [
        ({"accelerator": {"type": "v5e"}}, "missing"),
        ({"training": {"batchSize": {}}}, "empty"),
        ({"training": {"batchSize": {"perReplica": 8, "global": 8}}}, "has perReplica, global"),
        ({"source": {"requirements": "/" + "r" * 77}}, f"'/{'r' * 77}'"),
        ({"source": {"requirements": "/" + "r" * 78}}, f"'/{'r' * 75}..."),
    ],
)
def test_a_violation_shows_the_value_in_at_most_80_characters(spec: dict[str, Any], found: str) -> None:
    (problem,) = violations(job(**spec))
    assert str(problem).startswith(f"{problem.where}: {found}; expected ")


@pytest.mark.parametrize(
    ("spec", "line"),
    [
        ({"podTemplate": {"initContainers": [{"name": "a", "image": "a"}, {"name": "a", "image": "b"}]}},
         "spec.podTemplate.initContainers[1].name: 'a'; expected every name once"),
        ({"podTemplate": {"initContainers": [{"name": "a", "image": "a"}, {"name": "trainer", "image": "b"}]}},
         "spec.podTemplate.initContainers[1].name: 'trainer'; expected another name than trainer"),
        ({"podTemplate": {"env": [{"name": "A"}, {"name": "TF_CONFIG"}]}},
         "spec.podTemplate.env[1].name: 'TF_CONFIG'; expected other variables"),
        ({"podTemplate": {"volumes": [{"name": "a", "emptyDir": {}}, {"name": "b", "nfs": {}}]}},
         "spec.podTemplate.volumes[1]: {'name': 'b', 'nfs': {}}; expected one of"),
        ({"data": {"train": ["x"], "features": [{"name": "x", "dtype": "int8"}, {"name": "x", "dtype": "int8"}]}},
         "spec.data.features[1].name: 'x'; expected every name once"),
        ({"data": {"train": ["x"], "features": [
            {"name": "x", "dtype": "int8", "shape": [0], "lengthName": "n"},
            {"name": "y", "dtype": "int8", "shape": [0], "lengthName": "n"}]}},
         "spec.data.features[1].lengthName: 'n'; expected every name once"),
    ],
)  # fmt: skip
def test_a_violation_in_a_list_shows_the_part_that_is_wrong(spec: dict[str, Any], line: str) -> None:
    (problem,) = violations(job(**spec))
    assert str(problem).startswith(line)


def test_every_machine_is_left_a_time() -> None:
    others = [{"type": "l4"}, {"type": "t4"}]
    accelerator = {"type": "a100", "tryForSeconds": 900, "alternatives": others}
    (problem,) = violations(job(accelerator=accelerator))
    assert str(problem).startswith("spec.accelerator.tryForSeconds: 900; expected less than runPolicy.pendingTimeout")
    assert violations(job(accelerator={**accelerator, "tryForSeconds": 899})) == []


def test_a_rule_reads_as_a_sentence_and_fits_the_api_server() -> None:
    for rule in rules():
        assert not rule.expected.endswith("."), rule
        assert rule.next_step.endswith("."), rule
        assert len(rule.text) <= 2048, rule
        assert "\n" not in rule.text, rule
        assert rule.at == "" or rule.field.startswith(rule.at), rule


def test_the_transition_rule_names_every_field_but_the_mutable_ones() -> None:
    transitions = {rule.field: rule for rule in rules() if "oldSelf" in (rule.cel or "")}
    assert set(transitions) == {"spec", "spec.managedBy"}
    assert {rule.at for rule in transitions.values()} == {""}, (
        "a rule on a subtree is bypassed by removing and adding it"
    )
    cel = transitions["spec"].cel or ""
    assert "runPolicy.backoffLimit" in cel
    assert "checkpoint.everySteps" in cel
    for mutable in ("suspend", "activeDeadlineSeconds", "ttlSecondsAfterFinished", "maxToKeep"):
        assert mutable not in cel
    for field in ("accelerator", "workers", "program", "data", "training", "output", "podTemplate"):
        assert f"self.spec.{field} == oldSelf.spec.{field}" in cel
