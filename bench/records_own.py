"""This project's reader as a contender."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from mptraining_records import index, sidecar
from mptraining_records.order import Order, Position
from mptraining_records.reader import RecordReader

SEED = 7


@dataclass(frozen=True)
class Skipped:
    """What a run that skips damaged records tells: `named` are those that its manifest names."""

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
    """One epoch from position `start` on, in batches; `shuffle` is the window in records, None the stored order.

    `cache` is a folder to keep the bytes in. Where `max_skipped` is not 0, up to so many damaged records are left
    out, and `skipped` is given what became of them.
    """
    del cache
    dataset = index.build(patterns)
    order = _order(dataset.count, shuffle)
    mode = {"bad_records": "Skip", "max_skipped": max_skipped} if max_skipped else {}
    with RecordReader(dataset, **mode) as reader:  # type: ignore[arg-type]
        for first in range(start, dataset.count, batch):
            positions = np.arange(first, min(first + batch, dataset.count))
            yield [record for record in reader.read(order.records(0, positions)) if record is not None]
        if skipped is not None:
            skipped.append(Skipped(len(reader.skipped)))


def state(examples: int) -> bytes:
    """What is kept to resume after so many examples."""
    return Position(SEED, 0, examples, "0" * 64).to_json().encode()


def reread_bound(count: int, shuffle: int, record_bytes: float) -> float:
    """Bytes of one window and one block: what resuming may read again."""
    order = _order(count, shuffle)
    return (order.row_size + order.block) * record_bytes


def publish_index(patterns: Sequence[str]) -> None:
    """Writes the sidecars, as `mptj records index` does."""
    for shard in index.build(patterns).shards:
        sidecar.save(shard)


def _order(count: int, shuffle: int | None) -> Order:
    return Order(count, SEED, buffer_size=shuffle or 1, shuffle=shuffle is not None)
