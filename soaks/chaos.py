"""Jobs run while operators are killed, API servers restarted, pods and nodes taken: all must end as is written.

python -m soaks.chaos --on servers --seed 3 --kills 20     the operator as processes, played pods; no cluster needed
python -m soaks.chaos --on kind --kills 200 --write docs/reliability.md
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from soaks import chaos_report, report
from soaks.chaos_kind import KindCluster
from soaks.chaos_run import Place, run
from soaks.chaos_servers import Servers

PLACES = {
    "servers": "etcd, API server and controller manager, pods that are played",
    "kind": "kind with two workers, Kubernetes 1.34",
}


def place(on: str, folder: Path) -> AbstractContextManager[Place, None]:
    """Where chaos happens; what it writes is below `folder`."""
    return KindCluster() if on == "kind" else Servers(folder)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m soaks.chaos", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--on", choices=PLACES, default="kind", help="where (kind)")
    parser.add_argument("--kills", type=int, default=20, help="times that an operator is killed (20)")
    parser.add_argument("--seed", type=int, help="another draw; one is made up and printed")
    parser.add_argument("--write", type=Path, help="the document that the table goes into")
    given = parser.parse_args(arguments)
    seed = random.SystemRandom().randrange(10**6) if given.seed is None else given.seed
    print(f"seed {seed}", flush=True)
    with tempfile.TemporaryDirectory() as folder, place(given.on, Path(folder)) as there:
        ran = run(there, seed=seed, kills=given.kills, say=lambda line: print(line, flush=True))
        if ran.complaints:
            print(there.logs(), file=sys.stderr)
    text = chaos_report.table(ran, seed=seed, where=PLACES[given.on])
    print(text)
    if given.write:
        begin, end = (each.format(given.on) for each in (chaos_report.BEGIN, chaos_report.END))
        report.put(given.write, text, begin=begin, end=end)
    return int(bool(ran.complaints))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
