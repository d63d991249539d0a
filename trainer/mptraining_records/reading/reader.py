"""Records by number, their payloads verified: at random with `read`, ahead of their need with `stream`."""

from __future__ import annotations

import threading
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from types import TracebackType
from typing import NamedTuple, Self

import numpy as np

from mptraining_records.index.bad_records import BadRecords
from mptraining_records.index.dataset_index import DatasetIndex
from mptraining_records.index.disk_cache import DiskCache
from mptraining_records.index.read_plan import RangeRead
from mptraining_records.index.shard_index import Int64s
from mptraining_records.reading.byte_source import Buffer, Buffers, Loaded, ShardBytes
from mptraining_records.storage import storage
from mptraining_records.storage.ranges import STREAMS, Figures, Traffic
from mptraining_records.tfrecord.framing import BadRecord

# What is on this machine comes as fast as it can be checked, which more threads than processors only slow down.
_NEAR = 2


class Load(NamedTuple):
    """A range on its way, and the memory that it comes to."""

    future: Future[Loaded]
    # None for what is on this machine.
    buffer: Buffer | None

    def result(self) -> Loaded:
        return self.future.result()

    def cancel(self) -> None:
        self.future.cancel()


class RecordReader:
    """Reads records of a data set by their number. Safe to use from several threads; close it, or use `with`.

    `bad_records` decides about damaged payloads and keeps account of them; without it the first one raises InvalidData.
    A skipped one is None in its place. At most `streams` ranges of buckets are read at once.
    """

    def __init__(
        self,
        dataset: DatasetIndex,
        *,
        bad_records: BadRecords | None = None,
        streams: int = STREAMS,
        cache: DiskCache | None = None,
        traffic: Traffic | None = None,
    ) -> None:
        self.dataset = dataset
        self._bytes = ShardBytes(dataset, traffic or Traffic(), cache)
        self.bad_records = bad_records or BadRecords()
        self._buffers = Buffers()
        # Shard and row of records that were damaged when they were fetched for the second time.
        self._confirmed: set[tuple[int, int]] = set()
        self._closed = threading.Event()
        self._far = ThreadPoolExecutor(max(1, streams), thread_name_prefix="records-far")
        self._near = ThreadPoolExecutor(_NEAR, thread_name_prefix="records-near")

    @property
    def skipped(self) -> tuple[BadRecord, ...]:
        """Every damaged record that the account knows, those of the index included."""
        return self.bad_records.skipped

    @property
    def figures(self) -> Figures:
        """What was fetched from buckets so far."""
        return self._bytes.traffic.figures

    def read(self, record_numbers: Int64s) -> list[bytes | None]:
        """The payloads, in the order asked for, repetitions allowed; None for each skipped one.

        Raises InvalidData for a damaged record (see the class) and for a shard that was replaced since it
        was indexed, StorageUnavailable for a bucket that does not answer.
        """
        numbers = np.asarray(record_numbers, np.int64)
        results: list[bytes | None] = [None] * len(numbers)
        loads = [(read, self.begin(read)) for read in self.plan(numbers)]
        try:
            for read, load in loads:
                loaded = load.result()
                for row, place in enumerate(read.places.tolist()):
                    results[place] = loaded.payload(row)
                self.end(load)
        finally:
            for _, load in loads:
                load.cancel()
        for place, record in enumerate(results):
            if record is None:
                self.damaged(int(numbers[place]))
        return results

    def plan(self, numbers: Int64s) -> list[RangeRead]:
        """The ranges that bring these records (shape [n], -1 for none), in the order in which they are needed first."""
        return self._bytes.plan(numbers)

    def begin(self, read: RangeRead) -> Load:
        """Begins to read one range. Whoever is through with it should `end` it."""
        near = self._bytes.is_near(read)
        buffer = None if near else self._buffers.take(read.length)
        pool = self._near if near else self._far
        return Load(pool.submit(self._load, read, buffer), buffer)

    def end(self, load: Load) -> None:
        """What was loaded is not looked at any more."""
        if load.buffer is not None:
            self._buffers.give(load.buffer)

    def close(self) -> None:
        """Ends the threads; ranges that are on their way are waited for, those that are not yet begun are not."""
        self._closed.set()
        for pool in (self._near, self._far):
            pool.shutdown(cancel_futures=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _load(self, read: RangeRead, buffer: Buffer | None) -> Loaded:
        if self._closed.is_set():
            raise CancelledError
        shard = self.dataset.shards[read.shard]
        loaded = Loaded(self._bytes.get(read, buffer), shard, read)
        if self._bytes.is_remote(read) and not self._confirmed.issuperset(_damaged(read, loaded)):
            # The way, or the disk cache, may be what is damaged.
            loaded = Loaded(self._bytes.get(read, None, anew=True), shard, read)
            self._confirmed.update(_damaged(read, loaded))
        return loaded

    def damaged(self, number: int) -> None:
        """Accounts for record `number`, which was read and is damaged; raises InvalidData as the class says."""
        of, rows = self.dataset.locate(np.array([number]))
        shard, row = self.dataset.shards[int(of[0])], int(rows[0])
        # Overwriting a file in place looks like damage; say what really happened.
        if storage.stat(shard.readable.uri).version != shard.readable.version:
            raise storage.replaced(shard.readable.uri)
        self.bad_records.met(shard.bad_record(row))


def _damaged(read: RangeRead, loaded: Loaded) -> set[tuple[int, int]]:
    """Shard and row of the damaged records of a range."""
    return {(read.shard, row) for row, sound in zip(read.rows.tolist(), loaded.is_sound, strict=True) if not sound}
