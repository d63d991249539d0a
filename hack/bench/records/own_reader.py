"""This project's reader as a contender."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from mptraining_records.index import dataset_index, sidecar
from mptraining_records.reading.order import Shuffle, training_order
from mptraining_records.reading.prefetch import RecordStream
from mptraining_records.reading.reader import RecordReader

_SEED = 7


def records(patterns: Sequence[str], *, batch: int, shuffle: int | None = None) -> Iterator[list[bytes]]:
    """Yield one epoch in batches. `shuffle` is the window in records, 0 the default, None the stored order."""
    reader = RecordReader(dataset_index.build(patterns))
    count = reader.dataset.count
    mode: Shuffle = "None" if shuffle is None else "Windowed"
    mean = reader.dataset.mean_record_bytes
    order = training_order(count, mean, seed=_SEED, shuffle=mode, buffer_size=shuffle or None)
    together = order.together
    row = together.row_size if together else 10_000
    units = (order.records(0, np.arange(at, min(count, at + row))) for at in range(0, count, row))
    stream = RecordStream(reader, units, together=together, first=batch)
    while taken := stream.take(batch):
        yield [record for record in taken if record is not None]


def publish_index(patterns: Sequence[str]) -> None:
    """Write the sidecars, as `mptj records index` does."""
    for shard in dataset_index.build(patterns).shards:
        sidecar.save(shard)
