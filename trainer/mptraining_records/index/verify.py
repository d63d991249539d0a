"""Verification of every checksum of a data set; damage is listed and does not end it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from mptraining_records.index import compressed, dataset_index, scanner
from mptraining_records.index.scanner import FrameWalk
from mptraining_records.index.shard_index import ShardIndex
from mptraining_records.storage.storage import StoredObject
from mptraining_records.tfrecord import framing
from mptraining_records.tfrecord.framing import BadRecord


@dataclass(frozen=True)
class VerifyReport:
    """Totals of a verification, and every damaged record in the order of the files.

    `records` counts the records with a valid frame, including those with a damaged payload; `bytes` is the size of the
    files.
    """

    files: int
    records: int
    bytes: int
    bad: tuple[BadRecord, ...]


def verify(patterns: Sequence[str], progress: Callable[[int, int], None] | None = None) -> VerifyReport:
    """Verify every record of the files that the patterns match.

    Damage affects only its own record, unless the beginning of the next record cannot be found. `progress` gets the
    bytes done and all bytes. Raises InvalidData if a pattern matches nothing or a file is not a TFRecord file.
    """
    objects = dataset_index.find(patterns)
    bad: list[BadRecord] = []
    records = done = 0
    total = sum(each.size for each in objects)

    def fed(count: int) -> None:
        if progress:
            progress(done + count, total)

    for object in objects:
        shard, payloads = _scan(object, fed)
        bad += sorted((*shard.damaged, *payloads), key=lambda each: each.offset)
        records += shard.count
        done += object.size
        fed(0)
    return VerifyReport(len(objects), records, total, tuple(bad))


def _scan(object: StoredObject, progress: Callable[[int], None]) -> tuple[ShardIndex, tuple[BadRecord, ...]]:
    """Return the index of one object, and its records with a damaged payload."""
    try:
        walk, shard = FrameWalk(object, check_payloads=True), None
        scanner.feed(walk, object, progress)
    except framing.CompressedFile:
        shard = compressed.scan(object)
        walk = FrameWalk(replace(shard.readable, uri=object.uri), check_payloads=True)
        scanner.feed(walk, shard.readable)
    return shard or walk.finish(), walk.bad_payloads
