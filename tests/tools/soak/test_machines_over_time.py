"""The verdict on machines that come and go on the real scheduler, without servers."""

from __future__ import annotations

from typing import Any

import pytest

from tests.operator.plan.machine_patterns import ACCELERATOR
from tests.soak.machines_over_time import SCALE, Ran, complaints, scaled, table

PATTERN = "an L4 comes late"
EXPECTED = {
    PATTERN: {
        "attempts": [
            "0 to 300: nvidia-tesla-a100 (machine 0), mixed_float16: NoCapacity",
            "305 to 3330: nvidia-l4 (machine 1), mixed_float16: Succeeded",
        ],
        "phase": "Succeeded",
        "seconds without training": 330,
        "infrastructureRestarts": 0,
        "applicationFailures": 0,
    }
}


def ran(waited: float = 23.0, outcome: str = "Succeeded", **status: Any) -> dict[str, Ran]:
    attempts = [
        {"accelerator": "nvidia-tesla-a100", "precision": "mixed_float16", "outcome": "NoCapacity"},
        {"accelerator": "nvidia-l4", "machine": 1, "precision": "mixed_float16", "outcome": outcome},
    ]
    counters = {"infrastructureRestarts": 0, "applicationFailures": 0}
    return {PATTERN: Ran({"phase": "Succeeded", "attempts": attempts, **counters, **status}, waited)}


def test_a_job_that_ran_as_in_the_table_is_accepted() -> None:
    assert complaints(ran(), EXPECTED) == []
    assert f"| {PATTERN} | nvidia-l4: Succeeded | 2 | 23.0 | 22.0 |" in table(ran(), EXPECTED)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (ran(outcome="Preempted"), "nvidia-l4 (machine 1), mixed_float16: Preempted"),
        (ran(phase="Failed"), "phase Failed, the table has Succeeded"),
        (ran(infrastructureRestarts=1), "infrastructureRestarts 1, the table has 0"),
        (ran(waited=12.0), "12.0 s without training, the table has 22.0 s"),
        (ran(waited=40.0), "40.0 s without training, the table has 22.0 s"),
    ],
)
def test_what_differs_is_named(found: dict[str, Ran], words: str) -> None:
    (said,) = complaints(found, EXPECTED)
    assert said.startswith(PATTERN)
    assert words in said


def test_the_machines_are_those_of_the_table_in_less_time() -> None:
    found = scaled(ACCELERATOR)
    assert found["tryForSeconds"] == round(300 * SCALE)
    assert [each.get("tryForSeconds") for each in found["alternatives"]] == [20, None, 40]
    assert [each["type"] for each in found["alternatives"]] == ["nvidia-l4", "nvidia-tesla-t4", "cpu"]
