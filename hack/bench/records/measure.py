"""The setup of the measurements: one object server behind one shaped proxy, a new process for every reader's epoch."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar
from unittest import mock

from hack.bench.figures import progress
from hack.bench.records.child import Measured, Task, read_once
from hack.bench.records.data import Data, make
from hack.bench.records.peers import PEERS
from mptraining_records.index import dataset_index
from tests.testbed.gcs.faults import Shape
from tests.testbed.gcs.object_server import ObjectServer
from tests.testbed.gcs.proxy import Counters, StorageProxy

# 50 ms a request and 20 MB/s a stream: low enough that two cores do not hide a reader's design.
SHAPE = Shape(latency=0.05, stream_rate=20e6)
_SECONDS = 300
Result = TypeVar("Result")


@dataclass(frozen=True)
class Outcome:
    """The reader's measurement, and the proxy's counters."""

    measured: Measured
    seen: Counters

    @property
    def speed(self) -> float:
        """Return MB (10^6 bytes) a second."""
        return self.measured.size / self.measured.seconds / 1e6

    @property
    def cpu_per_gb(self) -> float:
        return self.measured.cpu_seconds / self.measured.size * 1e9


class Bench:
    """The servers with the data. A new one reads as fast as a used one: everything is in memory."""

    def __init__(self, proxy: StorageProxy, data: Mapping[str, Data]) -> None:
        self.proxy = proxy
        self.data = data
        proxy.set(Shape(latency=0, stream_rate=0))
        with mock.patch.dict(os.environ, STORAGE_EMULATOR_HOST=proxy.http):
            for records in data.values():
                dataset_index.publish(records.patterns("bucket"))
        proxy.set(SHAPE)

    def run(self, function: Callable[[Task], Result], task: Task) -> Result:
        """Run the task in a process of its own."""
        self.proxy.reset()
        spawn = multiprocessing.get_context("spawn")
        environment = mock.patch.dict(os.environ, self._environment(task))
        with environment, ProcessPoolExecutor(1, mp_context=spawn) as process:
            return process.submit(function, task).result(_SECONDS)

    def read(self, reader: str, data: Data, *, where: str, batch: int, shuffle: int | None) -> Outcome:
        """Read a whole epoch and check that every record appears once."""
        measured = self.run(read_once, Task(reader, data.patterns(where), batch, shuffle))
        outcome = Outcome(measured, self.proxy.counters())
        if (measured.records, measured.digest) != (data.count, data.digest):
            raise RuntimeError(f"{reader} read {measured.records} records of {data.name}, not these {data.count}")
        return outcome

    def _environment(self, task: Task) -> dict[str, str]:
        """Return what the reader needs besides this process's environment."""
        common = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
        peer = PEERS.get(task.reader)
        if not task.patterns[0].startswith("gs://"):
            return common
        if peer is None:
            return common | self.proxy.environment()
        way = self.proxy.tensorflow_environment() if peer.by_tensorflow else self.proxy.environment()
        return {**common, **way, **peer.environment}


@contextmanager
def running() -> Iterator[Bench]:
    """Write the data and start the servers."""
    with tempfile.TemporaryDirectory(prefix="bench-records-") as name:
        root = Path(name)
        data = make(root / "data")
        with (
            ObjectServer(root / "data", folder=root / "logs") as server,
            StorageProxy(server.address, SHAPE, keep_objects=True, folder=root / "proxy") as proxy,
        ):
            yield Bench(proxy, data)


def print_progress(name: str, outcomes: Sequence[Outcome]) -> None:
    """Print one line of progress for the newest of a reader's outcomes."""
    measured, seen = outcomes[-1].measured, outcomes[-1].seen
    progress(
        f"  {name}, round {len(outcomes)}: {outcomes[-1].speed:.1f} MB/s, first batch {measured.first_batch:.2f} s, "
        f"{measured.peak / 1e6:.0f} MB at most, {outcomes[-1].cpu_per_gb:.2f} CPU s a GB, {seen.media_requests} GETs, "
        f"{seen.connections} connections"
    )
