"""Warning events about pods and Jobs, read in lists that all jobs of a namespace share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from mptraining_api.kubernetes_api import EVENTS, ApiProblem, Resource
from mptraining_operator.plan.snapshot import SeenWarning
from mptraining_operator.watch.warning_events import WarningEvents
from tests.fakes import Clock
from tests.unit.operator.api_objects import raw_event


class Namespace:
    """The events of a namespace, each list of which takes `takes` seconds."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.events: list[Any] = []
        self.takes = 0.1
        self.lists = 0
        self.problem: ApiProblem | None = None

    def pages(
        self, resource: Resource, namespace: str | None, **selectors: str
    ) -> Iterator[tuple[list[msgspec.Raw], int]]:
        assert (resource, namespace, selectors) == (EVENTS, "team", {"fieldSelector": "type=Warning"})
        self.lists += 1
        self.clock.now += self.takes
        if self.problem:
            raise self.problem
        yield [msgspec.Raw(msgspec.json.encode(each)) for each in self.events], 1


@pytest.fixture
def team(clock: Clock) -> Namespace:
    return Namespace(clock)


@pytest.fixture
def warnings(team: Namespace, clock: Clock) -> WarningEvents:
    return WarningEvents(team, clock)  # type: ignore[arg-type]


def test_the_newest_warning_is_the_one_that_was_last_seen(
    team: Namespace, warnings: WarningEvents, clock: Clock
) -> None:
    team.events = [
        raw_event("e1", message="quota", lastTimestamp="2026-01-01T00:00:30Z"),
        # Events of events.k8s.io/v1 have other times.
        raw_event("e2", message="policy", lastTimestamp=None, eventTime="2026-01-01T00:00:31.500000Z"),
        raw_event("e3", message="old", lastTimestamp=None, series={"lastObservedTime": "2026-01-01T00:00:29.0Z"}),
        raw_event("e4", about="another", message="not this", lastTimestamp="2026-01-01T00:01:00Z"),
    ]
    assert warnings.newest("team", "batch-1") == SeenWarning("FailedCreate", "policy", clock.now)
    assert warnings.newest("team", "without-events") == SeenWarning("", "", clock.now)


def test_the_scheduler_s_events_are_old_once_a_pod_has_a_node(team: Namespace, warnings: WarningEvents) -> None:
    team.events = [raw_event(reason="FailedScheduling", message="no machine fits")]
    assert warnings.newest("team", "batch-1").reason == ""


def test_an_event_that_cannot_be_read_hides_no_other(team: Namespace, warnings: WarningEvents) -> None:
    team.events = [raw_event(reason=7), raw_event(message="quota", eventTime=None, lastTimestamp="yesterday")]
    assert warnings.newest("team", "batch-1").message == "quota"


class Test_one_list:
    def test_serves_all_jobs_for_ten_seconds(self, team: Namespace, warnings: WarningEvents, clock: Clock) -> None:
        for number in range(1000):
            warnings.newest("team", f"pod-{number}")
        assert team.lists == 1
        clock.now += 10
        warnings.newest("team", "pod-0")
        assert team.lists == 2

    def test_of_a_slow_api_server_serves_longer(
        self,
        team: Namespace,
        warnings: WarningEvents,
        clock: Clock,
    ) -> None:
        team.takes = 4.6
        began = clock.now
        while clock.now < began + 900:
            warnings.newest("team", "pod-0")
            clock.now += 1
        # A twentieth of the time.
        assert team.lists * team.takes <= 900 / 20 + team.takes

    def test_that_is_refused_is_not_repeated_for_every_job(
        self, team: Namespace, warnings: WarningEvents, clock: Clock
    ) -> None:
        team.problem = ApiProblem(403, "Forbidden", "no")
        assert [warnings.newest("team", uid) for uid in "abc"] == [SeenWarning("", "", clock.now)] * 3
        assert team.lists == 1

    def test_without_an_answer_leaves_the_warnings_of_the_one_before(
        self,
        team: Namespace,
        warnings: WarningEvents,
        clock: Clock,
    ) -> None:
        team.events = [raw_event(message="quota")]
        assert warnings.newest("team", "batch-1").message == "quota"
        clock.now += 10
        team.problem, team.takes = ApiProblem(0, "Timeout", "no answer"), 30
        assert warnings.newest("team", "batch-1").message == "quota"
        team.problem, team.takes, team.events = None, 0.1, [raw_event(message="policy")]
        clock.now += 120
        assert warnings.newest("team", "batch-1").message == "policy"
