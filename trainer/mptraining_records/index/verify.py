"""Verification of every checksum and of the features of every record; damage is listed and does not end it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from mptraining_api.problems import InvalidData
from mptraining_records.index import compressed, dataset_index, scanner
from mptraining_records.index.scanner import FrameWalk
from mptraining_records.index.shard_index import ShardIndex
from mptraining_records.tfrecord import features, framing, manifest, record_check
from mptraining_records.tfrecord.features import Feature
from mptraining_records.tfrecord.framing import BadRecord
from mptraining_storage import storage
from mptraining_storage.preconditions import StoredObject

# The number of records from which a job infers features, too.
_FIRST_RECORDS = 16


@dataclass(frozen=True)
class VerifyReport:
    """Totals of a verification, and every damaged record in the order of the files.

    `records` counts the records with a valid frame, including those with a damaged payload; `bytes` is the size of the
    files. `unchecked` is the reason why features could not be checked, if any.
    """

    files: int
    records: int
    bytes: int
    bad: tuple[BadRecord, ...]
    unchecked: str = ""


def verify(patterns: Sequence[str], progress: Callable[[int, int], None] | None = None) -> VerifyReport:
    """Verify every record of the files that the patterns match.

    A damaged payload affects only its own record, a damaged length all records behind it in its file. The features are
    those of a file's manifest, otherwise those of the first records of its pattern. `progress` gets the bytes done and
    all bytes. Raises InvalidData if a pattern matches nothing or a file is not a TFRecord file.
    """
    shards = _find(patterns)
    bad: list[BadRecord] = []
    records = done = 0
    total = sum(stored.size for stored, _ in shards)

    def fed(count: int) -> None:
        if progress:
            progress(done + count, total)

    for stored, check in shards:
        shard, payloads = _scan(stored, check.fault, fed)
        bad += payloads if shard.damage is None else (*payloads, shard.damage)
        records += shard.count
        done += stored.size
        fed(0)
    unchecked = dict.fromkeys(check.unchecked for _, check in shards if check.unchecked)
    return VerifyReport(len(shards), records, total, tuple(bad), "; ".join(unchecked))


def _find(patterns: Sequence[str]) -> list[tuple[StoredObject, _ContentCheck]]:
    """List the shards as `dataset_index.find` does, each with the check of its content."""
    described = {
        storage.join(uri.rpartition("/")[0], file.name): check
        for uri, split in manifest.find_each(patterns)
        for check in (_ContentCheck(split.features),)
        for file in split.files
    }
    shards: dict[str, tuple[StoredObject, _ContentCheck]] = {}
    for pattern in dict.fromkeys(patterns):
        objects = [stored for stored in dataset_index.find([pattern]) if stored.uri not in shards]
        inferred = _ContentCheck.inferred([stored for stored in objects if stored.uri not in described])
        shards |= {stored.uri: (stored, described.get(stored.uri, inferred)) for stored in objects}
    return [shards[uri] for uri in sorted(shards)]


class _Enough(Exception):
    """Ends the scan for the first records."""


class _ContentCheck:
    """Compares payloads with features; `unchecked` is the reason if there are none to compare with."""

    def __init__(self, known: Sequence[Feature], unchecked: str = "") -> None:
        self.unchecked = unchecked
        self._features = known

    @classmethod
    def inferred(cls, objects: Sequence[StoredObject]) -> _ContentCheck:
        """Return the check against the features of the first records of these shards."""
        first: list[bytes] = []

        def collect(payload: bytes) -> None:
            first.append(payload)
            if len(first) == _FIRST_RECORDS:
                raise _Enough

        with suppress(_Enough):
            for stored in objects:
                _scan(stored, collect, lambda _: None)
        damaged = features.undecodable(first)
        try:
            return cls(features.infer([record for at, record in enumerate(first) if at not in damaged] or first))
        except InvalidData as problem:
            return cls((), str(problem))

    def fault(self, payload: bytes) -> str | None:
        """Return why the payload does not hold the features; None if it does or they are not known."""
        if self.unchecked:
            return None
        mistake = record_check.fault(self._features, payload)
        return mistake.cause if mistake else self._image_fault(payload)

    def _image_fault(self, payload: bytes) -> str | None:
        for feature in self._features:
            if feature.decode not in features.IMAGES:
                continue
            for content in record_check.contents(feature, payload):
                fault = features.image_fault(content, feature.shape)
                if fault is not None:
                    return f"feature {feature.name!r} cannot be decoded: {fault}"
        return None


def _scan(
    stored: StoredObject, fault: Callable[[bytes], str | None], progress: Callable[[int], None]
) -> tuple[ShardIndex, tuple[BadRecord, ...]]:
    """Return the index of one object, and its records with a damaged payload."""
    try:
        walk, shard = FrameWalk(stored, content_fault=fault), None
        scanner.feed(walk, stored, progress)
    except framing.CompressedFile:
        shard = compressed.scan(stored)
        walk = FrameWalk(replace(shard.readable, uri=stored.uri), content_fault=fault)
        scanner.feed(walk, shard.readable)
    return shard or walk.finish(), walk.bad_payloads
