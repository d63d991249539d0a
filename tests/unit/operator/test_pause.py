"""Pause of single jobs: nothing is planned, one Event says so, and its end queues the job."""

from __future__ import annotations

from typing import Any

import pytest

from mptraining_api.spec import is_paused
from mptraining_operator.pause import Pause
from mptraining_operator.plan.snapshot import Key
from mptraining_operator.watch import parse
from mptraining_operator.watch.cache import Cache
from tests.fakes import Clock
from tests.unit.operator.api_objects import raw_job

KEY = Key("team", "flowers")


def with_annotation(raw: dict[str, Any], value: str | None = "true") -> dict[str, Any]:
    if value is not None:
        raw["metadata"]["annotations"] = {"mptraining.dev/paused": value}
    return raw


class Bench:
    def __init__(self, clock: Clock) -> None:
        self.cache = Cache(clock)
        self.said: list[tuple[Key, str]] = []
        self.pause = Pause(
            "job", "rests", self.cache.stored, lambda key, record: self.said.append((key, record.reason))
        )

    def put(self, raw: dict[str, Any]) -> bool:
        return self.cache.put_job(parse.job(raw))


@pytest.fixture
def bench(clock: Clock) -> Bench:
    return Bench(clock)


@pytest.mark.parametrize(
    ("annotations", "paused"),
    [
        (None, False),
        ({"mptraining.dev/paused": "true"}, True),
        ({"mptraining.dev/paused": "True"}, True),
        ({"mptraining.dev/paused": "false"}, False),
    ],
)
def test_only_the_value_true_pauses(annotations: dict[str, str] | None, paused: bool) -> None:
    assert is_paused(annotations) is paused


def test_a_change_of_the_annotation_queues_the_job(bench: Bench) -> None:
    """An annotation changes neither generation nor spec."""
    assert bench.put(raw_job(version=10))
    assert bench.put(with_annotation(raw_job(version=11)))
    assert not bench.put(with_annotation(raw_job(version=12)))
    assert bench.put(raw_job(version=13))


def test_a_paused_job_is_held_and_reported_once(bench: Bench) -> None:
    bench.put(raw_job(version=10))
    assert not bench.pause.holds(KEY)
    bench.put(with_annotation(raw_job(version=11)))
    assert [bench.pause.holds(KEY) for _ in range(3)] == [True] * 3
    assert bench.said == [(KEY, "Paused")]
    bench.put(raw_job(version=12))
    assert [bench.pause.holds(KEY) for _ in range(3)] == [False] * 3
    assert bench.said == [(KEY, "Paused"), (KEY, "Unpaused")]
