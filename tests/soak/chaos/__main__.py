"""Jobs run while operators are killed, API servers restarted, pods removed: each must end as planned.

python -m tests.soak.chaos --seed 3 --kills 200     operators as processes, simulated pods; no cluster
python -m tests.soak.chaos --kills 40 --kind        the cluster of `make cluster images`
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.soak.chaos import report
from tests.soak.chaos.control_plane import Servers
from tests.soak.chaos.kind_cluster import KindCluster
from tests.soak.chaos.run import Ran, run

# Kills.
_A_ROUND = 20


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak.chaos", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=20, help="times that an operator is killed (20)")
    parser.add_argument("--seed", type=int, help="another draw; one is made up and printed, the next round adds one")
    parser.add_argument("--kind", action="store_true", help="on the cluster of `make cluster images`")
    given = parser.parse_args(arguments)
    seed = random.SystemRandom().randrange(10**6) if given.seed is None else given.seed
    print(f"seed {seed}", flush=True)
    rounds: list[Ran] = []
    for number, kills in enumerate(in_rounds(given.kills)):
        with (
            tempfile.TemporaryDirectory() as folder,
            KindCluster() if given.kind else Servers(Path(folder)) as servers,
        ):
            ran = run(servers, seed=seed + number, kills=kills, say=lambda line: print(line, flush=True))
            if ran.complaints:
                print(servers.logs(), *ran.complaints, sep="\n", file=sys.stderr, flush=True)
        rounds.append(ran)
        print(report.table(rounds, seed=seed), flush=True)
    return int(any(ran.complaints for ran in rounds))


def in_rounds(kills: int) -> list[int]:
    """Split the kills into rounds of at most twenty: jobs that have all ended test nothing."""
    return [min(_A_ROUND, kills - done) for done in range(0, kills, _A_ROUND)]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
