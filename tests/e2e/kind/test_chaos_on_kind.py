"""A short chaos run on real nodes: operators killed, nodes drained and paused, while twenty jobs run and two train.

`make soak` kills 200 times: `python -m tests.soak.chaos --on kind --kills 200`.
"""

from __future__ import annotations

from typing import Any

from tests.soak.chaos import report
from tests.soak.chaos.kind_cluster import KindCluster
from tests.soak.chaos.run import run
from tests.soak.chaos.schedule import Kind

SEED, KILLS = 20261121, 4


def test_every_job_ends_as_it_is_written_whatever_happens(kind: Any) -> None:
    with KindCluster() as cluster:
        ran = run(cluster, seed=SEED, kills=KILLS, say=print)
        logs = cluster.logs()
    print(report.table([ran], seed=SEED, where="kind"))
    assert ran.complaints == (), logs[-5000:]
    assert sum(each.kind is Kind.KILL for each in ran.faults) == KILLS
    # There may be no pod to delete; not every kernel supports the ending of connections.
    assert {each.kind for each in ran.faults} >= set(Kind) - {Kind.CUT, Kind.DELETE}
    digests = ran.evidence.digests
    assert len(digests) == 2
    assert all(found == undisturbed != "" for found, undisturbed in digests.values())
