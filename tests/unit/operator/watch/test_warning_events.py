"""Warning events about pods and Jobs, read in lists that all jobs of a namespace share."""

from __future__ import annotations

from typing import Any

import pytest

from mptraining_api.kubernetes_api import EVENTS, ApiProblem
from mptraining_operator.jobs.plan.snapshot import SeenWarning
from mptraining_operator.jobs.watch.warning_events import WarningEvents
from tests.fakes import Clock
from tests.unit.operator.api_objects import raw_event


class Namespace:
    """The events of a namespace, each list of which takes `takes` seconds."""

    def __init__(self, api: Any, clock: Clock) -> None:
        self.api, self.clock, self.takes = api, clock, 0.1
        self.warnings = WarningEvents(api, clock)
        api.before = self._take

    def _take(self, verb: str, plural: str, name: str) -> None:
        self.clock.now += self.takes

    def put(self, *events: dict[str, Any]) -> None:
        for event in events:
            self.api.put(EVENTS, event)

    def newest(self, uid: str = "batch-1") -> SeenWarning:
        return self.warnings.newest("team", uid)

    @property
    def lists(self) -> int:
        return len(self.api.calls)


@pytest.fixture
def team(api: Any, clock: Clock) -> Namespace:
    return Namespace(api, clock)


def test_the_newest_warning_is_the_one_that_was_last_seen(team: Namespace, clock: Clock) -> None:
    team.put(
        raw_event("e1", message="quota", lastTimestamp="2026-01-01T00:00:30Z"),
        # Events of events.k8s.io/v1 have other times.
        raw_event("e2", message="policy", lastTimestamp=None, eventTime="2026-01-01T00:00:31.500000Z"),
        raw_event("e3", message="old", lastTimestamp=None, series={"lastObservedTime": "2026-01-01T00:00:29.0Z"}),
        raw_event("e4", about="another", message="not this", lastTimestamp="2026-01-01T00:01:00Z"),
        # It cannot be read, and hides no other.
        raw_event("e5", reason=7),
        # The scheduler's events are old once a pod has a node.
        raw_event("e6", about="placed", reason="FailedScheduling", message="no machine fits"),
    )
    assert team.newest() == SeenWarning("FailedCreate", "policy", clock.now)
    assert team.newest("without-events") == team.newest("placed") == SeenWarning("", "", clock.now)


def test_one_list_serves_all_jobs_for_ten_seconds(team: Namespace, clock: Clock) -> None:
    for number in range(1000):
        team.newest(f"pod-{number}")
    assert team.lists == 1
    clock.now += 10
    team.newest("pod-0")
    assert team.lists == 2


def test_a_list_of_a_slow_api_server_serves_longer(team: Namespace, clock: Clock) -> None:
    team.takes = 4.6
    began = clock.now
    while clock.now < began + 900:
        team.newest()
        clock.now += 1
    # A twentieth of the time.
    assert team.lists * team.takes <= 900 / 20 + team.takes


def test_a_list_that_is_refused_is_not_repeated_for_every_job(team: Namespace, api: Any, clock: Clock) -> None:
    api.refuse("list", EVENTS, ApiProblem(403, "Forbidden", "no"))
    assert [team.newest(uid) for uid in "abc"] == [SeenWarning("", "", clock.now)] * 3
    assert team.lists == 1


def test_without_an_answer_the_warnings_of_the_list_before_serve(team: Namespace, api: Any, clock: Clock) -> None:
    team.put(raw_event(message="quota", eventTime=None, lastTimestamp="yesterday"))
    assert team.newest().message == "quota"
    clock.now += 10
    team.takes = 30
    api.refuse("list", EVENTS, ApiProblem(0, "Timeout", "no answer"))
    assert team.newest().message == "quota"
    team.put(raw_event(message="policy"))
    clock.now += 120
    assert team.newest().message == "policy"
