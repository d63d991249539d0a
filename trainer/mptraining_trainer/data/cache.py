"""The cache of examples between epochs: decoded in memory, as bytes on the local disk, or none."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tensorflow as tf

from mptraining_records.index.disk_cache import DiskCache
from mptraining_records.reading.prefetch import RecordStream
from mptraining_storage import storage
from mptraining_storage.preconditions import StoredObject
from mptraining_trainer.data.batching import SINGLE_WORKER, Span, windows
from mptraining_trainer.data.decode import batched, bytes_per_example, is_decoded_singly
from mptraining_trainer.data.generator import from_generator
from mptraining_trainer.data.pipeline import Split, options, raise_reading_problems
from mptraining_trainer.host import available_disk, available_memory

Mode = Literal["Auto", "Memory", "Disk", "None"]
Notice = Callable[..., None]

# Shares of the memory and disk that are free when training begins.
_MEMORY_SHARE = 0.25
_DISK_SHARE = 0.7
_DECODE_AT_ONCE = 256
# sizeof(tensorflow::tstring), which holds up to 22 bytes of text itself.
_STRING_BYTES = 24


def disk_cache(
    objects: Sequence[StoredObject], mode: Mode, notice: Notice, *, reserved: int = 0, processes: int = 1
) -> tuple[DiskCache | None, int]:
    """Return a disk cache for remote records if they fit there, and its maximum size in bytes.

    `reserved` bytes belong to other data sets, and `processes` of the job share this machine. The cache stores bytes
    from the first read on, so it is created when only the objects' sizes are known.
    """
    if mode == "None":
        return None, 0
    remote = [shard for shard in objects if storage.is_remote(shard.uri)]
    if not remote:
        if mode == "Disk":
            notice("DiskCache", "data.cache: Disk is for buckets; these records are on a disk already")
        return None, 0
    folder = Path(tempfile.gettempdir())
    size, room = sum(shard.size for shard in remote), int(_DISK_SHARE * available_disk(folder) / processes) - reserved
    if size > room:
        if mode == "Disk":
            text = f"data.cache: Disk: the records take {size / 1e9:.1f} GB and {folder} has room for {room / 1e9:.1f}"
            notice("DiskCache", f"{text}; every epoch reads the bucket", level="Warning")
        return None, 0
    return DiskCache(folder, on_full=lambda text: notice("DiskCacheFull", text, level="Warning")), size


def with_cache(
    split: Split, mode: Mode, cache: DiskCache | None, *, reserved: int = 0, processes: int = 1
) -> tuple[Split, str, int]:
    """Return the split with its cache, the cache's name (Memory, Disk or None), and its bytes of memory.

    The other arguments are those of `disk_cache`.
    """
    size = split.count * bytes_per_example(split.columns.columns)
    limit = _MEMORY_SHARE * available_memory() / processes - reserved if mode == "Auto" else math.inf
    whole = split
    if mode == "Memory" or (mode == "Auto" and size <= limit):
        # The records that the index pass read come from the disk; the others go to memory only.
        if cache is not None and not cache.is_empty:
            whole = split.with_disk_cache(cache)
        with raise_reading_problems(whole):
            decoded = _decode_all(whole, limit)
        if decoded is not None:
            whole.reader.close()
            if cache is not None:
                cache.close()
            tensors, taken = decoded
            return replace(split, cached=tensors), "Memory", taken
    if cache is None:
        return split, "None", 0
    # This also closes the reader of `whole`.
    return whole.with_disk_cache(cache), "Disk", 0


def _decode_all(split: Split, limit: float) -> tuple[tuple[Any, ...], int] | None:
    """Return (inputs, labels, weights, mask) of all records in index order, as tensors on the host, and their bytes.

    The mask is 0 for damaged records. Return None as soon as they take more than `limit` bytes.

    The size of records of varying length is not known before they are decoded.
    """
    filler = split.first_readable()

    def contents() -> Iterator[Any]:
        span = Span(0, 0, split.count, split.count)
        stream = RecordStream(split.reader, windows(split.stored_order, [span], SINGLE_WORKER))
        try:
            for first in range(0, split.count, _DECODE_AT_ONCE):
                numbers = np.arange(first, min(first + _DECODE_AT_ONCE, split.count))
                records, mask = split.take(stream, numbers, filler)
                yield records, numbers, mask, numbers
        finally:
            stream.close()

    signature = (
        tf.TensorSpec([None], tf.string),
        tf.TensorSpec([None], tf.int64),
        tf.TensorSpec([None], tf.float32),
        tf.TensorSpec([None], tf.int64),
    )
    parts, size = [], 0
    dataset = split.decode(from_generator(contents, signature), filler)
    if is_decoded_singly(split.columns):
        dataset = batched(dataset, split.columns, _DECODE_AT_ONCE, drop_remainder=False)
    for part in dataset.with_options(options()):
        size += sum(map(_memory, tf.nest.flatten(part[:-1], expand_composites=True)))
        if size > limit:
            return None
        parts.append(part)
    with tf.device("/CPU:0"):
        *cached, numbers = tf.nest.map_structure(lambda *tensors: tf.concat(tensors, axis=0), *parts)
    rows = {int(leaf.nrows() if isinstance(leaf, tf.RaggedTensor) else len(leaf)) for leaf in tf.nest.flatten(cached)}
    # Batches gather rows by record number: row i of every tensor must be record i.
    if rows != {split.count} or not np.array_equal(numbers, np.arange(split.count)):
        raise RuntimeError(f"{split.count} records were decoded to tensors of {sorted(rows)} rows")
    return tuple(cached), size


def _memory(tensor: Any) -> int:
    """Return the bytes of a tensor. A string is an object of its own in addition to its bytes."""
    if tensor.dtype == tf.string:
        return int(tf.reduce_sum(tf.strings.length(tensor))) + _STRING_BYTES * int(tf.size(tensor))
    return int(tf.size(tensor)) * int(tensor.dtype.size)
