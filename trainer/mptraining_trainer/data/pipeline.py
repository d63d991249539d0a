"""tf.data pipelines from TFRecords to the batches of each replica.

`Split.training` and `Split.validation` build pipelines over the record numbers of `batching`. A data set that fits in
memory is decoded once and kept as tensors (`cache`); others are streamed and decoded in each epoch. Parallelism is
explicit and tf.data's autotuner is off: it delays the end of an iterator and makes runs differ.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import tensorflow as tf

from mptraining_api.problems import InvalidData, Problem
from mptraining_records.index.dataset_index import DatasetIndex
from mptraining_records.index.disk_cache import DiskCache
from mptraining_records.reading.order import Order, Position, key
from mptraining_records.reading.prefetch import RecordStream, Window
from mptraining_records.reading.reader import RecordReader
from mptraining_trainer.data.batching import (
    SINGLE_WORKER,
    Batching,
    Piece,
    Share,
    Span,
    pieces,
    training_spans,
    validation_spans,
    windows,
)
from mptraining_trainer.data.decode import (
    batched,
    bytes_per_example,
    decode_elements,
    fault,
    is_decoded_singly,
    not_converted,
)
from mptraining_trainer.data.generator import from_generator
from mptraining_trainer.data.input_stats import InputMeter
from mptraining_trainer.data.padding import pad_all, without_padding
from mptraining_trainer.data.preprocess import FIELD, Preprocess
from mptraining_trainer.data.schema import Columns

# Batches of so many bytes are decoded ahead, two at least.
_PREFETCH_BYTES = 32 << 20
_MAX_PREFETCH = 32

# The rows of batches: all batches are full; batches of one size, with a mask of 0 for rows that are no records; the
# records alone, so that the last batch of a pass is smaller.
Rows = Literal["Full", "Masked", "Real"]

# A function that receives the records of one batch.
Taken = Callable[[Sequence[bytes | None]], None]


@dataclass(frozen=True)
class Numbers:
    """The record numbers of one worker: its share of the spans of an order, whose steps are not cut."""

    order: Order
    spans: Callable[[], Iterable[Span]]
    share: Share
    examples_per_step: int

    def pieces(self) -> Iterator[Piece]:
        return pieces(self.order, self.spans(), self.share, self.examples_per_step)

    def windows(self) -> Iterator[Window]:
        return windows(self.order, self.spans(), self.share)

    def seeds(self, piece: Piece) -> Any:
        """Return a stateless seed of two int64 per example: one from the pass, one from the position."""
        of_pass = np.int64(int(key(self.order.seed, piece.epoch)[0]) >> 1)
        return np.stack([np.full(piece.positions.shape, of_pass), piece.positions], axis=1)


@dataclass(frozen=True)
class Split:
    """Training or validation data: its index and reader, and its tensors (inputs, labels, weights, mask) if cached.

    The records are stored in random order if they are `mixed`.

    `problems` collects errors of its pipelines, and `newest` has the record numbers of the newest batches, at least of
    all that are between the reader and the model; see `raise_reading_problems`.
    """

    dataset: DatasetIndex
    columns: Columns
    reader: RecordReader
    cached: Any | None
    meter: InputMeter
    now: Callable[[], float]
    mixed: bool = False
    problems: list[Problem] = field(default_factory=list)
    newest: deque[Any] = field(default_factory=lambda: deque(maxlen=2 * _MAX_PREFETCH + 3 * threads()))

    @property
    def count(self) -> int:
        return self.dataset.count

    def with_disk_cache(self, cache: DiskCache) -> Split:
        """Return the same records, which `cache` keeps after the first read."""
        self.reader.close()
        traffic, account = self.meter.traffic, self.reader.bad_records
        return replace(self, reader=RecordReader(self.dataset, bad_records=account, cache=cache, traffic=traffic))

    def training(
        self,
        *,
        order: Order,
        batching: Batching,
        position: Position,
        share: Share,
        batch: int,
        rows: Rows,
        preprocess: Preprocess,
        steps: int | None = None,
        add_class_weights: Callable[..., Any] | None = None,
    ) -> Any:
        """Return batches for one replica, for the replicas in turn: (inputs, labels, weights), and a mask if Masked.

        `add_class_weights` adds class weights to a batch (inputs, labels). The dataset ends after `steps` steps, so
        that no more is read than they need; without `steps` it does not end.
        """

        return self._pipeline(
            Numbers(order, partial(training_spans, batching, position, steps), share, batching.examples_per_step),
            training=True,
            batch=batch,
            rows=rows,
            preprocess=preprocess,
            add_class_weights=add_class_weights,
        )

    def validation(
        self, *, examples_per_step: int, share: Share, batch: int, preprocess: Preprocess, rows: Rows = "Masked"
    ) -> Any:
        """Return batches for one replica; a pass has the steps that `examples_per_step` needs for the data."""

        spans = partial(validation_spans, self.count, examples_per_step)
        return self._pipeline(
            Numbers(self.stored_order, spans, share, examples_per_step), batch=batch, preprocess=preprocess, rows=rows
        )

    def prediction(self, *, ranges: Sequence[tuple[int, int]], batch: int, preprocess: Preprocess, taken: Taken) -> Any:
        """Return masked batches of the records `first` … `end` - 1 of each range, in order, once.

        Each range begins a new batch; its last batch is filled with rows of mask 0. `taken` receives the records of
        every batch, in order, None for a damaged one and for a filling row.
        """
        spans = [Span(0, first, end, first + -(-(end - first) // batch) * batch) for first, end in ranges]
        numbers = Numbers(self.stored_order, lambda: spans, SINGLE_WORKER, batch)
        return self._pipeline(numbers, batch=batch, preprocess=preprocess, taken=taken)

    @property
    def stored_order(self) -> Order:
        """The order of the index."""
        return Order(self.count, seed=0, shuffle=False)

    def _pipeline(
        self,
        numbers: Numbers,
        *,
        batch: int,
        preprocess: Preprocess,
        training: bool = False,
        rows: Rows = "Masked",
        add_class_weights: Callable[..., Any] | None = None,
        taken: Taken | None = None,
    ) -> Any:
        """Return the batches of the records with these numbers."""
        if self.cached is not None:
            dataset = self._from_memory(numbers, batch)
        else:
            dataset = self._from_records(numbers, batch, training=training, on_taken=taken)
        is_single = self.cached is None and is_decoded_singly(self.columns)
        if preprocess.per_example is not None and not is_single:
            dataset, is_single = dataset.unbatch(), True
        dataset = preprocess.map_examples(dataset, training=training, parallel=threads())
        if is_single:
            dataset = batched(dataset, self.columns, batch)
        dataset = preprocess.map_batches(dataset, parallel=threads())
        spec = self.columns.example_spec()
        named_inputs, named_labels = [tensor.name for tensor in spec.inputs], [tensor.name for tensor in spec.labels]

        @not_converted
        def batch_of(inputs: Any, labels: Any, weights: Any, mask: Any, _seeds: Any) -> tuple[Any, ...]:
            inputs = pad_all(inputs, named_inputs, self.columns.columns)
            labels = pad_all(labels, named_labels, self.columns.columns)
            weights = pad_all(weights, (), ())
            if add_class_weights is not None:
                weights = add_class_weights(inputs, labels)[2]
            # A map that returned another number of rows would pair inputs with labels of other records.
            tensors = tuple(
                tf.nest.map_structure(lambda tensor: _with_rows(tensor, batch), part)
                for part in (inputs, labels, weights, mask)
            )
            return tensors if rows == "Masked" else _real_rows(tensors) if rows == "Real" else tensors[:3]

        dataset = dataset.map(batch_of)
        size = max(1, batch * bytes_per_example(self.columns.columns))
        return dataset.prefetch(max(2, min(_MAX_PREFETCH, _PREFETCH_BYTES // size))).with_options(options())

    def _from_memory(self, numbers: Numbers, batch: int) -> Any:
        def rows() -> Iterator[tuple[Any, ...]]:
            for piece in numbers.pieces():
                there = piece.records >= 0
                yield (np.where(there, piece.records, 0), there.astype(np.float32), numbers.seeds(piece))

        @not_converted
        def gather(records: Any, mask: Any, seeds: Any) -> tuple[Any, ...]:
            gathered = tf.nest.map_structure(lambda tensor: tf.gather(tensor, records), self.cached)
            inputs, labels, weights, whole = gathered
            return inputs, labels, weights, mask * whole, seeds

        signature = (
            tf.TensorSpec([None], tf.int64),
            tf.TensorSpec([None], tf.float32),
            tf.TensorSpec([None, 2], tf.int64),
        )
        dataset = from_generator(rows, signature)
        # Pieces are sliced and batched inside tf.data, so that Python is called once per piece and not once per batch.
        dataset = dataset.flat_map(
            lambda *piece: tf.data.Dataset.from_tensor_slices(piece).batch(batch, drop_remainder=True)
        )
        return dataset.map(gather, num_parallel_calls=threads(), deterministic=True)

    def _from_records(self, numbers: Numbers, batch: int, *, training: bool, on_taken: Taken | None) -> Any:
        filler = self.first_readable()

        def contents() -> Iterator[tuple[Any, ...]]:
            began = self.now()
            stream = RecordStream(self.reader, numbers.windows(), now=self.now)
            try:
                for piece in numbers.pieces():
                    seeds = numbers.seeds(piece)
                    for first in range(0, len(piece.records), batch):
                        rows = slice(first, first + batch)
                        batch_numbers = piece.records[rows]
                        records, mask = self.take(stream, batch_numbers, filler, on_taken)
                        if training and self.meter.first_record_seconds is None:
                            self.meter.first_record_seconds = self.now() - began
                        yield records, batch_numbers, mask, seeds[rows]
            finally:
                stream.close()

        signature = (
            tf.TensorSpec([batch], tf.string),
            tf.TensorSpec([batch], tf.int64),
            tf.TensorSpec([batch], tf.float32),
            tf.TensorSpec([batch, 2], tf.int64),
        )
        return self.decode(from_generator(contents, signature).prefetch(1), filler)

    def decode(self, dataset: Any, filler: bytes) -> Any:
        """Decode batches (records, numbers, mask, rest) to batches or examples (inputs, labels, weights, mask, rest).

        They are examples if `is_decoded_singly`. With badRecords: Skip, a record that cannot be decoded is reported as
        damaged, and `filler` with a mask of 0 replaces it; otherwise it is an error, see `raise_reading_problems`.
        """

        def repair(records: Any, numbers: Any, mask: Any) -> tuple[Any, Any]:
            records, mask = records.copy(), mask.copy()
            for row in np.flatnonzero(mask):
                with self._keep_problem():
                    if self._is_damaged(int(numbers[row]), records[row]):
                        records[row], mask[row] = filler, 0
            return records, mask

        skips = self.reader.bad_records.action == "Skip"
        if is_decoded_singly(self.columns):
            dataset = dataset.unbatch()
        return decode_elements(dataset, self.columns, repair if skips else None, threads())

    def raise_damage(self) -> None:
        """Raise InvalidData if one of the `newest` records cannot be decoded."""
        for numbers in reversed(tuple(self.newest)):
            for number, record in zip(numbers.tolist(), self.reader.read(numbers), strict=True):
                if record is not None:
                    self._is_damaged(number, record)

    def _is_damaged(self, number: int, record: bytes) -> bool:
        """Return whether the record cannot be decoded, and report it then; raises InvalidData as `report_damaged`."""
        cause = fault(self.columns, record)
        if cause is not None:
            self.reader.report_damaged(number, cause)
        return cause is not None

    def take(self, stream: RecordStream, numbers: Any, filler: bytes, on_taken: Taken | None = None) -> tuple[Any, Any]:
        """Return the stream's next records as an array of bytes [numbers] and their mask.

        `filler` with a mask of 0 replaces a damaged record and one of number -1, which is no record, so that the order
        is unchanged. `on_taken` receives the records without it.
        """
        waited = stream.waited_seconds
        with self._keep_problem():
            taken = stream.take(int((numbers >= 0).sum()))
            taken += [None] * (len(numbers) - len(taken))
            if on_taken is not None:
                on_taken(taken)
        self.meter.waited_for_bytes += stream.waited_seconds - waited
        whole = [filler if record is None else record for record in taken]
        mask = np.array([record is not None for record in taken], np.float32)
        self.newest.append(numbers[mask > 0])
        return np.array(whole, object), mask

    @contextmanager
    def _keep_problem(self) -> Iterator[None]:
        """Store a Problem of the block in `problems`, because tf.data keeps only the text of an error."""
        try:
            yield
        except Problem as problem:
            self.problems.append(problem)
            raise

    def first_readable(self) -> bytes:
        """Return the first record that can be decoded. Raises InvalidData if there is none."""
        for number in range(self.count):
            record = self.reader.read(np.array([number], np.int64))[0]
            if record is not None and not self._is_damaged(number, record):
                return record
        raise InvalidData(
            self.dataset.shards[0].stored.uri, "every record is damaged", next_step="Convert the data again."
        )


@contextmanager
def raise_reading_problems(*splits: Split | None) -> Iterator[None]:
    """Raise the Problem behind a TensorFlow error if one of these splits met it while reading."""
    try:
        yield
    except tf.errors.OpError as error:
        opened = [split for split in splits if split is not None]
        for split in opened:
            if split.problems:
                raise split.problems[0] from error
        if "IteratorGetNext" in str(error) and FIELD not in str(error):
            for split in opened:
                split.raise_damage()
        raise


def _real_rows(batch: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the batch `without_padding`; a copy only if a row is padded."""
    return tuple(tf.cond(tf.reduce_all(batch[3] > 0), lambda: batch[:3], lambda: without_padding(batch)))


def _with_rows(tensor: Any, rows: int) -> Any:
    """Return the tensor with a static number of rows. TensorFlow raises InvalidArgumentError if it has another one."""
    if isinstance(tensor, tf.RaggedTensor):
        return tf.RaggedTensor.from_row_splits(
            tensor.values, tf.ensure_shape(tensor.row_splits, [rows + 1]), validate=False
        )
    return tf.ensure_shape(tensor, tf.TensorShape([rows]).concatenate(tensor.shape[1:]))


def threads() -> int:
    """Return the number of processors that this process may use."""
    # macOS has no sched_getaffinity.
    allowed = getattr(os, "sched_getaffinity", None)
    return max(1, len(allowed(0)) if allowed else os.cpu_count() or 1)


def options() -> Any:
    """Return the options of every pipeline."""
    options = tf.data.Options()
    options.autotune.enabled = False
    options.deterministic = True
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return options
