"""`make bench BENCH=records`: our reader of records against TensorFlow's, Python's and the network's own limit.

All read from the same fake-gcs-server through the same proxy over TLS, 50 ms a request and 20 MB/s a stream, side by
side: A B C A B C …, every time in a fresh process. One JSON line for each figure on standard output, each reader's
times on standard error. The exit code is 0 whether goals are met or not.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from dataclasses import replace

from hack.bench.figures import progress
from hack.bench.records import goals
from hack.bench.records.data import Size
from hack.bench.records.goals import Effort
from hack.bench.records.measure import running

FULL = Effort(size=Size(large=192, shards=16, small=96, many=1280), rounds=3, few_rounds=2, resume_at=50, window=256)
# Tests that every kind of figure is produced, not its value.
QUICK = Effort(
    size=Size(large=6, shards=3, small=1, many=1, record=20_000),
    rounds=1,
    few_rounds=1,
    resume_at=2,
    window=32,
    batch=8,
)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m hack.bench.records", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few MB, one round: a test of the benchmark")
    parser.add_argument("--only", choices=goals.GROUPS, nargs="+", default=[], help="these figures alone")
    parser.add_argument("--rounds", type=int, help="instead of 3, of each reader")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that servers and data are removed
    effort, began = QUICK if arguments.quick else FULL, time.monotonic()
    if arguments.rounds:
        effort = replace(effort, rounds=arguments.rounds, few_rounds=arguments.rounds)
    with running(effort.size) as bench:
        progress(f"{time.monotonic() - began:.0f} s to make the data and start the servers")
        for name in arguments.only or goals.GROUPS:
            goals.GROUPS[name](bench, effort)
            progress(f"{name}: {time.monotonic() - began:.0f} s so far")


if __name__ == "__main__":
    main()
