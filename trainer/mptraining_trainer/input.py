"""From TFRecords to the batches of each replica.

`open_data` finds out what there is (index, columns, manifest); `Split.training` and `Split.validation` are endless
tf.data pipelines over `batching`'s record numbers. A data set that fits is decoded once and kept as tensors; the
others are read and decoded as they come. Parallelism is explicit and tf.data's autotuner off: it makes the end of an
iterator wait and two runs unlike each other.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import psutil
import tensorflow as tf

from mptraining_api.problems import InvalidData, Problem
from mptraining_api.resolved import ResolvedData
from mptraining_records import index as records_index
from mptraining_records import manifest as records_manifest
from mptraining_records.bad_records import BadRecords
from mptraining_records.hashing import key
from mptraining_records.index import DatasetIndex
from mptraining_records.order import Order, Position
from mptraining_records.reader import RecordReader
from mptraining_trainer import columns as data_columns
from mptraining_trainer.batching import Batching, Piece, Share, training_pieces, validation_pieces
from mptraining_trainer.columns import Columns
from mptraining_trainer.decode import bytes_per_example, decoder
from mptraining_trainer.preprocess import Preprocess

# Records that are looked at before training: enough to infer features and to find a missing one.
_FIRST_RECORDS = 16
# Decoded examples may take this share of the memory that is free when training begins.
_CACHE_SHARE = 0.25
_DECODE_AT_ONCE = 256
_PREFETCH_BYTES = 64 << 20


@dataclass(frozen=True)
class Split:
    """Training or validation data: where its records lie, and when they are cached (inputs, labels, mask) of all.

    `problems` collects what its pipelines met; see `explaining`.
    """

    dataset: DatasetIndex
    columns: Columns
    reader: RecordReader
    cached: Any | None
    problems: list[Problem] = field(default_factory=list)

    @property
    def count(self) -> int:
        return self.dataset.count

    def training(
        self,
        *,
        order: Order,
        batching: Batching,
        position: Position,
        share: Share,
        batch: int,
        masked: bool,
        preprocess: Preprocess,
    ) -> Any:
        """Batches of one replica (inputs, labels, and a mask when `masked`), dealt to the replicas in turn."""

        def pieces() -> Iterator[Piece]:
            return training_pieces(order, batching, position, share)

        return self._pipeline(pieces, seed=order.seed, batch=batch, masked=masked, preprocess=preprocess, training=True)

    def validation(self, *, examples_per_step: int, share: Share, batch: int, preprocess: Preprocess) -> Any:
        """Masked batches of one replica; a pass is as many steps as `examples_per_step` needs for all records."""

        def pieces() -> Iterator[Piece]:
            return validation_pieces(self.count, examples_per_step, share)

        return self._pipeline(pieces, seed=0, batch=batch, masked=True, preprocess=preprocess, training=False)

    def _pipeline(
        self,
        pieces: Callable[[], Iterator[Piece]],
        *,
        seed: int,
        batch: int,
        masked: bool,
        preprocess: Preprocess,
        training: bool,
    ) -> Any:
        dataset = (
            self._from_memory(pieces, seed, batch) if self.cached is not None else self._from_files(pieces, seed, batch)
        )
        dataset = preprocess.apply(dataset, batch=batch, training=training, parallel=_threads())
        dataset = dataset.map(
            (lambda inputs, labels, mask, seeds: (inputs, labels, mask))
            if masked
            else (lambda inputs, labels, mask, seeds: (inputs, labels)),
            num_parallel_calls=1,
        )
        size = max(1, batch * bytes_per_example(self.columns.columns))
        return dataset.prefetch(max(2, min(32, _PREFETCH_BYTES // size))).with_options(_options())

    def _from_memory(self, pieces: Callable[[], Iterator[Piece]], seed: int, batch: int) -> Any:
        def numbers() -> Iterator[tuple[Any, ...]]:
            for piece in pieces():
                yield (
                    np.maximum(piece.records, 0),
                    (piece.records >= 0).astype(np.float32),
                    _seeds(seed, piece),
                )

        def gather(records: Any, mask: Any, seeds: Any) -> tuple[Any, ...]:
            inputs, labels, whole = tf.nest.map_structure(lambda each: tf.gather(each, records), self.cached)
            return inputs, labels, mask * whole, seeds

        signature = (
            tf.TensorSpec([None], tf.int64),
            tf.TensorSpec([None], tf.float32),
            tf.TensorSpec([None, 2], tf.int64),
        )
        dataset = tf.data.Dataset.from_generator(numbers, output_signature=signature)
        # Cut and batched inside tf.data: a Python call for every piece, none for every batch.
        dataset = dataset.flat_map(
            lambda *piece: tf.data.Dataset.from_tensor_slices(piece).batch(batch, drop_remainder=True)
        )
        return dataset.map(gather, num_parallel_calls=_threads(), deterministic=True)

    def _from_files(self, pieces: Callable[[], Iterator[Piece]], seed: int, batch: int) -> Any:
        filler = self.first_good()

        def contents() -> Iterator[tuple[Any, ...]]:
            for piece in pieces():
                seeds = _seeds(seed, piece)
                for first in range(0, len(piece.records), batch):
                    wanted = piece.records[first : first + batch]
                    records, there = self.read(np.maximum(wanted, 0), filler)
                    yield records, there * (wanted >= 0), seeds[first : first + batch]

        signature = (
            tf.TensorSpec([batch], tf.string),
            tf.TensorSpec([batch], tf.float32),
            tf.TensorSpec([batch, 2], tf.int64),
        )
        decode = decoder(self.columns)
        dataset = tf.data.Dataset.from_generator(contents, output_signature=signature).prefetch(4)
        return dataset.map(
            lambda records, mask, seeds: (*decode(records), mask, seeds),
            num_parallel_calls=_threads(),
            deterministic=True,
        )

    def read(self, numbers: Any, filler: bytes) -> tuple[Any, Any]:
        """Records as an array of bytes, and their mask: 0 for a damaged one, in whose place `filler` stands.

        So the order never shifts. Inside tf.data an error survives as text alone, so it is kept here as well.
        """
        try:
            found = self.reader.read(numbers)
        except Problem as problem:
            self.problems.append(problem)
            raise
        whole = [filler if record is None else record for record in found]
        return np.array(whole, object), np.array([record is not None for record in found], np.float32)

    def first_good(self) -> bytes:
        """Any readable record. Raises InvalidData when there is none."""
        for number in range(self.count):
            record = self.reader.read(np.array([number], np.int64))[0]
            if record is not None:
                return record
        raise InvalidData(
            self.dataset.shards[0].object.uri, "every record is damaged", next_step="Convert the data again."
        )


def open_data(
    patterns: Sequence[str], data: ResolvedData, *, like: Columns | None, notice: Callable[[str, str], None]
) -> Split:
    """Finds, indexes and looks into the files of `patterns`; `like` are the training data's columns for validation.

    Raises InvalidSpec and InvalidData for what cannot be read as the job says, StorageUnavailable.
    """
    bad_records = BadRecords(data.bad_records, data.max_skipped)
    dataset = records_index.build(
        patterns, bad_records=bad_records, notice=lambda text: notice("CompressedRecords", text)
    )
    reader = RecordReader(dataset, bad_records=bad_records)
    first = [record for record in reader.read(np.arange(min(_FIRST_RECORDS, dataset.count))) if record is not None]
    manifest = records_manifest.find(patterns)
    columns = like or data_columns.decide(data, manifest, first, lambda text: notice("FeaturesInferred", text))
    if like is not None:
        data_columns.check_records(columns.columns, first)
    return Split(dataset, columns, reader, cached=None)


@contextmanager
def explaining(*splits: Split | None) -> Iterator[None]:
    """Raises the Problem behind a TensorFlow error when it is one that these splits met while reading."""
    try:
        yield
    except tf.errors.OpError as error:
        for split in splits:
            if split is not None and split.problems:
                raise split.problems[0] from error
        raise


def with_cache(split: Split, mode: Literal["Auto", "Memory", "Disk", "None"], reserved: int = 0) -> tuple[Split, str]:
    """The split with its decoded examples in memory where that is asked for or fits, and the cache in use.

    `reserved` bytes are already promised to another split.
    """
    size = split.count * bytes_per_example(split.columns.columns)
    budget = _CACHE_SHARE * psutil.virtual_memory().available - reserved
    if mode == "Memory" or (mode == "Auto" and size <= budget):
        with explaining(split):
            return replace(split, cached=_decode_all(split)), "Memory"
    return split, "None"


def _decode_all(split: Split) -> Any:
    """(inputs, labels, mask) of all records in index order, as tensors on the host; the mask is 0 for damaged ones."""
    filler = split.first_good()

    def contents() -> Iterator[Any]:
        for first in range(0, split.count, _DECODE_AT_ONCE):
            last = min(split.count, first + _DECODE_AT_ONCE)
            yield split.read(np.arange(first, last, dtype=np.int64), filler)

    signature = (tf.TensorSpec([None], tf.string), tf.TensorSpec([None], tf.float32))
    decode = decoder(split.columns)
    dataset = tf.data.Dataset.from_generator(contents, output_signature=signature)
    dataset = dataset.map(
        lambda records, mask: (*decode(records), mask), num_parallel_calls=_threads(), deterministic=True
    )
    parts = list(dataset.with_options(_options()))
    with tf.device("/CPU:0"):
        return tf.nest.map_structure(lambda *tensors: tf.concat(tensors, axis=0), *parts)


def _seeds(seed: int, piece: Piece) -> Any:
    """A stateless seed of two int64 for each example: one for the pass, one for the position."""
    of_pass = np.int64(int(key(seed, piece.epoch)[0]) >> 1)
    return np.stack([np.full(piece.positions.shape, of_pass), piece.positions], axis=1)


def _threads() -> int:
    # macOS does not say which processors a process may use.
    allowed = getattr(os, "sched_getaffinity", None)
    return max(1, len(allowed(0)) if allowed else os.cpu_count() or 1)


def _options() -> Any:
    options = tf.data.Options()
    options.autotune.enabled = False
    options.deterministic = True
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return options
