"""Verification of every checksum and of the features of every record; damage is listed and does not end it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from mptraining_api.problems import InvalidData
from mptraining_records.index import compressed, dataset_index, scanner
from mptraining_records.index.scanner import FrameWalk
from mptraining_records.index.shard_index import ShardIndex
from mptraining_records.storage import storage
from mptraining_records.storage.storage import StoredObject
from mptraining_records.tfrecord import features, framing, manifest, record_check
from mptraining_records.tfrecord.features import Feature
from mptraining_records.tfrecord.framing import BadRecord

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
    found = _find(patterns)
    bad: list[BadRecord] = []
    records = done = 0
    total = sum(object.size for object, _ in found)

    def fed(count: int) -> None:
        if progress:
            progress(done + count, total)

    inferred_from: list[tuple[_ContentCheck, ShardIndex, int]] = []
    for object, check in found:
        before = check.collected
        shard, payloads = _scan(object, check, fed)
        bad += payloads if shard.damage is None else (*payloads, shard.damage)
        if check.collected > before:
            inferred_from.append((check, shard, check.collected - before + len(payloads)))
        records += shard.count
        done += object.size
        fed(0)
    for check, shard, rows in inferred_from:
        check.finish()
        known = {(each.uri, each.offset) for each in bad}
        bad += [each for each in _faults_of(shard, rows, check) if (each.uri, each.offset) not in known]
    unchecked = dict.fromkeys(check.unchecked for _, check in found if check.unchecked)
    files = {object.uri: place for place, (object, _) in enumerate(found)}
    in_order = sorted(bad, key=lambda each: (files[each.uri], each.offset))
    return VerifyReport(len(found), records, total, tuple(in_order), "; ".join(unchecked))


def _faults_of(shard: ShardIndex, rows: int, check: _ContentCheck) -> Iterator[BadRecord]:
    """Yield the faults of the first rows of a shard, which were read before the features were known."""
    for row in range(min(rows, shard.count)):
        offset, length = int(shard.offsets[row]), int(shard.lengths[row])
        cause = check.fault(storage.read_range(shard.readable.uri, offset, length))
        if cause is not None:
            yield shard.bad_record(row, cause)


def _find(patterns: Sequence[str]) -> list[tuple[StoredObject, _ContentCheck]]:
    """List the shards as `dataset_index.find` does, each with the check of its content."""
    described = {
        storage.join(uri.rpartition("/")[0], file.name): check
        for uri, found in manifest.find_each(patterns)
        for check in (_ContentCheck(found.features),)
        for file in found.files
    }
    shards: dict[str, tuple[StoredObject, _ContentCheck]] = {}
    for pattern in dict.fromkeys(patterns):
        inferring = _ContentCheck(None)
        for object in dataset_index.find([pattern]):
            shards.setdefault(object.uri, (object, described.get(object.uri, inferring)))
    return [shards[uri] for uri in sorted(shards)]


class _ContentCheck:
    """Compares payloads with features; without features, with those of the first `_FIRST_RECORDS` payloads.

    `collected` is the number of payloads that were not compared, because the features were not known.
    """

    def __init__(self, known: Sequence[Feature] | None) -> None:
        self.unchecked = ""
        self.collected = 0
        self._features = known
        self._first: list[bytes] = []

    def fault(self, payload: bytes) -> str | None:
        """Return why the payload does not hold the features; None if it does or they are not known."""
        if self._features is None:
            self._first.append(payload)
            self.collected += 1
            if len(self._first) == _FIRST_RECORDS:
                self._infer()
            return None
        if self.unchecked:
            return None
        found = record_check.fault(self._features, payload)
        return found.cause if found else self._image_fault(payload)

    def finish(self) -> None:
        """Infer the features from fewer payloads than usual if there were no more."""
        if self._features is None:
            self._infer()

    def _infer(self) -> None:
        damaged = features.undecodable(self._first)
        try:
            sound = [each for place, each in enumerate(self._first) if place not in damaged]
            self._features = features.infer(sound or self._first)
        except InvalidData as problem:
            self.unchecked, self._features = str(problem), ()
        self._first.clear()

    def _image_fault(self, payload: bytes) -> str | None:
        for feature in self._features or ():
            if feature.decode not in features.IMAGES:
                continue
            for content in record_check.contents(feature, payload):
                fault = features.image_fault(content, feature.shape)
                if fault is not None:
                    return f"feature {feature.name!r} cannot be decoded: {fault}"
        return None


def _scan(
    object: StoredObject, check: _ContentCheck, progress: Callable[[int], None]
) -> tuple[ShardIndex, tuple[BadRecord, ...]]:
    """Return the index of one object, and its records with a damaged payload."""
    try:
        walk, shard = FrameWalk(object, content_fault=check.fault), None
        scanner.feed(walk, object, progress)
    except framing.CompressedFile:
        shard = compressed.scan(object)
        walk = FrameWalk(replace(shard.readable, uri=object.uri), content_fault=check.fault)
        scanner.feed(walk, shard.readable)
    return shard or walk.finish(), walk.bad_payloads
