"""A short form of `python -m tests.soak.sweep_kills`: the operator is killed while a sweep runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.soak.sweep_kills import SEARCHES, SweepServers, compare

TRIALS, KILLS = 8, 5


@pytest.mark.timeout(900)
def test_a_sweep_whose_operator_is_killed_has_the_trials_of_an_undisturbed_one(
    control_plane_servers: None, tmp_path: Path
) -> None:
    with SweepServers(tmp_path) as servers:
        for search in SEARCHES:
            _, undisturbed, killed, wrong = compare(servers, search, trials=TRIALS, kills=KILLS, seed=11, say=print)
            assert wrong == [], servers.logs()[-5000:]
            assert (len(killed.created), len(undisturbed.trials), killed.kills) == (TRIALS, TRIALS, KILLS)
        assert "Traceback" not in servers.logs()
