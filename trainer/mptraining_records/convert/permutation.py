"""The order in which the rows of a source are written: permuted with a seed, or as in the source."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from mptraining_records.convert.sources import Source
from mptraining_records.reading.order import Int64s, key, splitmix64
from mptraining_records.tfrecord import example
from mptraining_records.tfrecord.example import Encodable

# The purpose of a key is part of it, so that order and validation split do not share one.
_ORDER = 1
_BUCKETS = 64
_BUCKET_MEMORY = 1 << 20
Row = Mapping[str, Encodable]
_HEADER = np.dtype([("rank", "<i8"), ("number", "<i8"), ("length", "<i8")])


def permutation(count: int, seed: int) -> Int64s:
    """Return the numbers 0 to count - 1 in an order that depends on the seed alone."""
    keys = splitmix64(key(seed, _ORDER), np.arange(count, dtype=np.uint64))
    return np.argsort(keys, kind="stable").astype(np.int64)


def encoded_rows(
    source: Source,
    seed: int | None,
    scratch: Path,
    progress: Callable[[int, int], None],
    on_row: Callable[[int, Row], None] = lambda number, row: None,
) -> Iterator[tuple[int, bytes]]:
    """Yield number and record of every row, permuted unless `seed` is None; `on_row` gets each row once, in any order.

    The rows of a source without random access are first written to temporary files in `scratch`.
    """
    if seed is None or source.random_access:
        order = permutation(source.count, seed) if seed is not None else None
        for done, (number, row) in enumerate(source.rows(order), 1):
            on_row(number, row)
            yield number, example.encode(row)
            progress(done, source.count)
        return
    for done, each in enumerate(_through_files(source, seed, scratch, progress, on_row), 1):
        yield each
        progress(source.count + done, 2 * source.count)


def _through_files(
    source: Source, seed: int, scratch: Path, progress: Callable[[int, int], None], on_row: Callable[[int, Row], None]
) -> Iterator[tuple[int, bytes]]:
    """Distribute the records to files by their place in the new order, then sort one file after the other."""
    ranks = np.empty(source.count, np.int64)
    ranks[permutation(source.count, seed)] = np.arange(source.count)
    with ExitStack() as stack:
        files = [
            stack.enter_context(tempfile.SpooledTemporaryFile(_BUCKET_MEMORY, "w+b", dir=str(scratch)))
            for _ in range(_BUCKETS)
        ]
        for done, (number, row) in enumerate(source.rows(), 1):
            on_row(number, row)
            record, rank = example.encode(row), int(ranks[number])
            file = files[rank * _BUCKETS // source.count]
            file.write(np.array((rank, number, len(record)), _HEADER).tobytes())
            file.write(record)
            progress(done, 2 * source.count)
        for file in files:
            file.seek(0)
            records: dict[int, tuple[int, bytes]] = {}
            while header := file.read(_HEADER.itemsize):
                rank, number, length = np.frombuffer(header, _HEADER)[0].tolist()
                records[rank] = (number, file.read(length))
            for rank in sorted(records):
                yield records[rank]
            file.close()
