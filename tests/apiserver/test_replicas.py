"""Replicas of the operator: killed at any moment, two at once, upgraded, started beside jobs that are older than they
are.
"""

from __future__ import annotations

import time
from typing import Any

from tests.testbed import Exit, Run


def test_the_second_replica_takes_over_within_fifteen_seconds(alone: Any) -> None:
    """With the installed lease duration of 10 s. A replica that ends cleanly releases its lease at once."""
    lease = {"durationSeconds": 10, "renewSeconds": 2, "name": "takeover"}
    holder = lambda: alone.lease("takeover").get("holderIdentity")  # noqa: E731
    first = alone.operator(lease=lease)
    alone.wait(lambda: first.log, lambda log: "leading" in log)
    second = alone.operator(lease=lease)
    assert "leading" not in second.log
    alone.create("before", lambda pod: Run())
    alone.running("before")
    first.kill()
    began = time.monotonic()
    alone.wait(holder, lambda name: name == second.name)
    assert time.monotonic() - began < 15
    alone.create("after", lambda pod: Exit(0, after=0.2))
    alone.phase("after", "Succeeded")
    third = alone.operator(lease=lease)
    second.stop()
    # The second replica does not wait for expiry: a replica that ends releases its lease.
    assert holder() in ("", None, third.name)
    alone.create("handed-over", lambda pod: Exit(0))
    alone.phase("handed-over", "Succeeded")
    assert third.server.exit_code is None
    assert [job["metadata"]["name"] for job in alone.batch_jobs("before")] == ["before-1"]
