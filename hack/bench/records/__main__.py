"""`make bench BENCH=records`: our reader of records against TensorFlow's and gcsfs.

All read from the same fake-gcs-server through the same proxy over TLS, 50 ms a request and 20 MB/s a stream (in the
group `uncapped` as fast as it goes), side by side: A B C A B C …, every time in a fresh process. One JSON line for each
figure on standard output, each reader's times on standard error. The exit code is 0 whether goals are met or not.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from dataclasses import dataclass

from hack.bench.figures import figure, progress, publish
from hack.bench.records import decoding
from hack.bench.records.child import OWN
from hack.bench.records.measure import SHAPE, Bench, Outcome, print_progress, running

_TUNED = "reads-16"


@dataclass(frozen=True)
class Group:
    """Readers of one data set, at the same time. `goals`: the least speed of our reader over each other one's.

    Without a `stream_rate`, in bytes a second, the goals hold for the speed a core as well.

    `buffer` is the share of the records in TensorFlow's shuffle buffer, as many as in our window; None for the stored
    order. `memory` is the most of the other reader's memory that ours may take.
    """

    data: str
    goals: dict[str, float]
    batch: int = 32
    where: str = "bucket"
    stream_rate: float = SHAPE.stream_rate
    buffer: float | None = None
    memory: float = 0.3


GROUPS = {
    "uncapped": Group("shards", {_TUNED: 1, "gcsfs": 1}, stream_rate=0),
    "shards": Group("shards", {_TUNED: 1.2, "gcsfs": 1}),
    "shuffled": Group("shards", {_TUNED: 1.2}, buffer=1 / 12),
    "shuffled-many": Group("many", {_TUNED: 2}, batch=256, buffer=1 / 20),
    "local-small": Group("many", {"plain": 1}, batch=256, where="disk", memory=1),
    "local-shuffled": Group("shards", {_TUNED: 1}, where="disk", buffer=1 / 12, memory=1),
    "local-shuffled-many": Group("many", {_TUNED: 1}, batch=256, where="disk", buffer=1 / 20, memory=1),
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m hack.bench.records", description=__doc__)
    names = [*GROUPS, *decoding.GROUPS]
    parser.add_argument("--only", choices=names, nargs="+", default=names, help="these figures alone")
    parser.add_argument("--rounds", type=int, default=3, help="of each reader (3)")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that servers and data are removed
    began = time.monotonic()
    with running() as bench:
        progress(f"{time.monotonic() - began:.0f} s to make the data and start the servers")
        for name in arguments.only:
            if name in decoding.GROUPS:
                decoding.measure(bench, name, arguments.rounds)
            else:
                _measure(bench, name, GROUPS[name], arguments.rounds)
            progress(f"{name}: {time.monotonic() - began:.0f} s so far")


def _measure(bench: Bench, name: str, group: Group, rounds: int) -> None:
    data = bench.data[group.data]
    bench.proxy.change(stream_rate=group.stream_rate)
    read: dict[str, list[Outcome]] = {reader: [] for reader in (OWN, *group.goals)}
    for _ in range(rounds):
        for reader, outcomes in read.items():
            shuffle = None
            if group.buffer is not None:
                shuffle = 0 if reader == OWN else max(1, int(group.buffer * data.count))
            outcomes.append(bench.read(reader, data, where=group.where, batch=group.batch, shuffle=shuffle))
            print_progress(f"{name}, {reader}", outcomes)
    for reader, least in group.goals.items():
        ours, theirs = read[OWN], read[reader]
        speeds = ([run.speed for run in runs] for runs in (ours, theirs))
        publish(figure(f"records.{name}.mb_per_second", *speeds, unit="MB/s", against=reader, least=least))
        if not group.stream_rate:
            a_core = ([1e3 / run.cpu_per_gb for run in runs] for runs in (ours, theirs))
            publish(figure(f"records.{name}.mb_per_second_a_core", *a_core, unit="MB/s", against=reader, least=least))
    # The first one is what a user has without tuning, or the best tuned one.
    reader = next(iter(group.goals))
    ours, theirs = read[OWN], read[reader]
    for what, unit, most, of_run in (
        ("first_batch_seconds", "s", 0.2 if group.where == "bucket" else 1, lambda run: run.measured.first_batch),
        ("peak_mb", "MB", group.memory, lambda run: run.measured.peak / 1e6),
        ("cpu_seconds_per_gb", "s", 1, lambda run: run.cpu_per_gb),
    ):
        values = (list(map(of_run, runs)) for runs in (ours, theirs))
        publish(figure(f"records.{name}.{what}", *values, unit=unit, against=reader, most=most))


if __name__ == "__main__":
    main()
