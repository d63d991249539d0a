"""The figures of `make bench BENCH=records`, group by group, each with its goal."""

from __future__ import annotations

import bisect
import shutil
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from hack.bench.figures import figure, progress, publish
from hack.bench.records import mixing, own_reader, peers
from hack.bench.records.child import OWN, Task
from hack.bench.records.data import DAMAGED, Data, Size
from hack.bench.records.measure import SHAPE, Bench, Outcome, print_progress
from tests.testbed.gcs.faults import Cut, Drip, Refuse, Rule

ABSOLUTE = "1"
_HAND_TUNED = ("reads-8", "reads-16")
_TUNED = "reads-16"
# Sizes of TensorFlow's buffer for shuffling, as shares of the data.
_BUFFERS = (1 / 64, 1 / 32, 1 / 16, 1 / 8, 3 / 16, 1 / 4, 3 / 8, 1 / 2, 5 / 8, 3 / 4, 1)
# Bytes a second: more than TensorFlow's plain reader reads on the shaped network, less than a good one does.
_WANTED = 60e6
# A rate is measured over minutes, to which a start of half a second adds little.
_EPOCHS = 3
Groups = dict[str, list[Outcome]]


@dataclass(frozen=True)
class Effort:
    """`few_rounds` are for figures that hardly vary or take long; `resume_at` in MB, `window` in records."""

    size: Size
    rounds: int
    few_rounds: int
    resume_at: int
    window: int
    batch: int = 32


def _one_object(bench: Bench, effort: Effort) -> None:
    data = bench.data["large"]
    read = _interleaved(bench, data, (OWN, "plain", "raw-ranges", "gcsfs", "transfer-manager"), effort)
    _speeds("one_object", read, {"plain": 8, "raw-ranges": 0.7, "gcsfs": 1, "transfer-manager": 1})
    _first_batch("one_object", read, "plain", 0.2)
    without: list[Outcome] = []
    for _ in range(effort.rounds):
        with bench.without_index(data):
            without.append(bench.read(OWN, data, batch=effort.batch))
            print_progress("own, without an index", without)
    _first_batch("one_object.no_index", {**read, OWN: without}, "plain", 0.2)
    _speeds("one_object.no_index", {**read, OWN: without}, {"plain": 8})


def _shards(bench: Bench, effort: Effort) -> None:
    readers = (OWN, "interleave", *_HAND_TUNED, "gcsfs", "transfer-manager", "raw-ranges")
    read = _interleaved(bench, bench.data["shards"], readers, effort)
    best = max(_HAND_TUNED, key=lambda name: statistics.median(each.speed for each in read[name]))
    _speeds("shards", read, {"interleave": 4, best: 1.2, "gcsfs": 1, "transfer-manager": 1, "raw-ranges": 0.7})
    _first_batch("shards", read, "interleave", 0.2)
    _memory("shards", read, best, 0.3)
    _cpu("shards", read, best)


def _small(bench: Bench, effort: Effort) -> None:
    read = _interleaved(bench, bench.data["small"], (OWN, "reads-8"), effort, batch=256)
    _speeds("small", read, {"reads-8": 1.2})
    _memory("small", read, "reads-8", 0.3)
    _cpu("small", read, "reads-8")


def _local(bench: Bench, effort: Effort) -> None:
    for name, batch in (("shards", effort.batch), ("small", 256)):
        read = _interleaved(bench, bench.data[name], (OWN, "plain"), effort, batch=batch, where="disk")
        _speeds(f"local.{name}", read, {"plain": 1})
        _first_batch(f"local.{name}", read, "plain", 1)
        _memory(f"local.{name}", read, "plain", 1)
        _cpu(f"local.{name}", read, "plain")


def _shuffled(bench: Bench, effort: Effort) -> None:
    """Measure the default shuffling against TensorFlow with the smallest buffer that mixes as well."""
    for name, batch, classes, rounds in (
        ("shards", effort.batch, 160, effort.rounds),
        ("many", 256, 1000, effort.few_rounds),
    ):
        data = bench.data[name]
        buffer = _buffer(data, batch, min(classes, data.count))
        for where, speed, memory in (("bucket", 1.2, 0.3), ("disk", 1.0, 1.0)):
            readers = {OWN: 0, _TUNED: buffer}
            read: Groups = {reader: [] for reader in readers}
            for _ in range(rounds):
                for reader, outcomes in read.items():
                    outcomes.append(bench.read(reader, data, where=where, batch=batch, shuffle=readers[reader]))
                    print_progress(f"{name} on {where}, shuffled, {reader}", outcomes)
            group = f"shuffled.{name}" if where == "bucket" else f"local.shuffled.{name}"
            _speeds(group, read, {_TUNED: speed})
            _cpu(group, read, _TUNED)
            _memory(group, read, _TUNED, memory)


def _buffer(data: Data, batch: int, classes: int) -> int:
    """Return the smallest of some sizes of TensorFlow's buffer that mixes records sorted by class as well as we do.

    That is up to the goals of mixing: 200 of the 226 classes that a true shuffle has, and a correlation of 0.05. No
    buffer beyond the whole data is needed.
    """
    order, counts = own_reader.order_of(data.patterns("disk"))
    ours = mixing.mixing(order, classes, batch)
    true = mixing.mixing(np.random.default_rng(7).permutation(data.count), classes, batch)

    def is_enough(buffer: int) -> bool:
        found = mixing.mixing(peers.shuffled_numbers(counts, reads=16, buffer=buffer), classes, batch)
        progress(f"  {data.name}, sorted by {classes} classes: TensorFlow's buffer of {buffer} {found}, ours {ours}")
        return (
            found.classes >= min(ours.classes, 200 / 226 * true.classes)
            and found.near <= max(ours.near, 0.05)
            and found.far <= max(ours.far, 0.05)
        )

    buffers = [max(1, int(share * data.count)) for share in _BUFFERS]
    return buffers[bisect.bisect_left(buffers[:-1], True, key=is_enough)]


def _slow_connection(bench: Bench, effort: Effort) -> None:
    """Measure an epoch in which one connection delivers 2 kB/s, in the default and in the stored order."""
    data = bench.data["shards"]
    rule = Rule(fault=Drip(rate=2000), skip=20, times=1)
    for order, shuffle in (("shuffled", 0), ("stored", None)):
        task = Task(OWN, data.patterns("bucket"), effort.batch, shuffle=shuffle)
        seconds: dict[str, list[float]] = {"with": [], "without": []}
        for _ in range(effort.rounds):
            for name, found in seconds.items():
                bench.proxy.set(SHAPE.model_copy(update={"rules": (rule,) if name == "with" else ()}))
                try:
                    outcome = bench.run(task)
                finally:
                    bench.proxy.set(SHAPE)
                _complete(outcome, data)
                found.append(outcome.measured.seconds)
                progress(f"  {order}, {name} a slow connection: {found[-1]:.2f} s")
        name = f"records.slow_connection.{order}.seconds"
        publish(figure(name, seconds["with"], seconds["without"], unit="s", against="without", most=1.2))


def _resume(bench: Bench, effort: Effort) -> None:
    """Measure the same epoch from the start and from the middle, shuffled."""
    data = bench.data["shards"]
    patterns, mean = data.patterns("bucket"), data.framed / data.count
    start = int(effort.resume_at * 1e6 / mean) // effort.batch * effort.batch
    bound = own_reader.reread_bound(data.count, effort.window, mean)
    again, same = [], []
    for _ in range(effort.few_rounds):
        task = Task(OWN, patterns, effort.batch, shuffle=effort.window, keep_batches=True)
        whole = bench.run(task)
        rest = bench.run(Task(**{**vars(task), "start": start}))
        _complete(whole, data)
        again.append(max(0.0, _object_bytes(rest) - (data.count - start) * mean))
        same.append(float(rest.measured.batches == whole.measured.batches[start // effort.batch :]))
        progress(f"  resume: {again[-1] / 1e6:.1f} MB read again, at most {bound / 1e6:.1f}; identical: {same[-1]:.0f}")
        progress(f"  resume: a shuffled epoch fetched {_object_bytes(whole) / data.framed:.3f} of the data")
    publish(figure("records.resume.bytes_read_again", again, [bound] * len(again), unit="B", against="bound", most=1))
    _absolute("resume.identical_batches", same, "of 1", least=1)
    state = Task("reads-8", patterns, effort.batch, shuffle=effort.window, state_after=start)
    theirs = [bench.run(state).measured.state] * effort.few_rounds
    ours = [len(own_reader.state(start))] * effort.few_rounds
    publish(figure("records.resume.state_bytes", ours, theirs, unit="B", against="tf.data", most=0.001))


def _faults(bench: Bench, effort: Effort) -> None:
    data = bench.data["shards"]
    rules = (Rule(fault=Refuse(status=503), share=0.05), Rule(fault=Cut(), share=0.02))
    clean: list[Outcome] = []
    faulty: list[Outcome] = []
    task = Task(OWN, data.patterns("bucket"), effort.batch, _EPOCHS, from_the_start=True)
    for number in range(effort.rounds):
        clean.append(bench.run(task))
        _complete(clean[-1], data, _EPOCHS)
        print_progress("clean", clean)
        bench.proxy.set(SHAPE.model_copy(update={"rules": rules, "seed": number}))
        try:
            faulty.append(bench.run(task))
        finally:
            bench.proxy.set(SHAPE)
        print_progress(f"with {faulty[-1].seen.faults}", faulty)
    speeds = [[one.speed for one in some] for some in (faulty, clean)]
    publish(figure("records.faults.mb_per_second", *speeds, unit="MB/s", against="clean", least=0.85))
    wrong = [float(_wrong(one, data, _EPOCHS)) for one in faulty]
    _absolute("faults.lost_or_doubled", wrong, "records", most=0)


def _bad_records(bench: Bench, effort: Effort) -> None:
    for count in (1, 20):
        data = bench.data[f"damaged-{count}"]
        patterns = data.patterns("bucket")
        own = [
            bench.run(Task(OWN, patterns, effort.batch, max_skipped=count)).measured for _ in range(effort.few_rounds)
        ]
        theirs = bench.run(Task("ignore-errors", patterns, effort.batch)).measured
        progress(f"  {count} of {DAMAGED} damaged: own {own[-1].records}, ignore_errors {theirs.records} delivered")
        right = [one.records if one.digest == data.digest else 0 for one in own]
        expected = [data.count] * len(own)
        name = f"records.damaged_{count}.delivered"
        publish(figure(name, right, expected, unit="records", against="undamaged", least=1))
        named = [one.skipped for one in own]
        name = f"records.damaged_{count}.named"
        publish(figure(name, named, [count] * len(own), unit="records", against="damaged", least=1))


def _cache(bench: Bench, effort: Effort) -> None:
    """Measure the second epoch, from the disk, against TensorFlow's reader on local files."""
    data = bench.data["shards"]
    own: list[Outcome] = []
    local: list[Outcome] = []
    for _ in range(effort.rounds):
        kept = bench.folder / "cache"
        own.append(bench.run(Task(OWN, data.patterns("bucket"), effort.batch, epochs=2, cache=str(kept))))
        _complete(own[-1], data)
        print_progress("own, second epoch", own)
        shutil.rmtree(kept, ignore_errors=True)
        local.append(bench.run(Task("plain", data.patterns("disk"), effort.batch, epochs=2)))
        print_progress("local files, second epoch", local)
    speeds = [[one.speed for one in some] for some in (own, local)]
    publish(figure("records.cache.mb_per_second", *speeds, unit="MB/s", against="local files", least=0.8))
    # The first epoch fetches everything once; further bytes belong to the second.
    more = [max(0.0, _object_bytes(one) - data.framed) for one in own]
    _absolute("cache.bytes_fetched_again", more, "B", most=0)


def _busy(bench: Bench, effort: Effort) -> None:
    """Measure a training job of `_EPOCHS` that needs `_WANTED` bytes a second: the share of the time that its device
    computes, including the start.
    """
    data = bench.data["shards"]
    step = effort.batch * data.size / data.count / _WANTED
    busy: dict[str, list[float]] = {OWN: [], "plain": []}
    for number in range(effort.few_rounds):
        for name, shares in busy.items():
            task = Task(name, data.patterns("bucket"), effort.batch, _EPOCHS, from_the_start=True, step_seconds=step)
            one = bench.run(task).measured
            shares.append(one.steps * step / one.seconds)
            progress(
                f"  {name}, round {number + 1}: busy {shares[-1]:.2f} of the time, {one.steps} steps of {step:.3f} s"
            )
    _absolute("busy.share", busy[OWN], "of the time", least=0.9)
    _absolute("busy.plain_share", busy["plain"], "of the time", most=0.4)


def _mixing(_bench: Bench, _effort: Effort) -> None:
    for one in mixing.measure():
        publish(one)


GROUPS: dict[str, Callable[[Bench, Effort], None]] = {
    "one-object": _one_object,
    "shards": _shards,
    "small": _small,
    "shuffled": _shuffled,
    "slow-connection": _slow_connection,
    "resume": _resume,
    "faults": _faults,
    "bad-records": _bad_records,
    "cache": _cache,
    "busy": _busy,
    "local": _local,
    "mixing": _mixing,
}


def _interleaved(
    bench: Bench, data: Data, readers: Sequence[str], effort: Effort, *, where: str = "bucket", batch: int = 0
) -> Groups:
    read: Groups = {name: [] for name in readers}
    for _ in range(effort.rounds):
        for name, outcomes in read.items():
            outcomes.append(bench.read(name, data, where=where, batch=batch or effort.batch))
            print_progress(f"{data.name}, {name}", outcomes)
    return read


def _complete(outcome: Outcome, data: Data, epochs: int = 1) -> None:
    if _wrong(outcome, data, epochs):
        raise RuntimeError(f"{outcome.measured.records} records of {data.name}, not these {epochs * data.count}")


def _wrong(outcome: Outcome, data: Data, epochs: int = 1) -> int:
    """Return how many records are lost or doubled, at least 1 when they are not the right ones."""
    measured = outcome.measured
    return abs(measured.records - epochs * data.count) or int(measured.digest != epochs * data.digest % 2**61)


def _object_bytes(outcome: Outcome) -> int:
    """Return the bytes of shards that were sent, without sidecars."""
    return sum(
        count
        for name, count in outcome.seen.bytes_by_object.items()
        if name.endswith(".tfrecord") and "/.index/" not in name
    )


def _absolute(
    what: str, values: Sequence[float], unit: str, *, least: float | None = None, most: float | None = None
) -> None:
    """Publish a figure with a goal of its own: its ratio is the value."""
    ones = [1.0] * len(values)
    publish(figure(f"records.{what}", values, ones, unit=unit, against=ABSOLUTE, least=least, most=most))


def _speeds(where: str, read: Groups, least: dict[str, float]) -> None:
    ours = [one.speed for one in read[OWN]]
    for name, goal in least.items():
        theirs = [one.speed for one in read[name]]
        publish(figure(f"records.{where}.mb_per_second", ours, theirs, unit="MB/s", against=name, least=goal))


def _first_batch(where: str, read: Groups, against: str, most: float) -> None:
    ours, theirs = ([one.measured.first_batch for one in read[name]] for name in (OWN, against))
    publish(figure(f"records.{where}.first_batch_seconds", ours, theirs, unit="s", against=against, most=most))


def _memory(where: str, read: Groups, against: str, most: float) -> None:
    ours, theirs = ([one.measured.peak / 1e6 for one in read[name]] for name in (OWN, against))
    publish(figure(f"records.{where}.peak_mb", ours, theirs, unit="MB", against=against, most=most))


def _cpu(where: str, read: Groups, against: str) -> None:
    ours, theirs = ([one.cpu_per_gb for one in read[name]] for name in (OWN, against))
    publish(figure(f"records.{where}.cpu_seconds_per_gb", ours, theirs, unit="s", against=against, most=1))
