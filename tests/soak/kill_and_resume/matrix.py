"""A run that is killed anywhere and resumed ends with the bits of an undisturbed one: for each kind of run.

python -m tests.soak.kill_and_resume.matrix     # 20 kill points for each configuration: half an hour on two cores
python -m tests.soak.kill_and_resume.matrix --kills 3 --only "two workers"
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import traceback
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.soak.kill_and_resume.rounds import Configuration, Round, faults, make_data, run

POLICIES = ("float32", "mixed_bfloat16", "mixed_float16")
DEVICES = ("one replica", "two replicas", "two workers")
MATRIX = tuple(Configuration(policy, devices) for policy in POLICIES for devices in DEVICES)
# A configuration of its own, because TPUs train with tf_keras.
LEGACY = tuple(Configuration("float32", devices, "Legacy") for devices in ("two replicas", "two workers"))
# The largest number of kills of a run: more would leave too little between two of them.
_KILLS_A_RUN = 4


def compared(
    data: Path, folder: Path, configurations: Sequence[Configuration], kills: int, seed: int
) -> dict[Configuration, list[tuple[Round, list[str]]]]:
    """Return the runs under faults of each configuration, each with the names of the digests that differ from the
    undisturbed run.
    """
    numbers = [min(_KILLS_A_RUN, kills - first) for first in range(0, kills, _KILLS_A_RUN)]
    # One processor is busy while the other process reads or waits; more than two processes at once take longer than in
    # turn.
    with ThreadPoolExecutor(2) as pool:
        whole, killed = {}, {}
        for configuration in configurations:
            place = folder / f"{configuration}".replace(", ", "-").replace(" ", "-")
            whole[configuration] = pool.submit(run, configuration, data, place / "whole")
            killed[configuration] = [
                pool.submit(
                    run,
                    configuration,
                    data,
                    place / f"killed-{n}",
                    faults(configuration, seed + n, number),
                    seed=seed + n,
                )
                for n, number in enumerate(numbers)
            ]
        return {
            configuration: [
                (one.result(), different(whole[configuration].result(), one.result())) for one in killed[configuration]
            ]
            for configuration in configurations
        }


def different(first: Round, second: Round) -> list[str]:
    """Return the names of the digests in which two runs differ."""
    names = first.digests.keys() | second.digests.keys()
    return sorted(name for name in names if first.digests.get(name) != second.digests.get(name))


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.soak.kill_and_resume.matrix", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--kills", type=int, default=20, help="kill points for each configuration (20)")
    parser.add_argument("--only", default="", help="configurations with this in their name")
    parser.add_argument("--seed", type=int, help="another draw of kill points; one is made up and printed")
    given = parser.parse_args(arguments)
    seed = random.SystemRandom().randrange(10**6) if given.seed is None else given.seed
    chosen = [each for each in (*MATRIX, *LEGACY) if given.only in str(each)]
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder, "data")
        data.mkdir()
        make_data(data)
        for each in chosen:
            try:
                (runs,) = compared(data, Path(folder), [each], given.kills, seed).values()
            except (AssertionError, TimeoutError):
                traceback.print_exc()
                failed = True
                continue
            for one, differing in runs:
                if differing:
                    print(f"{each}: other {', '.join(differing)} after {'; '.join(one.kills)}", flush=True)
            other = sum(bool(differing) for _, differing in runs)
            failed |= other > 0
            print(
                f"seed {seed}: {each}: {given.kills} kill points in {len(runs)} runs, {other} ended otherwise",
                flush=True,
            )
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
