"""This project's reader as a contender."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mptraining_records.index import bad_record_policy, dataset_index, sidecar
from mptraining_records.index.bad_record_policy import BadRecords
from mptraining_records.index.disk_cache import DiskCache
from mptraining_records.index.shard_index import Int64s
from mptraining_records.reading.order import Order, Position, Shuffle, training_order
from mptraining_records.reading.prefetch import RecordStream
from mptraining_records.reading.reader import RecordReader
from mptraining_records.storage import storage

SEED = 7
# Objects that a process keeps open between its epochs, by patterns and cache.
_opened: dict[tuple[tuple[str, ...], str | None], RecordReader] = {}


@dataclass(frozen=True)
class Skipped:
    """The report of a run that skips damaged records: `named` are those that its manifest names."""

    named: int


def records(
    patterns: Sequence[str],
    *,
    batch: int,
    shuffle: int | None = None,
    start: int = 0,
    cache: str | None = None,
    max_skipped: int = 0,
    skipped: list[Skipped] | None = None,
) -> Iterator[list[bytes]]:
    """Yield one epoch from position `start` on, in batches.

    `shuffle` is the window in records, 0 the default, None the stored order.

    `cache` is a folder to keep the bytes in. If `max_skipped` is not 0, up to so many damaged records are
    skipped, and `skipped` gets the report of them.
    """
    known = (tuple(patterns), cache)
    if known not in _opened:
        _opened[known] = _open(patterns, cache, max_skipped)
    reader = _opened[known]
    count = reader.dataset.count
    order = _order(count, shuffle, reader.dataset.mean_record_bytes)
    together = order.together
    row = together.row_size if together else 10_000

    def units() -> Iterator[Int64s]:
        at = start
        while at < count:
            end = min(count, at // row * row + row)
            yield order.records(0, np.arange(at, end))
            at = end

    stream = RecordStream(reader, units(), together=together, first=batch)
    while taken := stream.take(batch):
        yield [record for record in taken if record is not None]
    if skipped is not None:
        with tempfile.TemporaryDirectory() as folder:
            manifest = storage.read(bad_record_policy.save(folder, "skipped", reader.skipped))
        skipped.append(Skipped(len(json.loads(manifest)["records"])))


def _open(patterns: Sequence[str], cache: str | None, max_skipped: int) -> RecordReader:
    kept = None
    if cache is not None:
        storage.local_folder(cache)
        kept = DiskCache(Path(cache), on_full=_full)
    account = BadRecords("Skip", max_skipped) if max_skipped else BadRecords()
    dataset = dataset_index.build(patterns, bad_records=account, cache=kept)
    return RecordReader(dataset, bad_records=account, cache=kept)


def _full(text: str) -> None:
    raise RuntimeError(text)


def state(examples: int) -> bytes:
    """Return the state that is needed to resume after so many examples."""
    return json.dumps(asdict(Position(SEED, 0, examples, "0" * 64))).encode()


def reread_bound(count: int, shuffle: int, record_bytes: float) -> float:
    """Return the bytes of one window and one block: the most that resuming may read again."""
    order = _order(count, shuffle, int(record_bytes))
    return (order.window_size + order.block_size) * record_bytes


def publish_index(patterns: Sequence[str]) -> None:
    """Write the sidecars, as `mptj records index` does."""
    for shard in dataset_index.build(patterns).shards:
        sidecar.save(shard)


def order_of(patterns: Sequence[str]) -> tuple[NDArray[np.int64], list[int]]:
    """Return the record numbers of an epoch in the default order, and the number of records in each file."""
    dataset = dataset_index.build(patterns)
    order = _order(dataset.count, 0, dataset.mean_record_bytes)
    return order.records(0, np.arange(dataset.count)), [shard.count for shard in dataset.shards]


def _order(count: int, shuffle: int | None, record_bytes: int) -> Order:
    mode: Shuffle = "None" if shuffle is None else "Windowed"
    return training_order(count, record_bytes, seed=SEED, shuffle=mode, buffer_size=shuffle or None)
