"""The job's training and validation data: opening, caching, and the manifest of skipped records."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from mptraining_api import run_folder
from mptraining_api.problems import InvalidData, Problem, StorageUnavailable
from mptraining_api.resolved_job import ResolvedData
from mptraining_records.index import bad_record_policy, dataset_index
from mptraining_records.index.bad_record_policy import BadRecords
from mptraining_records.index.disk_cache import DiskCache
from mptraining_records.reading.reader import RecordReader
from mptraining_records.tfrecord import features, manifest, record_check, sorted_labels
from mptraining_records.tfrecord.framing import BadRecord
from mptraining_records.tfrecord.manifest import Manifest
from mptraining_records.tfrecord.record_check import Fault
from mptraining_storage import storage
from mptraining_storage.preconditions import StoredObject
from mptraining_trainer.data import schema
from mptraining_trainer.data.batching import SINGLE_WORKER, Share
from mptraining_trainer.data.cache import disk_cache, with_cache
from mptraining_trainer.data.input_stats import InputMeter
from mptraining_trainer.data.pipeline import Split
from mptraining_trainer.data.preprocess import Preprocess, check_signature
from mptraining_trainer.data.schema import Columns
from mptraining_trainer.job.user_code import import_entry_point
from mptraining_trainer.worker import Worker

# Records that are read before training: enough to infer features and to detect a missing feature.
_FIRST_RECORDS = 16
_NOTICE_EVERY = 10.0
_NAME = "skipped records"


def open_data(
    patterns: Sequence[str],
    data: ResolvedData,
    *,
    training_columns: Columns | None,
    notice: Callable[..., None],
    now: Callable[[], float],
    objects: Sequence[StoredObject] | None = None,
    share: Share = SINGLE_WORKER,
    meter: InputMeter | None = None,
    cache: DiskCache | None = None,
) -> Split:
    """Find, index and check the files of `patterns`. Validation data has the `training_columns` of the training data.

    `objects` is the result of `dataset_index.find`, if it was called already. Files without an index are read, each
    worker its `share`, into `cache`. Raises InvalidSpec or InvalidData for records that do not match the job,
    StorageUnavailable.
    """
    meter = meter or InputMeter()
    bad_records = BadRecords(data.bad_records, data.max_skipped)
    dataset = dataset_index.build(
        patterns,
        objects=objects,
        bad_records=bad_records,
        worker=share.worker,
        workers=share.workers,
        cache=cache,
        traffic=meter.traffic,
        progress=_progress(notice, now),
        notice=lambda text: notice("Index", text),
    )
    meter.remote = meter.remote or any(storage.is_remote(shard.readable.uri) for shard in dataset.shards)
    # Use the cache only if the index pass filled it; the use of an empty cache is decided later, in `with_cache`.
    filled = None if cache is None or cache.is_empty else cache
    reader = RecordReader(dataset, bad_records=bad_records, traffic=meter.traffic, cache=filled)
    read = enumerate(reader.read(np.arange(min(_FIRST_RECORDS, dataset.count))))
    first = {number: record for number, record in read if record is not None}
    split_manifest = manifest.find(patterns)
    if training_columns is None and data.features is None and split_manifest is None:
        causes = features.undecodable(list(first.values()))
        faults = {number: Fault(causes[position]) for position, number in enumerate(first) if position in causes}
        _report_faults(faults, len(first), reader)
        first = {number: record for number, record in first.items() if number not in faults}
    columns = training_columns or schema.decide_columns(
        data, split_manifest, list(first.values()), lambda text: notice("FeaturesInferred", text)
    )
    if training_columns is None and ":" not in data.preprocess:
        # A function of the job may replace such values.
        columns = replace(columns, columns=tuple(replace(column, must_be_finite=True) for column in columns.columns))
    _check_records(columns, first, reader)
    columns = schema.with_typical_sizes(columns, list(first.values()))
    mixed = False
    if training_columns is None:
        report_if_sorted(split_manifest, data, notice)
        mixed = data.shuffle == "Windowed" and _are_mixed(split_manifest, columns, reader)
    return Split(dataset, columns, reader, cached=None, meter=meter, now=now, mixed=mixed)


def report_if_sorted(split_manifest: Manifest | None, data: ResolvedData, notice: Callable[..., None]) -> None:
    """Report training data that the manifest describes as sorted by label, as a warning if its shuffling is set."""
    fact = sorted_labels.report(split_manifest, data)
    if fact is not None:
        notice("SortedRecords", fact.text, level="Info" if fact.is_mixed else "Warning")


def _are_mixed(split_manifest: Manifest | None, columns: Columns, reader: RecordReader) -> bool:
    """Return whether the records are in random order: as the manifest of all files says, or by some of their labels."""
    dataset = reader.dataset
    if split_manifest is not None and split_manifest.permutation_seed is not None:
        return len(split_manifest.files) == len(dataset.shards)
    if len(columns.labels) != 1 or dataset.count < sorted_labels.RUNS * sorted_labels.RUN:
        return False
    begins = np.linspace(0, dataset.count - sorted_labels.RUN, sorted_labels.RUNS).astype(np.int64)
    records = reader.read((begins[:, None] + np.arange(sorted_labels.RUN)).ravel())
    return sorted_labels.are_mixed(columns.labels[0], records)


def _check_records(columns: Columns, records: Mapping[int, bytes], reader: RecordReader) -> None:
    """Compare records, by number, with the columns, and report those that differ as damaged.

    Raises InvalidData if none of them agrees, since the job then describes other records, and as `report_damaged` does.
    """
    checked = {number: record_check.fault(columns.columns, record) for number, record in records.items()}
    faults = {number: fault for number, fault in checked.items() if fault is not None}
    if not faults and records:
        # A record may have no such feature, but a misspelled name is in none.
        absent = record_check.absent([column for column in columns.columns if column.default is None], records.values())
        faults = dict.fromkeys(records, absent) if absent else {}
    _report_faults(faults, len(records), reader)


def _report_faults(faults: Mapping[int, Fault], records: int, reader: RecordReader) -> None:
    """Report faults by record number as damage; raises InvalidData if all of so many `records` have one."""
    if faults and (len(faults) == records or reader.bad_records.action == "Fail"):
        number, fault = next(iter(faults.items()))
        bad = reader.dataset.bad_record(number, fault.mistake)
        raise InvalidData(
            bad.uri,
            f"record {bad.record} at byte {bad.offset}: {fault.mistake}",
            expected=fault.expected,
            next_step=fault.hint,
        )
    for number, fault in faults.items():
        reader.report_damaged(number, fault.cause)


def _progress(notice: Callable[..., None], now: Callable[[], float]) -> Callable[[int, int], None]:
    """Return a callback that reports the progress of indexing every ten seconds."""
    began = reported_at = now()

    def progress(done: int, total: int) -> None:
        nonlocal reported_at
        if now() - reported_at < _NOTICE_EVERY:
            return
        reported_at = now()
        left = (reported_at - began) * (total - done) / done
        time = f"{left:.0f} s" if left < 100 else f"{left / 60:,.0f} min"
        # A separate topic: displays replace this line, while other notices about an index stay.
        notice("Indexing", f"indexing the records: {done / 1e9:.2f} of {total / 1e9:.2f} GB, {time} left")

    return progress


class ReservedBytes(NamedTuple):
    """Bytes that are reserved for a data set."""

    memory: int
    disk: int


@dataclass(frozen=True)
class Datasets:
    """The job's data, the meter of its input cost, and the job's own preprocessing."""

    training: Split
    validation: Split | None
    meter: InputMeter
    preprocess: Preprocess


def open_splits(worker: Worker, data: ResolvedData, share: Share) -> Datasets:
    """Find, index and cache the job's data.

    Raises InvalidSpec, InvalidData, InvalidProgram and StorageUnavailable, naming the field.
    """
    notice, now = worker.telemetry.notice, worker.telemetry.now
    meter = InputMeter()
    # In a local run all workers share one machine.
    machines = [host.rpartition(":")[0] for host in worker.identity.hosts]
    processes = machines.count(machines[worker.identity.index])

    def datasets(
        patterns: Sequence[str], training_columns: Columns | None, reserved: ReservedBytes
    ) -> tuple[Split, str, ReservedBytes]:
        objects = dataset_index.find(patterns)
        cache, on_disk = disk_cache(objects, data.cache, notice, reserved=reserved.disk, processes=processes)
        if cache is not None:
            worker.exit_stack.callback(cache.close)
        split = open_data(
            patterns,
            data,
            training_columns=training_columns,
            notice=notice,
            now=now,
            objects=objects,
            share=share,
            meter=meter,
            cache=cache,
        )
        worker.exit_stack.callback(split.reader.close)
        cached, name, in_memory = with_cache(split, data.cache, cache, reserved=reserved.memory, processes=processes)
        worker.exit_stack.callback(cached.reader.close)
        return cached, name, ReservedBytes(in_memory, on_disk if name == "Disk" else 0)

    with in_field("spec.data.train"):
        training, meter.cache, taken = datasets(data.train, None, ReservedBytes(0, 0))
    validation = None
    if data.validation:
        with in_field("spec.data.validation"):
            validation, _, _ = datasets(data.validation, training.columns, taken)
    function = None
    if data.preprocess not in ("auto", "none"):
        function = check_signature(import_entry_point(data.preprocess, "spec.data.preprocess"))
    return Datasets(training, validation, meter, Preprocess(per_example=function))


@contextmanager
def in_field(field: str) -> Iterator[None]:
    """Add the field that names the files to a problem of the block."""
    try:
        yield
    except (InvalidData, StorageUnavailable) as problem:
        raise problem.at(f"{field}: {problem.where}") from problem.__cause__


class SkippedRecords:
    """The records that the readers of one worker have skipped."""

    def __init__(self, worker: Worker, readers: Sequence[RecordReader]) -> None:
        self._worker = worker
        self._readers = tuple(readers)
        self._saved = 0
        self._reported = 0

    @property
    def records(self) -> tuple[BadRecord, ...]:
        return tuple(bad for reader in self._readers for bad in reader.skipped)

    @property
    def manifest(self) -> str:
        """The URI of the manifest that `publish` writes."""
        identity = self._worker.identity
        folder = storage.join(self._worker.folder, run_folder.QUARANTINE)
        return f"{folder}/{run_folder.quarantine_name(identity.attempt, identity.incarnation, identity.index)}.json"

    def publish(self, *, last: bool = False) -> None:
        """Write the manifest if more records were skipped. The first and the last call also report them."""
        skipped = self.records
        identity = self._worker.identity
        name = run_folder.quarantine_name(identity.attempt, identity.incarnation, identity.index)
        folder = storage.join(self._worker.folder, run_folder.QUARANTINE)
        if len(skipped) > self._saved:
            self._worker.outbox.put(_NAME, lambda: bad_record_policy.save(folder, name, skipped))
            self._saved = len(skipped)
        if len(skipped) > self._reported and (last or not self._reported):
            self._reported = len(skipped)
            counted = "1 damaged record" if len(skipped) == 1 else f"{len(skipped)} damaged records"
            text = f"{counted} skipped, the first in {skipped[0].uri}; all are named in {self.manifest}"
            self._worker.telemetry.notice("BadRecordsSkipped", text, level="Warning")

    @contextmanager
    def publish_at_end(self) -> Iterator[None]:
        """Publish at the end of the block, also after an error: too many skipped records may be its cause."""
        try:
            yield
        except BaseException:
            with suppress(Problem):
                self.publish(last=True)
            raise
        self.publish(last=True)
        self._worker.outbox.wait(_NAME)
