"""Every pattern of a text field has words, which a message has instead of the pattern, and an example that fits."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from mptraining.job_file.runtimes_file import KnownRuntimes
from mptraining_api.spec import MPTrainingJob
from mptraining_api.sweep.spec import MPTrainingSweep
from mptraining_api.validation import patterns
from mptraining_operator.settings import OperatorSettings
from tests.unit.api.validation.test_mistakes_of_a_job_file import mistakes


def enforced(node: object) -> Iterator[str]:
    """Yield the patterns that pydantic compares texts with, of a core schema."""
    if isinstance(node, dict):
        if node.get("type") == "str" and "pattern" in node:
            yield node["pattern"]
        for each in node.values():
            yield from enforced(each)
    elif isinstance(node, (list, tuple)):
        for each in node:
            yield from enforced(each)


MODELS = (MPTrainingJob, MPTrainingSweep, OperatorSettings, KnownRuntimes)


def test_every_pattern_of_a_field_has_words_and_an_example_that_fits() -> None:
    used = {pattern for model in MODELS for pattern in enforced(model.__pydantic_core_schema__)}
    assert used == set(patterns.EXPECTED)
    for pattern, words in patterns.EXPECTED.items():
        examples = re.findall(r"such as (\S+?)(?=[,;]|$| or )", words)
        # No example for the digest: 64 digits are words enough.
        assert examples or pattern == patterns.SHA256
        assert [example for example in examples if re.fullmatch(pattern, example) is None] == []
        assert pattern not in words


@pytest.mark.parametrize(
    ("field", "line"),
    [
        ("scheduling: {queueName: Team A}",
         "spec.scheduling.queueName: 'Team A' is not valid; expected letters, digits, dashes, dots and underscores, a "
         "letter or digit first and last, such as team-a. Did you mean 'team-a'?"),
        ("podTemplate: {runtimeClassName: G Visor}",
         "spec.podTemplate.runtimeClassName: 'G Visor' is not valid; expected small letters, digits, dashes and dots, "
         "a letter or digit first and last, such as gvisor. Did you mean 'g-visor'?"),
        ("runtime: Team Default",
         "spec.runtime: 'Team Default' is not valid; expected the name of a runtime, of small letters, digits and "
         "dashes, such as team-a; or None. Did you mean 'team-default'?"),
        ("accelerator: {type: cpu, reservation: Team_A}",
         "spec.accelerator.reservation: 'Team_A' is not valid; expected a name of small letters, digits and dashes, a "
         "letter first, such as team-t4, or projects/PROJECT/reservations/NAME. Did you mean 'team-a'?"),
        ("accelerator: {type: a100, partition: half}",
         "spec.accelerator.partition: 'half' is not valid; expected a MIG profile, such as 3g.20gb"),
        ("podTemplate: {initContainers: [{name: Proxy, image: a}]}",
         "spec.podTemplate.initContainers[0].name: 'Proxy' is not valid; expected small letters, digits and dashes, no "
         "dash first or last, such as team-a. Did you mean 'proxy'?"),
    ],
)  # fmt: skip
def test_a_message_has_the_words_and_a_similar_name(field: str, line: str) -> None:
    section, first = field.partition(":")[0], "  accelerator: {type: cpu}\n"
    change = f"  {field}\n" if section == "accelerator" else f"{first}  {field}\n"
    number = 5 if section == "accelerator" else 6
    assert f"job.yaml:{number}: {line}" in mistakes((first, change))
