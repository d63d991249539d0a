"""Every kind of fault between operator and API server: no object is lost and none is created twice."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.testbed import Behaviour, ControlPlane, Exit, Run
from tests.testbed.faults.proxy import FaultProxy
from tests.testbed.faults.rules import (
    CutWatch,
    DelayAnswer,
    DropAfter,
    DropBefore,
    ExpireWatch,
    Fault,
    HideEvents,
    Refuse,
)
from tests.testbed.nodes.pods import Pod

# Each kind of write meets two faults.
FAULTS: dict[str, tuple[Fault, Fault, Fault, Fault]] = {
    "first": (
        Refuse(500, "InternalError"),
        Refuse(429, "TooManyRequests", retry_after=1),
        DropAfter(),
        Refuse(409, "Conflict"),
    ),
    "second": (DropBefore(), DelayAnswer(1.5), Refuse(403, "Forbidden"), Refuse(503, "ServiceUnavailable")),
}
WRITES = (
    ("services", "create", ""),
    ("networkpolicies", "create", ""),
    ("jobs", "create", ""),
    ("mptrainingjobs", "patch", "status"),
)


@pytest.fixture
def proxy(installed: ControlPlane) -> Iterator[FaultProxy]:
    with installed.fault_proxy() as started:
        yield started


def twice(pod: Pod) -> Behaviour:
    """A first attempt that fails and a second one that succeeds: together they need every kind of write."""
    return Exit(1 if pod.job.endswith("-1") else 0, after=0.2)


@pytest.mark.parametrize("faults", FAULTS.values(), ids=FAULTS)
def test_every_write_fails_once(alone: Any, proxy: FaultProxy, faults: tuple[Fault, ...]) -> None:
    """The first request of each kind of write fails."""
    alone.operator(server=proxy.url)
    for (resource, verb, subresource), fault in zip(WRITES, faults, strict=True):
        proxy.add(fault, verb=verb, resource=resource, subresource=subresource, times=1)
    alone.create("flowers", twice)
    status = alone.phase("flowers", "Succeeded")
    assert [each["outcome"] for each in status["attempts"]] == ["ProgramFailed", "Succeeded"]
    assert (status["applicationFailures"], status["infrastructureRestarts"]) == (1, 0)
    assert len(alone.batch_jobs("flowers")) == 2


def test_watches_that_end_after_each_event(alone: Any, proxy: FaultProxy) -> None:
    alone.operator(server=proxy.url)
    for fault in (CutWatch(1), ExpireWatch(1)):
        proxy.add(fault, verb="watch", times=2)
    proxy.cut_watches()
    alone.create("flowers", twice)
    assert len(alone.phase("flowers", "Succeeded")["attempts"]) == 2


def test_deletions_without_an_event_are_found_by_listing(alone: Any, proxy: FaultProxy) -> None:
    """A suspended job's Indexed Job is gone and the event was lost: without a new list the job would wait for ever."""
    alone.operator(server=proxy.url, relist=2)
    proxy.add(HideEvents("DELETED"), verb="watch")
    proxy.cut_watches()
    alone.create("flowers", lambda pod: Run() if pod.job.endswith("-1") else Exit(0, after=0.1))
    alone.running("flowers")
    alone.patch("flowers", {"spec": {"runPolicy": {"suspend": True}}})
    alone.phase("flowers", "Suspended")
    alone.released("flowers")
    alone.patch("flowers", {"spec": {"runPolicy": {"suspend": False}}})
    alone.phase("flowers", "Succeeded")
