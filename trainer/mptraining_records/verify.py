"""Checks every checksum of a data set and goes on after damage, to list all of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from mptraining_records import index, shard_index
from mptraining_records.framing import BadRecord
from mptraining_records.index import DatasetIndex
from mptraining_records.reader import RecordReader

_AT_ONCE = 1024


@dataclass(frozen=True)
class VerifyReport:
    """What was read, and every damaged record; `bytes` is the size of the files."""

    files: int
    records: int
    bytes: int
    bad: tuple[BadRecord, ...]


def verify(patterns: Sequence[str], progress: Callable[[int, int], None] | None = None) -> VerifyReport:
    """Reads every record of the files that the patterns match.

    A damaged payload costs one record. A damaged length ends its file, since what follows cannot be found;
    its cause says so. `progress` gets the files done and their number. Raises InvalidData when a pattern
    matches nothing or a file is no TFRecord file.
    """
    objects = index.find(patterns)
    bad: list[BadRecord] = []
    records = 0
    for number, object in enumerate(objects, 1):
        shard, broken = shard_index.walk(object)
        with RecordReader(DatasetIndex((shard,)), bad_records="Skip", max_skipped=shard.count) as reader:
            for start in range(0, shard.count, _AT_ONCE):
                reader.read(np.arange(start, min(start + _AT_ONCE, shard.count)))
            bad += reader.skipped
        records += shard.count
        if broken is not None:
            lost = object.size - broken.offset
            bad.append(
                BadRecord(
                    broken.uri,
                    broken.record,
                    broken.offset,
                    f"{broken.cause}; the last {lost} bytes of the file cannot be read",
                )
            )
        if progress:
            progress(number, len(objects))
    return VerifyReport(len(objects), records, sum(each.size for each in objects), tuple(bad))
