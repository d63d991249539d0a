"""This project's reader as a contender."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mptraining_records.index import dataset_index
from mptraining_records.reading.order import Shuffle, training_order
from mptraining_records.reading.prefetch import RecordStream
from mptraining_records.reading.reader import RecordReader
from mptraining_trainer.data.batching import SINGLE_WORKER, Span, windows

_SEED = 7


def records(
    patterns: Sequence[str], *, batch: int, shuffle: int | None = None, mixed: bool = False
) -> Iterator[list[bytes]]:
    """Yield one epoch in batches. `shuffle` is the window in records, 0 the default, None the stored order."""
    reader = RecordReader(dataset_index.build(patterns))
    count = reader.dataset.count
    mode: Shuffle = "None" if shuffle is None else "Windowed"
    mean = reader.dataset.mean_record_bytes
    order = training_order(count, mean, seed=_SEED, shuffle=mode, buffer_size=shuffle or None, mixed=mixed)
    stream = RecordStream(reader, windows(order, [Span(0, 0, count, count)], SINGLE_WORKER))
    while taken := stream.take(batch):
        yield [record for record in taken if record is not None]


def publish_index(patterns: Sequence[str]) -> None:
    """Write the sidecars, as `mptj records index` does."""
    dataset_index.publish(patterns)
