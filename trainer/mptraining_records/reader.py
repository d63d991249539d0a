"""Records by number, their payloads verified: neighbours are fetched together, shards side by side."""

from __future__ import annotations

import mmap
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import numpy as np

from mptraining_records import framing, storage
from mptraining_records.bad_records import BadRecords
from mptraining_records.framing import BadRecord
from mptraining_records.index import DatasetIndex
from mptraining_records.shard_index import Int64s, ShardIndex

# A request to a bucket takes about as long as 1 MB of transfer; reading over a shorter gap costs less.
MAX_GAP = 1 << 20
MAX_RANGE = 8 << 20


@dataclass(frozen=True)
class _Range:
    """Rows of one shard that one request fetches, and where their results go."""

    shard: int
    rows: Int64s
    places: Int64s


class RecordReader:
    """Reads records of a data set by their number. Safe to use from several threads; close it, or use `with`.

    `bad_records` decides about damaged payloads and keeps account of them; without it the first one raises InvalidData.
    A skipped one is None in its place.
    """

    def __init__(
        self,
        dataset: DatasetIndex,
        *,
        bad_records: BadRecords | None = None,
        threads: int = 8,
    ) -> None:
        self._dataset = dataset
        self._bad_records = bad_records or BadRecords()
        self._maps: dict[int, mmap.mmap] = {}
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(max(1, threads), thread_name_prefix="records")

    @property
    def skipped(self) -> tuple[BadRecord, ...]:
        """Every damaged record that the account knows, those of the index included."""
        return self._bad_records.skipped

    def read(self, record_numbers: Int64s) -> list[bytes | None]:
        """The payloads, in the order asked for, repetitions allowed; None for each skipped one.

        Raises InvalidData for a damaged record (see the class) and for a shard that was replaced since it
        was indexed, StorageUnavailable for a bucket that does not answer.
        """
        shards, rows = self._dataset.locate(record_numbers)
        results: list[bytes | None] = [None] * len(rows)
        ranges = list(self._ranges(shards, rows))
        remote = [each for each in ranges if self._is_remote(each.shard)]
        fetched = [self._pool.submit(self._fetch, each) for each in remote]
        try:
            for each in ranges:
                if not self._is_remote(each.shard):
                    self._deliver(each, self._map(each.shard), 0, results)
            for each, future in zip(remote, fetched, strict=True):
                start = int(self._dataset.shards[each.shard].offsets[each.rows[0]])
                self._deliver(each, future.result(), start, results)
        finally:
            for future in fetched:
                future.cancel()
        return results

    def close(self) -> None:
        """Ends the threads and unmaps the files."""
        self._pool.shutdown(cancel_futures=True)
        with self._lock:
            for content in self._maps.values():
                content.close()
            self._maps.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _is_remote(self, shard: int) -> bool:
        return storage.is_remote(self._dataset.shards[shard].readable.uri)

    def _ranges(self, shards: Int64s, rows: Int64s) -> Iterator[_Range]:
        """Cuts the wanted rows into ranges: one per local shard, one per request for a remote one."""
        by_place = np.lexsort((rows, shards))
        cuts = np.flatnonzero(np.diff(shards[by_place])) + 1
        for places in np.split(by_place, cuts) if len(by_place) else []:
            number = int(shards[places[0]])
            wanted = rows[places]
            if not self._is_remote(number):
                yield _Range(number, wanted, places)
                continue
            begin = 0
            for end in request_ends(self._dataset.shards[number], wanted):
                yield _Range(number, wanted[begin:end], places[begin:end])
                begin = end

    def _fetch(self, wanted: _Range) -> bytes:
        shard = self._dataset.shards[wanted.shard]
        start = int(shard.offsets[wanted.rows[0]])
        last = wanted.rows[-1]
        length = int(shard.offsets[last] + shard.lengths[last]) + framing.FOOTER - start
        return storage.read_range(shard.readable.uri, start, length, version=shard.readable.version)

    def _map(self, number: int) -> mmap.mmap:
        with self._lock:
            if number not in self._maps:
                self._maps[number] = storage.mapped(self._dataset.shards[number].readable)
            return self._maps[number]

    def _deliver(self, wanted: _Range, content: bytes | mmap.mmap, start: int, results: list[bytes | None]) -> None:
        """Cuts the records out of `content`, which begins at byte `start` of the shard, and checks them."""
        shard = self._dataset.shards[wanted.shard]
        begins = shard.offsets[wanted.rows] - start
        ends = begins + shard.lengths[wanted.rows]
        footer = framing.FOOTER
        for place, row, begin, end in zip(
            wanted.places.tolist(), wanted.rows.tolist(), begins.tolist(), ends.tolist(), strict=True
        ):
            payload = content[begin:end]
            if framing.is_payload(payload, content[end : end + footer]):
                results[place] = payload
            else:
                self._damaged(shard, row)

    def _damaged(self, shard: ShardIndex, row: int) -> None:
        # Overwriting a mapped file in place looks like damage; say what really happened.
        if storage.stat(shard.readable.uri).version != shard.readable.version:
            raise storage.replaced(shard.readable.uri)
        self._bad_records.met(shard.bad_record(row))


def request_ends(
    shard: ShardIndex, rows: Int64s, *, max_gap: int = MAX_GAP, max_range: int = MAX_RANGE
) -> Iterator[int]:
    """Where in the sorted `rows` each request ends: before a gap or a range of more bytes than allowed."""
    begins = shard.offsets[rows]
    ends = begins + shard.lengths[rows] + framing.FOOTER
    first = 0
    for at in range(1, len(rows)):
        if begins[at] - ends[at - 1] > max_gap or ends[at] - begins[first] > max_range:
            yield at
            first = at
    yield len(rows)
