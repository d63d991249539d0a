"""What data there is: its index, its columns, and a first look at its records."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from mptraining_api.resolved_job import ResolvedData
from mptraining_records.index import dataset_index
from mptraining_records.index.bad_records import BadRecords
from mptraining_records.index.disk_cache import DiskCache
from mptraining_records.reading.reader import RecordReader
from mptraining_records.storage import storage
from mptraining_records.storage.storage import StoredObject
from mptraining_records.tfrecord import manifest as records_manifest
from mptraining_trainer.data import schema as data_columns
from mptraining_trainer.data.batching import ALONE, Share
from mptraining_trainer.data.input_stats import InputMeter
from mptraining_trainer.data.pipeline import Split
from mptraining_trainer.data.schema import Columns

# Records that are looked at before training: enough to infer features and to find a missing one.
_FIRST_RECORDS = 16
_SAY_EVERY = 10.0


def open_data(
    patterns: Sequence[str],
    data: ResolvedData,
    *,
    like: Columns | None,
    notice: Callable[..., None],
    now: Callable[[], float],
    objects: Sequence[StoredObject] | None = None,
    share: Share = ALONE,
    meter: InputMeter | None = None,
    cache: DiskCache | None = None,
) -> Split:
    """Finds, indexes and looks into the files of `patterns`; `like` are the training data's columns for validation.

    `objects` are what `index.find` found, where it was asked already.

    What has no index yet is read, each of the workers its `share`, and goes into `cache`. Raises InvalidSpec and
    InvalidData for what cannot be read as the job says, StorageUnavailable.
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
    # A cache that the index pass filled; an empty one stays so until it is decided where records are kept.
    filled = None if cache is None or cache.is_empty else cache
    reader = RecordReader(dataset, bad_records=bad_records, traffic=meter.traffic, cache=filled)
    first = [record for record in reader.read(np.arange(min(_FIRST_RECORDS, dataset.count))) if record is not None]
    manifest = records_manifest.find(patterns)
    columns = like or data_columns.decide(data, manifest, first, lambda text: notice("FeaturesInferred", text))
    if like is not None:
        data_columns.check_records(columns.columns, first)
    return Split(dataset, columns, reader, cached=None, meter=meter, now=now)


def _progress(notice: Callable[..., None], now: Callable[[], float]) -> Callable[[int, int], None]:
    """Says every ten seconds how far the index is."""
    began = said = now()

    def progress(done: int, total: int) -> None:
        nonlocal said
        if now() - said < _SAY_EVERY:
            return
        said = now()
        left = (said - began) * (total - done) / done
        time = f"{left:.0f} s" if left < 100 else f"{left / 60:,.0f} min"
        # A topic of its own: it moves, where the other lines about an index are to stay.
        notice("Indexing", f"indexing the records: {done / 1e9:.2f} of {total / 1e9:.2f} GB, {time} left")

    return progress
