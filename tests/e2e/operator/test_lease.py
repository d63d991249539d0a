"""A Lease whose renewal gets no answer, with the longest interval between renewals that the settings allow."""

from __future__ import annotations

from typing import Any

from tests.testbed import ControlPlane
from tests.testbed.faults.rules import DelayAnswer


def test_one_renewal_without_an_answer_ends_no_term(alone: Any, installed: ControlPlane) -> None:
    lease = {**alone.settings["lease"], "durationSeconds": 30, "renewSeconds": 12}
    with installed.fault_proxy() as proxy:
        operator = alone.operator(server=proxy.url, lease=lease)
        alone.wait(lambda: operator.log, lambda log: "leading" in log)
        rule = proxy.add(DelayAnswer(13), verb="update", resource="leases", times=1)
        alone.wait(lambda: rule.hits, bool)
        renewed = alone.lease(lease["name"])["renewTime"]
        for _ in range(2):
            look = lambda: alone.lease(lease["name"])["renewTime"]  # noqa: E731
            renewed = alone.wait(look, lambda time, old=renewed: time != old)
    assert "Read timed out" in operator.log
    assert "no longer leading" not in operator.log
