"""The order in which the records of a source are written: permuted with a seed, or as in the source."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from mptraining_records.convert.table import Table
from mptraining_records.reading.order import Int64s, key, splitmix64

# The purpose of a key is part of it, so that order and validation split do not share one.
_ORDER = 1
_BUCKETS = 64
_BUCKET_MEMORY = 1 << 20
_HEADER = np.dtype([("rank", "<i8"), ("number", "<i8"), ("length", "<i8")])
Progress = Callable[[int, int], object]


def permutation(count: int, seed: int) -> Int64s:
    """Return the numbers 0 to count - 1 in an order that depends on the seed alone."""
    keys = splitmix64(key(seed, _ORDER), np.arange(count, dtype=np.uint64))
    return np.argsort(keys, kind="stable").astype(np.int64)


def permuted_records(source: Table, seed: int | None, scratch: Path, progress: Progress) -> Iterator[tuple[int, bytes]]:
    """Yield number and content of every record, permuted unless `seed` is None.

    Records of a source without random access are first written to temporary files in `scratch`.
    """
    if seed is None or source.random_access:
        order = permutation(source.count, seed) if seed is not None else None
        for done, record in enumerate(source.records(order), 1):
            yield record
            progress(done, source.count)
        return
    for done, record in enumerate(_through_files(source, seed, scratch, progress), 1):
        yield record
        progress(source.count + done, 2 * source.count)


def _through_files(source: Table, seed: int, scratch: Path, progress: Progress) -> Iterator[tuple[int, bytes]]:
    """Distribute the records to files by their place in the new order, then sort one file after the other."""
    ranks = np.empty(source.count, np.int64)
    ranks[permutation(source.count, seed)] = np.arange(source.count)
    with ExitStack() as stack:
        files = [
            stack.enter_context(tempfile.SpooledTemporaryFile(_BUCKET_MEMORY, "w+b", dir=str(scratch)))
            for _ in range(_BUCKETS)
        ]
        for done, (number, record) in enumerate(source.records(), 1):
            rank = int(ranks[number])
            file = files[rank * _BUCKETS // source.count]
            file.write(np.array((rank, number, len(record)), _HEADER).tobytes() + record)
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
