"""Cache of remote shards' byte ranges on the local disk, so that later epochs need no requests to the bucket.

Each shard has one sparse file with every range at its own offset. A record is cached once all of its bytes are written.
Nothing is evicted. The folder is deleted with the process, and files of earlier processes are never read. A full disk
stops the caching, not the training.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mptraining_records.index.read_plan import RangeRead
from mptraining_records.index.shard_index import Int64s
from mptraining_records.tfrecord.framing import FOOTER
from mptraining_storage import local

if TYPE_CHECKING:
    from mptraining_records.index.dataset_index import DatasetIndex


class DiskCache:
    """Caches byte ranges of remote shards in a new folder below `folder`. Thread-safe.

    `on_full` is called with one line when the disk is full. Raises InvalidData or StorageUnavailable if the folder
    cannot be created.
    """

    def __init__(self, folder: Path, on_full: Callable[[str], None]) -> None:
        self._on_full: Callable[[str], None] | None = on_full
        self._lock = threading.Lock()
        self._files: dict[str, int] = {}
        self._complete: set[str] = set()
        self._dataset: DatasetIndex | None = None
        self._cached = np.zeros(0, bool)
        with local.translate_errors(folder):
            self._folder = Path(tempfile.mkdtemp(prefix="mptraining-records-", dir=folder))
        self._finalizer = weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is cached yet."""
        return not self._complete and not self._cached.any()

    def write(self, uri: str, start: int, content: bytes | memoryview) -> bool:
        """Write bytes of an object at their offset; returns False if the disk is or was full."""
        if self._on_full is None:
            return False
        try:
            with self._open_file(uri) as file:
                written = 0
                # On a nearly full disk pwrite writes a part; only the next call fails.
                while written < len(content):
                    written += os.pwrite(file, memoryview(content)[written:], start + written)
        except OSError as error:
            # Training without the cache is only slower, so that every error of the disk just stops the caching.
            self._disable(error)
            return False
        return True

    def mark_complete(self, uri: str) -> None:
        """Record that all bytes of this object are written."""
        self._complete.add(uri)

    def set_dataset(self, dataset: DatasetIndex) -> None:
        """Start caching records of this data set; those of completely written objects are cached already."""
        self._dataset = dataset
        self._cached = np.zeros(dataset.count, bool)
        for shard, begin, end in zip(dataset.shards, dataset.starts[:-1], dataset.starts[1:], strict=True):
            self._cached[begin:end] = shard.stored.uri in self._complete

    def has_records(self, numbers: Int64s) -> NDArray[np.bool_]:
        """Return whether each of these records (shape [n]) is cached."""
        cached: NDArray[np.bool_] = self._cached[numbers]
        return cached

    def has_range(self, read: RangeRead) -> bool:
        """Return whether all records of a range are cached."""
        return bool(self._cached[self._numbers(read)].all())

    def write_range(self, read: RangeRead, content: bytes | memoryview) -> None:
        """Cache the bytes of a range with every record in them, also those in gaps between the requested ones."""
        if self.write(self._uri(read), read.start, content):
            assert self._dataset is not None
            shard, base = self._dataset.shards[read.shard], int(self._dataset.starts[read.shard])
            first = int(np.searchsorted(shard.offsets, read.start))
            ends = shard.offsets[first:] + shard.lengths[first:] + FOOTER
            count = int(np.searchsorted(ends, read.start + len(content), side="right"))
            self._cached[base + first : base + first + count] = True

    def read_range(self, read: RangeRead) -> bytes | None:
        """Return the bytes of a range if all of its records are cached, else None."""
        if not self.has_range(read):
            return None
        try:
            with self._open_file(self._uri(read)) as file:
                content = os.pread(file, read.length, read.start)
        except OSError:
            return None
        return content if len(content) == read.length else None

    def close(self) -> None:
        """Delete the cache."""
        self._finalizer()

    def _uri(self, read: RangeRead) -> str:
        assert self._dataset is not None
        return self._dataset.shards[read.shard].stored.uri

    def _numbers(self, read: RangeRead) -> Int64s:
        assert self._dataset is not None
        return read.rows + int(self._dataset.starts[read.shard])

    @contextmanager
    def _open_file(self, uri: str) -> Iterator[int]:
        # A file is open only during one access, since a data set may have more shards than a process may open files.
        with self._lock:
            path = self._folder / str(self._files.setdefault(uri, len(self._files)))
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            yield file
        finally:
            os.close(file)

    def _disable(self, error: OSError) -> None:
        with self._lock:
            on_full, self._on_full = self._on_full, None
        if on_full is not None:
            on_full(f"the disk cache in {self._folder.parent} stores no more records: {error.strerror}")
