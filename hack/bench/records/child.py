"""One reader in a fresh process, which reads once."""

from __future__ import annotations

import gc
import os
import re
import resource
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hack.bench.records.data import digest_of
from hack.bench.records.peers import PEERS
from mptraining_records.index import dataset_index
from mptraining_records.reading.order import training_order
from mptraining_records.reading.prefetch import RecordStream
from mptraining_records.reading.reader import RecordReader
from mptraining_trainer.data.batching import SINGLE_WORKER, Span, windows

OWN = "own"


@dataclass(frozen=True)
class Task:
    """The task of a reader: one epoch.

    `shuffle` is the buffer of TensorFlow's `shuffle` in records, or our window, 0 for the default; None is the stored
    order.
    """

    reader: str
    patterns: list[str]
    batch: int
    shuffle: int | None = None


@dataclass(frozen=True)
class Measured:
    """The measurements. `first_batch` counts from the start too; `peak` is the highest resident memory above that
    after imports, in bytes; CPU seconds are those of all threads and children.
    """

    seconds: float
    first_batch: float
    peak: int
    cpu_seconds: float
    records: int
    size: int
    digest: int


def read_once(task: Task) -> Measured:
    # The parent's standard output has the figures.
    os.dup2(2, 1)
    peer = PEERS.get(task.reader)
    if peer is not None:
        peer.prepare()
    else:
        # Our reader's late imports: a trainer has loaded them all with TensorFlow.
        import google.cloud.storage  # noqa: F401

        import mptraining_storage.http_session  # noqa: F401
    gc.collect()
    before = memory("VmRSS")
    reset_peak()
    cpu, began, first = cpu_seconds(), time.monotonic(), 0.0
    count = size = digest = 0
    for batch in _read(task):
        first = first or time.monotonic() - began
        digest = (digest + digest_of(batch)) % 2**61
        count += len(batch)
        size += sum(map(len, batch))
    seconds = time.monotonic() - began
    return Measured(
        seconds=seconds,
        first_batch=first,
        peak=memory("VmHWM") - before,
        cpu_seconds=cpu_seconds() - cpu,
        records=count,
        size=size,
        digest=digest,
    )


def _read(task: Task) -> Iterator[Sequence[bytes]]:
    if task.reader == OWN:
        return _own(task)
    return PEERS[task.reader].read(task.patterns, task.batch, task.shuffle)


def _own(task: Task) -> Iterator[list[bytes]]:
    """Read by this project's reader, which knows that the records are mixed, as `mptj records convert` stores them."""
    reader = RecordReader(dataset_index.build(task.patterns))
    count = reader.dataset.count
    order = training_order(
        count,
        reader.dataset.mean_record_bytes,
        seed=7,
        shuffle="None" if task.shuffle is None else "Windowed",
        buffer_size=task.shuffle or None,
        mixed=True,
    )
    stream = RecordStream(reader, windows(order, [Span(0, 0, count, count)], SINGLE_WORKER))
    while taken := stream.take(task.batch):
        yield [record for record in taken if record is not None]


def cpu_seconds() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def reset_peak() -> None:
    """Set VmHWM to the current resident memory."""
    # See proc(5).
    Path("/proc/self/clear_refs").write_text("5")


def memory(name: str) -> int:
    match = re.search(rf"^{name}:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert match is not None
    return int(match[1]) * 1024
