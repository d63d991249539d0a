"""The job's training and validation data, opened, cached where they fit, and named in what goes wrong."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from mptraining_api.problems import InvalidData, StorageUnavailable
from mptraining_records.index import dataset_index
from mptraining_trainer.data import cache as data_cache
from mptraining_trainer.data.batching import Share
from mptraining_trainer.data.input_stats import InputMeter
from mptraining_trainer.data.open_data import open_data
from mptraining_trainer.data.pipeline import Split
from mptraining_trainer.data.preprocess import Preprocess, check
from mptraining_trainer.data.schema import Columns
from mptraining_trainer.source.user_code import import_entry_point
from mptraining_trainer.worker import Worker


class Reserved(NamedTuple):
    """Bytes that a data set was promised already."""

    memory: int
    disk: int


@dataclass(frozen=True)
class Opened:
    """The data, what reading it costs, and the job's own preprocessing."""

    training: Split
    validation: Split | None
    meter: InputMeter
    preprocess: Preprocess


def open_splits(worker: Worker, share: Share) -> Opened:
    """Finds, indexes and caches the job's data.

    Raises InvalidSpec, InvalidData, InvalidProgram and StorageUnavailable, naming the field.
    """
    data = worker.job.data
    assert data is not None
    notice, now = worker.telemetry.notice, worker.telemetry.now
    meter = InputMeter()

    def opened(patterns: Sequence[str], like: Columns | None, reserved: Reserved) -> tuple[Split, str, Reserved]:
        objects = dataset_index.find(patterns)
        cache, on_disk = data_cache.disk_cache(objects, data.cache, notice, reserved=reserved.disk)
        if cache is not None:
            worker.ends.callback(cache.close)
        split = open_data(
            patterns, data, like=like, notice=notice, now=now, objects=objects, share=share, meter=meter, cache=cache
        )
        worker.ends.callback(split.reader.close)
        cached, name, in_memory = data_cache.with_cache(split, data.cache, cache, reserved=reserved.memory)
        worker.ends.callback(cached.reader.close)
        return cached, name, Reserved(in_memory, on_disk if name == "Disk" else 0)

    with _in_field("spec.data.train"):
        training, meter.cache, taken = opened(data.train, None, Reserved(0, 0))
    validation = None
    if data.validation:
        with _in_field("spec.data.validation"):
            validation, _, _ = opened(data.validation, training.columns, taken)
    function = None
    if data.preprocess not in ("auto", "none"):
        function = check(import_entry_point(data.preprocess, "spec.data.preprocess"))
    return Opened(training, validation, meter, Preprocess(per_example=function))


@contextmanager
def _in_field(field: str) -> Iterator[None]:
    """A problem with a file also names the field that named the file."""
    try:
        yield
    except (InvalidData, StorageUnavailable) as problem:
        where = f"{field}: {problem.where}"
        raise type(problem)(
            where, problem.found, expected=problem.expected, next_step=problem.next_step
        ) from problem.__cause__
