"""A short chaos run without containers: killed operators, a restarted API server, cut watches, deleted pods.

`make soak` runs much more of it. The test has servers of its own, because it stops them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.soak.chaos import report
from tests.soak.chaos.control_plane import Servers
from tests.soak.chaos.record import ChildSeen
from tests.soak.chaos.run import run
from tests.soak.chaos.schedule import Kind

SEED, KILLS = 20261121, 4


@pytest.mark.timeout(1200)
def test_every_job_ends_as_it_is_written_whatever_happens(control_plane_servers: None, tmp_path: Path) -> None:
    with Servers(tmp_path) as servers:
        ran = run(servers, seed=SEED, kills=KILLS, say=print)
        audited = servers.control_plane.requests()
        logs = servers.logs()
    assert ran.complaints == (), logs[-5000:]
    assert sum(fault.kind is Kind.KILL for fault in ran.faults) == KILLS
    # Whether there is a pod to delete at that moment depends on the machine.
    assert {fault.kind for fault in ran.faults} >= {Kind.KILL, Kind.SWITCH, Kind.CUT, Kind.API}
    children = {
        each.seen.name for step in ran.evidence.steps for each in step.changes if isinstance(each.seen, ChildSeen)
    }
    assert len(children) >= 30, "as many attempts as are written"
    # The reference is the API server's own list, without the requests that it did not answer because it was killed.
    made = [each.name for each in audited if (each.verb, each.resource, each.code) == ("create", "jobs", 201)]
    assert made
    assert len(made) == len(set(made)), "no Indexed Job was made twice"
    assert set(made) <= children
    assert "Traceback" not in logs
    table = report.table([ran], seed=SEED)
    assert f"| operator killed (SIGKILL) | {KILLS} |" in table
    assert "| jobs | 24: 6 Failed, 18 Succeeded |" in table
