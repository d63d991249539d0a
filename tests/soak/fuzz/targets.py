"""The parsers, and what each must do with any bytes: a correct result, or an error that names the file.

A target gets the bytes and an empty folder. It raises `Wrong` for a result that cannot be right; whatever leaves it
besides a Problem is a finding.
"""

from __future__ import annotations

import base64
import gzip
import json
import shutil
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import google_crc32c
import msgspec
import numpy as np

from mptraining.board import event_batches
from mptraining.job_file import runtimes
from mptraining_api import events
from mptraining_api.problems import InvalidData, Problem
from mptraining_api.resolve.document_problems import document_problems
from mptraining_api.resolve.resolve import ClusterSettings, resolve
from mptraining_api.spec import MPTrainingJob
from mptraining_api.status import Progress
from mptraining_api.validation.job_text import load_job_text
from mptraining_operator.progress import auth
from mptraining_operator.progress.auth import JobForProgress, Refused, check_report
from mptraining_operator.progress.status import to_status
from mptraining_operator.watch import api_objects, parse
from mptraining_records.index import compressed, dataset_index, scanner, sidecar
from mptraining_records.index.shard_index import ShardIndex
from mptraining_records.storage import storage
from mptraining_records.storage.preconditions import StoredObject
from mptraining_records.tfrecord import example, features, framing, manifest, record_check
from mptraining_trainer.checkpoints import files, state
from mptraining_trainer.source import archive

# The trainer reads records and sidecars of this size whole; larger inputs of a fuzzer repeat themselves.
LARGEST = 1 << 16
_NOW = 1_700_000_000.0
_JOB = JobForProgress("uid", 1, {"pod": 0}, None)


class Wrong(Exception):
    """A result that contradicts itself."""


@dataclass(frozen=True)
class Target:
    """`named`: whether a message must have the path of the file in it."""

    run: Callable[[bytes, Path], None]
    named: bool = True


def records(content: bytes, folder: Path) -> None:
    """Index and read a TFRecord file, whole and in pieces."""
    path = _file(folder, "a.tfrecord", content)
    found = storage.stat(str(path))
    shard = dataset_index.index_local_file(found)
    if content[:2] in (b"\x1f\x8b",) or shard.readable != found:
        return
    if _covered(shard) != found.size:
        raise Wrong("records and damage do not cover the file")
    for check in (False, True):
        walk = scanner.FrameWalk(found, content_fault=(lambda _: None) if check else None)
        for begin in range(0, len(content), 7):
            walk.feed(content[begin : begin + 7])
        if not np.array_equal(walk.finish().lengths, shard.lengths):
            raise Wrong("pieces of 7 bytes give other records than the whole file")
    at = 0
    for length in shard.lengths.tolist():
        if int.from_bytes(content[at : at + 8], "little") != length:
            raise Wrong(f"the record at byte {at} has another length")
        at += length + framing.OVERHEAD


def _covered(shard: ShardIndex) -> int:
    """Return the number of bytes in records and in the damaged end."""
    return int(np.sum(shard.lengths + framing.OVERHEAD)) + (shard.damage.length if shard.damage else 0)


def compressed_records(content: bytes, folder: Path) -> None:
    """Index a compressed file whose content is these bytes, and one whose stream is cut in the middle."""
    packed = gzip.compress(content, 1, mtime=0) if len(content) % 2 else zlib.compress(content, 1)
    for piece in (packed, packed[: len(packed) // 2]):
        path = _file(folder, "a.tfrecord.gz", piece)
        try:
            compressed.scan(storage.stat(str(path)), folder)
        except InvalidData as problem:
            _require_named(problem, str(path))


def tf_example(content: bytes, folder: Path) -> None:
    """Parse a record, infer its features, and check it against those of its own."""
    example.parse(content)
    example.parse_sequences(content)
    features.undecodable([content])
    found = features.infer([content])
    features.describe(found)
    record_check.fault(found, content)
    for feature in found:
        for each in record_check.contents(feature, content) if feature.decode else ():
            features.image_fault(each, feature.shape)


def index_sidecar(content: bytes, folder: Path) -> None:
    """Load the sidecar of an object that was indexed before."""
    uri = str(folder / "a.tfrecord")
    (folder / ".index").mkdir()
    place = folder / ".index" / "a.tfrecord"
    # The fuzzer cannot find a checksum: the header is its own, the sum may be right.
    header, _, lengths = content.partition(b"\n")
    place.write_bytes(content)
    size = 3 * framing.OVERHEAD + 60
    object_ = StoredObject(uri, size, "1")
    found = [sidecar.load(object_)]
    try:
        fields = json.loads(header)
        repaired = {"version": "1", "size": size, "checksum": 5, **fields}
        repaired["lengths_crc32c"] = google_crc32c.value(lengths)
        place.write_bytes(b"MPTX2\n" + json.dumps(repaired).encode() + b"\n" + lengths)
    except (ValueError, TypeError, RecursionError):
        pass
    found.append(sidecar.load(object_))
    for shard in found:
        if shard is not None:
            if _covered(shard) != size or (shard.lengths < 0).any():
                raise Wrong("the sidecar describes another object")
            _ = [shard.bad_record(row) for row in range(shard.count)]


def split_manifest(content: bytes, folder: Path) -> None:
    path = _file(folder, "train-manifest.json", content)
    found = manifest.load(str(path))
    features.describe(found.features)
    merged = manifest.find([f"{folder}/*.tfrecord"])
    if merged is not None and merged.records != sum({each.name: each.records for each in merged.files}.values()):
        raise Wrong("the number of records is not that of the files")


def source_archive(content: bytes, folder: Path) -> None:
    """Unpack the bytes, and the .tgz whose tar they are."""
    tar = folder / "a.tgz"
    for number, packed in enumerate((content, gzip.compress(content, 1, mtime=0))):
        tar.write_bytes(packed)
        inside = folder / "outer" / str(number) / "source"
        inside.mkdir(parents=True)
        try:
            archive.unpack(tar, inside, "the archive")
        except Problem as problem:
            if "archive" not in str(problem):
                raise Wrong(f"the message names no archive: {problem}") from problem
        if [*inside.parent.iterdir()] != [inside] or {*folder.iterdir()} != {tar, folder / "outer"}:
            raise Wrong("the archive has left its folder")
        for path in inside.rglob("*"):
            if not path.resolve().is_relative_to(inside.resolve()):
                raise Wrong(f"{path} leads out of the source folder")
        shutil.rmtree(inside)


def progress_report(content: bytes, folder: Path) -> None:
    """Accept or refuse the body of a report, and write its status, which the API server must take."""
    try:
        report = check_report(content, _JOB)
    except Refused:
        return
    status = to_status(report, Progress(attempt=1, step=3, total_steps=9), _NOW)
    document = status.model_dump(by_alias=True, exclude_none=True, mode="json")
    json.dumps(document, allow_nan=False)
    if any(isinstance(each, int) and not 0 <= each < 2**53 for each in document.values()):
        raise Wrong(f"a number that no status takes: {document}")


def event_log(content: bytes, folder: Path) -> None:
    """Read a worker's log, and the board's batch of it."""
    for line in content.decode(errors="replace").splitlines():
        events.parse(line)
    event_batches.decode(content)


def bearer_token(content: bytes, folder: Path) -> None:
    """Read the expiry of a token, and of one whose claims are these bytes."""
    auth.token_expiry(auth.bearer_token(content.decode("latin-1")))
    auth.token_expiry(f"e30.{base64.urlsafe_b64encode(content).decode().rstrip('=')}.x")


def job_file(content: bytes, folder: Path) -> None:
    """Read a job file, find its mistakes, and resolve it where it has none."""
    path = _file(folder, "job.yaml", content)
    text = load_job_text(path)
    settings = ClusterSettings()
    found = document_problems(text.content, settings)
    if found.problems:
        raise text.located(found.problems)
    resolve(MPTrainingJob.parse(text.content), settings)


def runtimes_file(content: bytes, folder: Path) -> None:
    runtimes.load(_file(folder, "runtimes.yaml", content))


def stored_job(content: bytes, folder: Path) -> None:
    """Read a job as the API server sends it: its identity is the server's, all else the user's."""
    try:
        found = msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return
    if not isinstance(found, dict):
        return
    identity = {"name": "a", "namespace": "b", "uid": "c", "resourceVersion": "1", "generation": 1}
    # The CRD admits objects here alone.
    kept = {key: found[key] for key in ("spec", "status") if isinstance(found.get(key), dict)}
    stored = parse.job({**kept, "metadata": identity})
    parse.read_job(stored)
    parse.read_status(stored)


def pod(content: bytes, folder: Path) -> None:
    """Read a pod of the watch, whose termination message is the program's own text."""
    try:
        found = msgspec.json.decode(content, type=api_objects.Pod)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return
    parse.pod(found)


def checkpoint_state(content: bytes, folder: Path) -> None:
    """Read the state of a checkpoint."""
    place = folder / "checkpoints" / "000000000001"
    place.mkdir(parents=True)
    (place / state.STATE).write_bytes(content)
    (uri,) = state.checkpoints(str(folder))
    with suppress(ValueError):
        state.CheckpointState.read(storage.read(storage.join(uri, state.STATE)))


def checkpoint_arrays(content: bytes, folder: Path) -> None:
    """Load the arrays of a file whose checksum is right."""
    _file(folder, "model.safetensors", content)
    known = files.FileState(bytes=len(content), crc32c=google_crc32c.value(content))
    try:
        files.read(str(folder), {"model.safetensors": known})
    except ValueError as error:
        if "model.safetensors" not in str(error):
            raise Wrong(f"the message names no file: {error}") from error


def _file(folder: Path, name: str, content: bytes) -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


def _require_named(problem: Problem, path: str) -> None:
    if path not in str(problem):
        raise Wrong(f"the message does not name {path}: {problem}") from problem


TARGETS: Mapping[str, Target] = MappingProxyType(
    {
        "tfrecord": Target(records),
        "compressed": Target(compressed_records),
        "example": Target(tf_example, named=False),
        "sidecar": Target(index_sidecar),
        "manifest": Target(split_manifest),
        "archive": Target(source_archive),
        "report": Target(progress_report),
        "events": Target(event_log),
        "token": Target(bearer_token),
        "job-file": Target(job_file, named=False),
        "runtimes": Target(runtimes_file),
        "stored-job": Target(stored_job),
        "pod": Target(pod),
        "checkpoint-state": Target(checkpoint_state),
        "checkpoint-arrays": Target(checkpoint_arrays),
    }
)


def run(target: Target, content: bytes, folder: Path) -> None:
    """Run the target in a new folder below `folder`. A Problem is a correct answer if it names the file."""
    place = folder / "input"
    place.mkdir()
    try:
        target.run(content[:LARGEST], place)
    except Problem as problem:
        if target.named:
            _require_named(problem, str(place))
        if not str(problem).strip():
            raise Wrong("a problem without a message") from problem
    finally:
        shutil.rmtree(place)
