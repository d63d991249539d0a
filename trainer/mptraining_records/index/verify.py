"""Checks every checksum of a data set and goes on after damage, to list all of it."""

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
    """What was read, and every damaged record in the order of the files.

    `records` counts those whose place is known, `bad` with a damaged payload included; `bytes` is the size of the
    files.
    """

    files: int
    records: int
    bytes: int
    bad: tuple[BadRecord, ...]


def verify(patterns: Sequence[str], progress: Callable[[int, int], None] | None = None) -> VerifyReport:
    """Reads every record of the files that the patterns match.

    Damage costs its record, wherever in it the damage is, unless nothing tells where the next record begins.
    `progress` gets the bytes done and all bytes. Raises InvalidData when a pattern matches nothing or a file is no
    TFRecord file.
    """
    objects = dataset_index.find(patterns)
    bad: list[BadRecord] = []
    records = done = 0
    total = sum(each.size for each in objects)

    def fed(count: int) -> None:
        if progress:
            progress(done + count, total)

    for object in objects:
        shard, payloads = _walked(object, fed)
        bad += sorted((*shard.damaged, *payloads), key=lambda each: each.offset)
        records += shard.count
        done += object.size
        fed(0)
    return VerifyReport(len(objects), records, total, tuple(bad))


def _walked(object: StoredObject, progress: Callable[[int], None]) -> tuple[ShardIndex, tuple[BadRecord, ...]]:
    """The index of one object, and its records with a damaged payload."""
    try:
        walk, shard = FrameWalk(object, check_payloads=True), None
        scanner.feed(walk, object, progress)
    except framing.CompressedFile:
        shard = compressed.scan(object)
        walk = FrameWalk(replace(shard.readable, uri=object.uri), check_payloads=True)
        scanner.feed(walk, shard.readable)
    return shard or walk.finish(), walk.bad_payloads
