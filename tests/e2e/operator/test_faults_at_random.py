"""Faults of the API server that last, or come at random."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from tests.testbed import Behaviour, ControlPlane, Exit
from tests.testbed.faults.proxy import FaultProxy
from tests.testbed.faults.rules import (
    DelayAnswer,
    DropAfter,
    DropBefore,
    Fault,
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
WRITES = ("create", "patch", "delete")


@pytest.fixture
def proxy(installed: ControlPlane) -> Iterator[FaultProxy]:
    with installed.fault_proxy() as started:
        yield started


def twice(pod: Pod) -> Behaviour:
    """A first attempt that fails and a second one that succeeds: together they need every kind of write."""
    return Exit(1 if pod.job.endswith("-1") else 0, after=0.2)


def test_any_request_may_fail_at_random(alone: Any, proxy: FaultProxy) -> None:
    chance = random.Random(11)
    operator = alone.operator(server=proxy.url)
    faults = list(FAULTS.values())
    for fault in faults:
        for verb in (*WRITES, "get"):
            own = random.Random(chance.random())
            proxy.add(
                fault,
                when=lambda call, verb=verb, own=own: (
                    call.verb == verb and call.resource != "leases" and own.random() < 0.015
                ),
            )
    names = [f"flowers-{number}" for number in range(10)]
    for name in names:
        alone.create(name, twice)
    for name in names:
        status = alone.phase(name, "Succeeded", seconds=300)
        assert [each["outcome"] for each in status["attempts"]] == ["ProgramFailed", "Succeeded"]
        assert len(alone.batch_jobs(name)) == 2
    assert operator.server.exit_code is None


def test_the_operator_starts_while_the_api_server_answers_nothing(alone: Any, proxy: FaultProxy) -> None:
    rule = proxy.add(Refuse(503, "ServiceUnavailable"), when=lambda call: True)
    operator = alone.operator(server=proxy.url, ready=False)
    alone.wait(lambda: rule.hits, lambda hits: hits >= 2)
    alone.create("flowers", lambda pod: Exit(0))
    assert operator.server.exit_code is None
    assert "Traceback" not in operator.log
    proxy.clear()
    alone.phase("flowers", "Succeeded")


def test_a_leader_that_cannot_renew_its_lease_stands_by_and_leads_again(alone: Any, proxy: FaultProxy) -> None:
    lease = {"durationSeconds": 6}
    first = alone.operator(server=proxy.url, lease={**alone.settings["lease"], **lease})
    alone.wait(lambda: first.log, lambda log: "leading" in log)
    second = alone.operator(lease={**alone.settings["lease"], **lease})
    proxy.add(DropBefore(), resource="leases")
    alone.wait(lambda: second.log, lambda log: "leading" in log)
    assert "standing by" in first.log
    alone.create("flowers", lambda pod: Exit(0))
    alone.phase("flowers", "Succeeded")
    proxy.clear()
    second.stop()
    alone.wait(lambda: first.log, lambda log: "term 2" in log)
    # Its streams ran meanwhile; its workers are those of the new term.
    alone.create("more-flowers", lambda pod: Exit(0))
    alone.phase("more-flowers", "Succeeded")
    assert first.server.exit_code is None
    assert len(alone.batch_jobs("flowers")) == 1
