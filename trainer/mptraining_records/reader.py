"""Records by number, their payloads verified: at random with `read`, ahead of their need with `stream`."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Literal, Self

import google_crc32c
import numpy as np

from mptraining_api.problems import InvalidData
from mptraining_records import framing, storage
from mptraining_records.disk_cache import DiskCache
from mptraining_records.fetch import STREAMS, Figures
from mptraining_records.framing import BadRecord
from mptraining_records.index import DatasetIndex
from mptraining_records.read_plan import RangeRead
from mptraining_records.shard_bytes import ShardBytes
from mptraining_records.shard_index import Int64s, ShardIndex


class RecordReader:
    """Reads records of a data set by their number. Safe to use from several threads; close it, or use `with`.

    `bad_records` "Fail" raises InvalidData at the first damaged payload; "Skip" gives None in its place, and
    raises when more than `max_skipped` different records were damaged. `skipped` lists them in the order of
    their discovery, each once. At most `streams` ranges are read at once.
    """

    def __init__(
        self,
        dataset: DatasetIndex,
        *,
        bad_records: Literal["Fail", "Skip"] = "Fail",
        max_skipped: int = 0,
        streams: int = STREAMS,
        cache: DiskCache | None = None,
    ) -> None:
        self.dataset = dataset
        self._bytes = ShardBytes(dataset, cache)
        self._skip = bad_records == "Skip"
        self._max_skipped = max_skipped
        self._skipped: dict[tuple[str, int], BadRecord] = {}
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._pool = ThreadPoolExecutor(max(1, streams), thread_name_prefix="records")

    @property
    def skipped(self) -> tuple[BadRecord, ...]:
        return tuple(self._skipped.values())

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
        reads = self.plan(numbers)
        loads = [(read, self.begin(read)) for read in reads]
        try:
            for read, load in loads:
                for place, payload in zip(read.places.tolist(), load.result(), strict=True):
                    results[place] = payload
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

    def begin(self, read: RangeRead) -> Future[list[bytes | None]]:
        """Begins to read one range; the result has a payload for each of its rows, None for each `damaged` one."""
        return self._pool.submit(self._load, read)

    def close(self) -> None:
        """Ends the threads; ranges that are on their way are waited for, those that are not yet begun are not."""
        self._closed.set()
        self._pool.shutdown(cancel_futures=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _load(self, read: RangeRead) -> list[bytes | None]:
        if self._closed.is_set():
            return []
        shard = self.dataset.shards[read.shard]
        payloads = list(_payloads(self._bytes.get(read), shard, read))
        if None in payloads and self._bytes.cache is not None:
            # The disk may be what is damaged.
            payloads = list(_payloads(self._bytes.get(read, anew=True), shard, read))
        return payloads

    def damaged(self, number: int) -> None:
        """Accounts for record `number`, which was read and is damaged; raises InvalidData as the class says."""
        of, rows = self.dataset.locate(np.array([number]))
        shard, row = self.dataset.shards[int(of[0])], int(rows[0])
        uri = shard.object.uri
        # Overwriting a file in place looks like damage; say what really happened.
        if storage.stat(uri).version != shard.object.version:
            raise storage.replaced(uri)
        offset = int(shard.offsets[row]) - framing.HEADER
        bad = BadRecord(uri, row, offset, framing.BAD_PAYLOAD)
        if not self._skip:
            raise bad.problem()
        with self._lock:
            self._skipped.setdefault((uri, row), bad)
            count = len(self._skipped)
        if count > self._max_skipped:
            raise InvalidData(
                uri,
                f"{count} damaged records, the last is record {row} at byte {offset}",
                expected=f"at most data.badRecords.maxSkipped = {self._max_skipped}",
                next_step="List them all with `mptj records verify`, repair the files or raise maxSkipped",
            )


def _payloads(content: bytes | memoryview, shard: ShardIndex, read: RangeRead) -> Iterator[bytes | None]:
    """The payloads of a range, None for each whose checksum is another one."""
    begins = shard.offsets[read.rows] - read.start
    ends = begins + shard.lengths[read.rows]
    view = memoryview(content)
    if len(view) < read.length:
        # A file that ends early was cut off after it was indexed.
        yield from [None] * len(read.rows)
        return
    checksums = framing.unmasked(np.frombuffer(view, np.uint8), ends)
    crc = google_crc32c.value
    for begin, end, checksum in zip(begins.tolist(), ends.tolist(), checksums.tolist(), strict=True):
        payload = bytes(view[begin:end])
        yield payload if crc(payload) == checksum else None
