"""A short form of `python -m tests.soak.sweep_kills`: the operator is killed while a sweep runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.soak.sweep_kills import SEARCHES, SweepServers, compare

# So many that the sweep does not end before the last kill.
TRIALS = {"TPE": 8, "Random": 24}
KILLS = 5


@pytest.mark.timeout(900)
def test_a_sweep_whose_operator_is_killed_has_the_trials_of_an_undisturbed_one(
    control_plane_servers: None, tmp_path: Path
) -> None:
    with SweepServers(tmp_path) as servers:
        for search in SEARCHES:
            trials = TRIALS[search.algorithm]
            _, undisturbed, killed, wrong = compare(servers, search, trials=trials, kills=KILLS, seed=11, say=print)
            assert wrong == [], servers.logs()[-5000:]
            assert (len(killed.created), len(undisturbed.trials), killed.kills) == (trials, trials, KILLS)
        assert "Traceback" not in servers.logs()
