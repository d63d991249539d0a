"""How well the training order mixes records that are stored by class, and what reading in that order costs.

Arithmetic over the order and the plans of ranges, without reading: 1,280,000 records (as many as ImageNet has), sorted
by 1,000 classes in 1,024 objects, batches of 256.

    classes_per_batch   distinct classes in a batch; a true shuffle has 226
    correlation         of the class counts of two batches, 1 and 64 batches apart; a true shuffle has 0
    bytes_read          of the bytes of the records, for one worker
    range_kb            mean length of a range
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hack.bench.figures import Figure, figure
from mptraining_records.index.dataset_index import DatasetIndex
from mptraining_records.index.read_plan import range_reads
from mptraining_records.index.shard_index import from_lengths
from mptraining_records.reading.byte_source import REMOTE
from mptraining_records.reading.lookahead import Lookahead
from mptraining_records.reading.order import Order, training_order
from mptraining_records.reading.prefetch import READ_AHEAD
from mptraining_records.storage.storage import StoredObject
from mptraining_records.tfrecord.framing import OVERHEAD

COUNT, CLASSES, BATCH, SHARDS = 1_280_000, 1000, 256, 1024
RECORD_BYTES = (1_000, 4_000, 16_000, 110_000)
_SEED = 7
_ROWS = 3


@dataclass(frozen=True)
class Mixing:
    """`near` and `far` are the correlations 1 and 64 batches apart, or half of the epoch if that is less."""

    classes: float
    near: float
    far: float


def mixing(records: NDArray[np.int64], classes: int, batch: int) -> Mixing:
    """Return the mixing of an epoch's record numbers, where the numbers are sorted by `classes` of equal size."""
    of = records * classes // len(records)
    batches = len(records) // batch
    counts = np.zeros((batches, classes))
    np.add.at(counts, (np.repeat(np.arange(batches), batch), of[: batches * batch]), 1)
    differences = counts - counts.mean(axis=1, keepdims=True)
    differences /= np.linalg.norm(differences, axis=1, keepdims=True)
    near, far = (
        float((differences[:-lag] * differences[lag:]).sum(axis=1).mean()) for lag in (1, min(64, batches // 2))
    )
    return Mixing(float((counts > 0).sum(axis=1).mean()), near, far)


def cost(order: Order, record_bytes: int, *, workers: int = 1) -> tuple[float, float]:
    """Return the bytes that all workers fetch for each byte of records, and the mean length of a range.

    Some rows in the middle of the epoch stand for all.
    """
    each = COUNT // SHARDS
    lengths = np.full(each, record_bytes - OVERHEAD)
    size = each * record_bytes
    shards = tuple(from_lengths(StoredObject(f"gs://b/{n:04}", size, "1"), lengths, 0) for n in range(SHARDS))
    dataset = DatasetIndex(shards)
    together = order.together
    # Without rows that are read together, the records of half a read-ahead are planned at once.
    row = together.row_size if together else READ_AHEAD // 2 // record_bytes
    rows = together.rows if together else 1
    begin = COUNT // 2 // row * row
    own = fetched = ranges = 0
    for worker in range(workers):
        firsts = range(begin, min(COUNT, begin + (2 * rows + _ROWS) * row), row)
        units = (order.records(0, np.arange(first + worker, min(COUNT, first + row), workers)) for first in firsts)
        ahead = Lookahead(units, together, COUNT)
        for number in range(len(firsts)):
            chosen = ahead.choose()
            assert chosen is not None
            # The first rows contain the rest of earlier blocks, the last ones begin blocks that end later.
            if rows <= number < rows + _ROWS:
                of, of_shard = dataset.locate(chosen.numbers)
                reads = range_reads(shards, of, of_shard, chosen.places, REMOTE)
                own += len(chosen.numbers) * record_bytes
                fetched += sum(read.length for read in reads)
                ranges += len(reads)
    return fetched / own, fetched / ranges


def measure() -> list[Figure]:
    """Return the figures of the default shuffling for each size of records."""
    true = mixing(np.random.default_rng(_SEED).permutation(COUNT), CLASSES, BATCH)
    figures = []
    for record_bytes in RECORD_BYTES:
        order = training_order(COUNT, record_bytes, seed=_SEED, shuffle="Windowed")
        found = mixing(order.records(0, np.arange(COUNT)), CLASSES, BATCH)
        amplification, length = cost(order, record_bytes)
        where = f"records.mixing.{record_bytes}_bytes"
        figures += [
            figure(
                f"{where}.classes_per_batch",
                [found.classes],
                [true.classes],
                unit="classes",
                against="true shuffle",
                least=round(200 / 226, 3),
            ),
            _absolute(f"{where}.correlation_lag_1", found.near, "", most=0.05),
            _absolute(f"{where}.correlation_lag_64", found.far, "", most=0.05),
            _absolute(f"{where}.bytes_read", amplification, "of the bytes", most=1.5),
            _absolute(f"{where}.range_kb", length / 1000, "kB", least=40 if record_bytes > 2000 else 20),
        ]
    return figures


def _absolute(name: str, value: float, unit: str, *, least: float | None = None, most: float | None = None) -> Figure:
    return figure(name, [value], [1.0], unit=unit, against="1", least=least, most=most)
