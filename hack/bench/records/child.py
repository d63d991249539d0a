"""One reader in a fresh process: `python -m hack.bench.records.child TASK` reads once and writes one JSON line.

A step is a timed sleep: on a CPU the reader and a real step would share the cores.
"""

from __future__ import annotations

import gc
import itertools
import json
import os
import re
import resource
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from hack.bench.records import own_reader
from hack.bench.records.data import digest_of
from hack.bench.records.own_reader import Skipped
from hack.bench.records.peers import PEERS, saved_state, shuffled

OWN = "own"


@dataclass(frozen=True)
class Task:
    """The task of a reader: the last of `epochs` is measured, or all of them with `from_the_start`.

    `shuffle` is the buffer of TensorFlow's `shuffle` in records, or our window, 0 for the default; None is the stored
    order. `start` to `max_skipped` are for our reader alone.
    """

    reader: str
    patterns: list[str]
    batch: int
    epochs: int = 1
    from_the_start: bool = False
    step_seconds: float = 0.0
    keep_batches: bool = False
    shuffle: int | None = None
    start: int = 0
    cache: str | None = None
    max_skipped: int = 0
    # Instead of reading: the size of tf.data's checkpoint after so many examples.
    state_after: int | None = None


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
    # Digest of each batch, in order, if the task requests them.
    batches: list[int]
    steps: int
    skipped: int
    state: int = 0


def main(task: Task) -> Measured:
    peer = PEERS.get(task.reader)
    if peer is not None:
        peer.prepare()
    else:
        # Our reader's late imports: a trainer has loaded them all with TensorFlow.
        import google.cloud.storage  # noqa: F401
        import obstore.store  # noqa: F401

        import mptraining_records.storage.http_session  # noqa: F401
    gc.collect()
    before = _memory("VmRSS")
    # 5 sets the peak to the current resident memory, see proc(5).
    Path("/proc/self/clear_refs").write_text("5")
    if task.state_after is not None:
        size = saved_state(task.patterns, task.batch, shuffle=task.shuffle or 1, examples=task.state_after)
        return Measured(0, 0, 0, 0, 0, 0, 0, [], 0, 0, state=size)
    unmeasured = 0 if task.from_the_start else task.epochs - 1
    for _ in range(unmeasured):
        for _batch in _read(task, []):
            pass
    skipped: list[Skipped] = []
    cpu, began, first = _cpu(), time.monotonic(), 0.0
    count = size = digest = steps = 0
    batches = []
    for batch in itertools.chain.from_iterable(_read(task, skipped) for _ in range(task.epochs - unmeasured)):
        first = first or time.monotonic() - began
        of_batch = digest_of(batch)
        digest = (digest + of_batch) % 2**61
        count += len(batch)
        size += sum(map(len, batch))
        steps += 1
        if task.keep_batches:
            batches.append(of_batch)
        if task.step_seconds:
            time.sleep(task.step_seconds)
    seconds = time.monotonic() - began
    return Measured(
        seconds=seconds,
        first_batch=first,
        peak=_memory("VmHWM") - before,
        cpu_seconds=_cpu() - cpu,
        records=count,
        size=size,
        digest=digest,
        batches=batches,
        steps=steps,
        skipped=skipped[0].named if skipped else 0,
    )


def _read(task: Task, skipped: list[Skipped]) -> Iterator[Sequence[bytes]]:
    if task.reader != OWN:
        peer = PEERS[task.reader]
        if task.shuffle is None:
            return peer.read(task.patterns, task.batch)
        assert peer.reads
        return shuffled(task.patterns, task.batch, reads=peer.reads, buffer=task.shuffle)
    return own_reader.records(
        task.patterns,
        batch=task.batch,
        shuffle=task.shuffle,
        start=task.start,
        cache=task.cache,
        max_skipped=task.max_skipped,
        skipped=skipped,
    )


def _cpu() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def _memory(name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


if __name__ == "__main__":
    # Output of libraries must not mix with the response.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    print(json.dumps(asdict(main(Task(**json.loads(sys.argv[1]))))), file=answers)
