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

FAULTS: dict[str, Fault] = {
    "409 conflict": Refuse(409, "Conflict"),
    "403 forbidden": Refuse(403, "Forbidden"),
    "429 with a pause": Refuse(429, "TooManyRequests", retry_after=1),
    "500": Refuse(500, "InternalError"),
    "503": Refuse(503, "ServiceUnavailable"),
    "a connection that drops before": DropBefore(),
    "a connection that drops after": DropAfter(),
    "a slow answer": DelayAnswer(1.5),
}


@pytest.fixture
def proxy(installed: ControlPlane) -> Iterator[FaultProxy]:
    with installed.fault_proxy() as started:
        yield started


def twice(pod: Pod) -> Behaviour:
    """A first attempt that fails and a second one that succeeds: together they need every kind of write."""
    return Exit(1 if pod.job.endswith("-1") else 0, after=0.2)


@pytest.mark.parametrize("fault", FAULTS)
def test_every_write_fails_once(alone: Any, proxy: FaultProxy, fault: str) -> None:
    """The first request of each kind of write fails."""
    alone.operator(server=proxy.url)
    for resource, verb, subresource in (
        ("services", "create", ""),
        ("networkpolicies", "create", ""),
        ("jobs", "create", ""),
        ("mptrainingjobs", "patch", "status"),
    ):
        proxy.add(FAULTS[fault], verb=verb, resource=resource, subresource=subresource, times=1)
    alone.create("flowers", twice)
    status = alone.phase("flowers", "Succeeded")
    assert [each["outcome"] for each in status["attempts"]] == ["ProgramFailed", "Succeeded"]
    assert (status["applicationFailures"], status["infrastructureRestarts"]) == (1, 0)
    assert len(alone.batch_jobs("flowers")) == 2


@pytest.mark.parametrize("fault", [CutWatch(1), ExpireWatch(1)], ids=["cut", "410"])
def test_watches_that_end_after_each_event(alone: Any, proxy: FaultProxy, fault: Fault) -> None:
    alone.operator(server=proxy.url)
    proxy.add(fault, verb="watch", times=20)
    proxy.cut_watches()
    for number in range(3):
        alone.create(f"flowers-{number}", twice)
    for number in range(3):
        status = alone.phase(f"flowers-{number}", "Succeeded")
        assert len(status["attempts"]) == 2


def test_deletions_without_an_event_are_found_by_listing(alone: Any, proxy: FaultProxy) -> None:
    """A suspended job's Indexed Job is gone and the event was lost: without a new list the job would wait for ever."""
    alone.operator(server=proxy.url, relistSeconds=2)
    proxy.add(HideEvents("DELETED"), verb="watch")
    proxy.cut_watches()
    alone.create("flowers", lambda pod: Run() if pod.job.endswith("-1") else Exit(0, after=0.1))
    alone.running("flowers")
    alone.patch("flowers", {"spec": {"runPolicy": {"suspend": True}}})
    alone.phase("flowers", "Suspended")
    alone.released("flowers")
    alone.patch("flowers", {"spec": {"runPolicy": {"suspend": False}}})
    alone.phase("flowers", "Succeeded")


def test_one_renewal_without_an_answer_ends_no_term(alone: Any, proxy: FaultProxy) -> None:
    """With the longest interval between renewals that the settings allow."""
    lease = {**alone.settings["lease"], "durationSeconds": 30, "renewSeconds": 12}
    operator = alone.operator(server=proxy.url, lease=lease)
    alone.wait(lambda: operator.log, lambda log: "leading" in log)
    rule = proxy.add(DelayAnswer(13), verb="update", resource="leases", times=1)
    alone.wait(lambda: rule.hits, bool)
    renewed = alone.lease(lease["name"])["renewTime"]
    for _ in range(2):
        renewed = alone.wait(lambda: alone.lease(lease["name"])["renewTime"], lambda time, old=renewed: time != old)
    assert "Read timed out" in operator.log
    assert "no longer leading" not in operator.log
