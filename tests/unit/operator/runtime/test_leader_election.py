"""Leader election: a table of observed leases, and never two leaders whatever their clocks show."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mptraining_api.kubernetes_api import LEASES, ApiProblem, Resource
from mptraining_operator.runtime.leader_election import (
    LeaseAction,
    LeaseKeeper,
    NotLeading,
    ObservedLease,
    Term,
    next_action,
    observe,
    request_seconds,
)
from mptraining_operator.settings import Identity, LeaseSettings
from tests.fakes import Clock
from tests.unit.operator.conftest import FakeCluster

SETTINGS = LeaseSettings(duration_seconds=10, renew_seconds=2.0)


def seen(holder: str, changed: float, duration: float = 10) -> ObservedLease:
    return ObservedLease(holder, duration, "1", changed)


@pytest.mark.parametrize(
    ("lease", "now", "move"),
    [
        (None, 0, LeaseAction.CREATE),
        (seen("me", 0), 5, LeaseAction.RENEW),
        (seen("me", 0), 500, LeaseAction.RENEW),
        (seen("", 0), 0, LeaseAction.TAKE),
        (seen("other", 0), 0, LeaseAction.WAIT),
        (seen("other", 0), 9.9, LeaseAction.WAIT),
        (seen("other", 0), 10, LeaseAction.TAKE),
        # Its holder runs with a longer duration than this replica, or a shorter one.
        (seen("other", 0, duration=30), 12, LeaseAction.WAIT),
        (seen("other", 0, duration=1), 5, LeaseAction.WAIT),
    ],
)
def test_what_to_do(lease: ObservedLease | None, now: float, move: LeaseAction) -> None:
    assert next_action(lease, "me", now, 10) == move


def test_only_the_local_clock_counts() -> None:
    raw = {
        "metadata": {"resourceVersion": "7"},
        "spec": {"holderIdentity": "other", "leaseDurationSeconds": 10, "renewTime": "1999-01-01T00:00:00.000000Z"},
    }
    first = observe(None, raw, 100.0)
    assert (first.holder, first.changed) == ("other", 100.0)
    assert observe(first, raw, 105.0).changed == 100.0
    raw["metadata"]["resourceVersion"] = "8"
    assert observe(first, raw, 106.0).changed == 106.0


def may_write(term: Term) -> bool:
    try:
        term.check()
    except NotLeading:
        return False
    return True


class Leases(FakeCluster):
    """`fails`: calls have no effect (before), or take effect without a response (after)."""

    fails = ""

    def put(self, resource: Resource, raw: dict[str, Any]) -> dict[str, Any]:
        stored = super().put(resource, raw)
        self._answer("after")
        return stored

    def _call(self, verb: str, resource: Resource, name: str) -> None:
        super()._call(verb, resource, name)
        self._answer("before")

    def _answer(self, when: str) -> None:
        if self.fails == when:
            raise ApiProblem(0, "NoAnswer", "timed out")


class Replica:
    """One replica's election without its thread: its terms, and the causes of their ends."""

    def __init__(
        self,
        api: Any,
        name: str,
        clock: Any,
        *,
        settings: LeaseSettings = SETTINGS,
        wall: Callable[[], float] = lambda: 1.8e9,
        on_lost: Callable[[str], None] | None = None,
    ) -> None:
        self.terms: list[Term] = []
        self.causes: list[str] = []
        self.keeper = LeaseKeeper(
            api,
            Identity(name=name, namespace="ops"),
            settings,
            monotonic=clock,
            wall=wall,
            on_started=self.terms.append,
            on_lost=on_lost or self.causes.append,
        )

    def turn(self) -> None:
        self.keeper.turn()

    @property
    def leading(self) -> bool:
        return self.keeper.leading

    @property
    def may_write(self) -> list[bool]:
        """Whether each of its terms may write, in their order."""
        return [may_write(term) for term in self.terms]


def test_the_first_leads_and_renews_and_a_second_waits(api: Any, clock: Clock) -> None:
    a, b = Replica(api, "a", clock), Replica(api, "b", clock)
    for _ in range(20):
        a.turn()
        b.turn()
        clock.now += 2
        assert (a.leading, b.leading) == (True, False)
    spec = api.find(LEASES, "ops", SETTINGS.name)["spec"]
    assert (spec["holderIdentity"], spec["leaseDurationSeconds"], spec["leaseTransitions"]) == ("a", 10, 0)
    assert spec["renewTime"].endswith("Z")


def test_of_two_that_take_it_one_gets_it(api: Any, clock: Clock) -> None:
    a, b, c = (Replica(api, name, clock) for name in "abc")
    for replica in (a, b, c):
        replica.turn()
    clock.now += 20

    def both_read(verb: str, plural: str, name: str) -> None:
        if verb == "update":
            api.before = lambda *call: None
            b.turn()

    api.before = both_read
    c.turn()
    assert (b.leading, c.leading) == (True, False)


def test_a_leader_with_an_old_version_reads_and_renews_at_once(api: Any, clock: Clock) -> None:
    a = Replica(api, "a", clock)
    a.turn()
    # Its own write arrived and the response did not; or another client added an annotation.
    api.put(LEASES, api.find(LEASES, "ops", SETTINGS.name))
    clock.now += 7
    api.calls.clear()
    a.turn()
    assert [verb for verb, _, _ in api.calls] == ["update", "get", "update"]
    clock.now += 7
    assert (a.may_write, a.causes) == ([True], [])


def test_a_leader_creates_a_deleted_lease_again(api: Any, clock: Clock) -> None:
    a, b = Replica(api, "a", clock), Replica(api, "b", clock)
    a.turn()
    api.objects.clear()
    a.turn()
    b.turn()
    assert (a.may_write, a.causes, b.leading) == ([True], [], False)
    assert api.find(LEASES, "ops", SETTINGS.name)["spec"]["holderIdentity"] == "a"
    # Another replica was faster.
    api.objects.clear()
    b.turn()
    a.turn()
    assert (a.causes, b.leading) == (["another replica holds the lease"], True)


@given(
    st.lists(
        st.tuples(
            st.sampled_from("abc"), st.sampled_from((0.5, 1.0, 2.0, 5.0)), st.sampled_from(("", "before", "after"))
        ),
        max_size=60,
    ),
    st.tuples(*[st.floats(-1e6, 1e6) for _ in range(3)]),
)
def test_never_two_leaders(steps: list[tuple[str, float, str]], offsets: tuple[float, float, float]) -> None:
    api, true_time = Leases(), [1e7]

    def replica(name: str, offset: float) -> Replica:
        return Replica(api, name, lambda: true_time[0] + offset, wall=lambda: true_time[0] + 1e9 - offset)

    replicas = {name: replica(name, offset) for name, offset in zip("abc", offsets, strict=True)}
    for name, seconds, fails in steps:
        true_time[0] += seconds
        api.fails = fails
        replicas[name].turn()
        assert sum(sum(replica.may_write) for replica in replicas.values()) <= 1


@pytest.mark.parametrize("applied", [False, True])
def test_one_renewal_without_a_response_ends_no_term(api: Any, clock: Clock, applied: bool) -> None:
    """Also if it took effect: the next one finds a newer version, reads it and renews."""
    a = Replica(api, "a", clock)
    clock.now += a.keeper.turn()

    def times_out(verb: str, plural: str, name: str) -> None:
        if verb == "update":
            api.before = lambda *call: None
            clock.now += request_seconds(SETTINGS)
            if applied:
                api.put(LEASES, api.find(LEASES, "ops", SETTINGS.name))
            raise ApiProblem(0, "NoAnswer", "Read timed out")

    api.before = times_out
    clock.now += a.keeper.turn()
    assert a.leading
    clock.now += a.keeper.turn()
    assert (a.leading, len(a.terms), a.causes) == (True, 1, [])
    b = Replica(api, "b", clock)
    b.turn()
    assert not b.leading


@pytest.mark.parametrize(("duration", "renew"), [(3, 1.2), (3, 0.1), (10, 2), (10, 4), (60, 0.5)])
def test_two_requests_and_the_waits_between_them_fit_into_a_term(duration: int, renew: float) -> None:
    settings = LeaseSettings(duration_seconds=duration, renew_seconds=renew)
    seconds = request_seconds(settings)
    assert seconds >= 0.15 * duration
    assert renew + seconds + 0.05 * duration + seconds <= 0.8 * duration + 1e-9


def test_no_write_is_sent_after_the_deadline_of_a_late_lease(api: Any, clock: Clock) -> None:
    """By the clock, at the write itself: neither the lease's thread nor a call that is under way needs to end first."""
    a = Replica(api, "a", clock)
    a.turn()
    clock.now += 7.9
    assert a.may_write == [True]
    clock.now += 0.1
    with pytest.raises(NotLeading, match="term 1 is over"):
        a.terms[0].check()
    assert not a.leading


def test_a_renewal_that_arrives_after_the_deadline_does_not_continue_the_term(api: Any, clock: Clock) -> None:
    a = Replica(api, "a", clock)
    a.turn()
    clock.now += 7

    def late(verb: str, plural: str, name: str) -> None:
        clock.now += 2
        # A worker looks in the meantime, and leaves.
        assert a.may_write == [False]

    api.before = late
    a.turn()
    assert not may_write(a.terms[0])
    assert a.causes == ["the lease could not be renewed in time"]


def test_after_a_late_lease_the_replica_leads_again_in_a_new_term(api: Any, clock: Clock) -> None:
    seen: list[tuple[str, list[bool]]] = []
    a = Replica(api, "a", clock, on_lost=lambda cause: seen.append((cause, a.may_write)))
    a.turn()
    clock.now += 8
    a.turn()
    assert seen == [("the lease could not be renewed in time", [False])], "the next term waits for the workers"
    for _ in range(10):
        assert ([term.number for term in a.terms], a.may_write) == ([1, 2], [False, True])
        clock.now += 2
        a.turn()
    assert api.find(LEASES, "ops", SETTINGS.name)["spec"]["leaseTransitions"] == 0


def test_a_replaced_leader_stands_by_and_leads_again_when_its_successor_is_silent(api: Any, clock: Clock) -> None:
    a, b = Replica(api, "a", clock), Replica(api, "b", clock)
    a.turn()
    b.turn()
    clock.now += 9
    b.turn()
    assert (b.leading, a.may_write) == (False, [False])
    clock.now += 1
    b.turn()
    a.turn()
    assert (a.leading, b.leading) == (False, True)
    assert api.find(LEASES, "ops", SETTINGS.name)["spec"]["leaseTransitions"] == b.keeper.transitions() == 1
    # Its last look at the Lease found another holder.
    a.turn()
    assert len(a.terms) == 1
    clock.now += 10
    a.turn()
    assert (a.leading, b.leading, a.may_write) == (True, False, [False, True])


def test_another_holder_ends_the_term_at_once(api: Any, clock: Clock) -> None:
    a = Replica(api, "a", clock)
    a.turn()
    raw = api.get(LEASES, "ops", SETTINGS.name)
    raw["spec"]["holderIdentity"] = "thief"
    api.put(LEASES, raw)
    clock.now += 2
    a.turn()
    assert (a.causes, a.may_write) == (["another replica holds the lease"], [False])


def test_the_thread_of_the_keeper_leads_and_hands_over(api: Any) -> None:
    settings = LeaseSettings(duration_seconds=60, renew_seconds=0.01)
    first, second = (Replica(api, name, time.monotonic, settings=settings) for name in "ab")
    # An error of our own ends no thread.
    api.refuse("get", LEASES, ValueError("a Lease that nobody expected"))
    first.keeper.start()
    until = time.monotonic() + 240
    while not first.leading and time.monotonic() < until:
        time.sleep(0.005)
    second.keeper.start()
    time.sleep(0.05)
    assert (first.leading, second.leading) == (True, False)
    first.keeper.stop(release=True)
    while not second.leading and time.monotonic() < until:
        time.sleep(0.005)
    assert second.leading
    second.keeper.stop(release=False)
