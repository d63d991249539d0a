"""Ranges of remote shards kept on the local disk, so that the second epoch asks the bucket for nothing.

One sparse file a shard, each range at its own place in it. A record counts as kept once all of its bytes are written,
never before; nothing is evicted, and the folder goes with the process: what an earlier one left half-written is never
read. A disk that is full ends the keeping, not the training.
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
from mptraining_records.storage import local
from mptraining_records.tfrecord.framing import FOOTER

if TYPE_CHECKING:
    from mptraining_records.index.dataset_index import DatasetIndex


class DiskCache:
    """Keeps what is fetched of remote shards below `folder`. Safe to use from several threads.

    `full` hears one line when the disk is full. Raises InvalidData or StorageUnavailable without a folder.
    """

    def __init__(self, folder: Path, full: Callable[[str], None]) -> None:
        self._full: Callable[[str], None] | None = full
        self._lock = threading.Lock()
        self._files: dict[str, int] = {}
        self._whole: set[str] = set()
        self._dataset: DatasetIndex | None = None
        self._present = np.zeros(0, bool)
        with local.explained(folder):
            self._folder = Path(tempfile.mkdtemp(prefix="mptraining-records-", dir=folder))
        self._clean = weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)

    @property
    def is_empty(self) -> bool:
        """Whether nothing was kept yet."""
        return not self._whole and not self._present.any()

    def write(self, uri: str, start: int, content: bytes | memoryview) -> bool:
        """Writes bytes of an object at their place; False when the disk is full, now or before."""
        if self._full is None:
            return False
        try:
            with self._opened(uri) as file:
                written = 0
                # A disk that is nearly full takes a part, and says so at the next call.
                while written < len(content):
                    written += os.pwrite(file, memoryview(content)[written:], start + written)
        except OSError as error:
            # Without the cache training is slower, no more; so whatever the disk has, it ends the keeping alone.
            self._give_up(error)
            return False
        return True

    def has_whole(self, uri: str) -> None:
        """All bytes of this object are written."""
        self._whole.add(uri)

    def serve(self, dataset: DatasetIndex) -> None:
        """From now on records of this data set are kept and found; those of whole objects are here already."""
        self._dataset = dataset
        self._present = np.zeros(dataset.count, bool)
        for shard, begin, end in zip(dataset.shards, dataset.starts[:-1], dataset.starts[1:], strict=True):
            self._present[begin:end] = shard.object.uri in self._whole

    def holds(self, numbers: Int64s) -> NDArray[np.bool_]:
        """Which of these records (shape [n]) are kept."""
        held: NDArray[np.bool_] = self._present[numbers]
        return held

    def has(self, read: RangeRead) -> bool:
        """Whether the records of a range are all kept."""
        return bool(self._present[self._numbers(read)].all())

    def keep(self, read: RangeRead, content: bytes | memoryview) -> None:
        """Keeps the bytes of a range, and with them every record that lies in them, asked for or not."""
        if self.write(self._uri(read), read.start, content):
            assert self._dataset is not None
            shard, base = self._dataset.shards[read.shard], int(self._dataset.starts[read.shard])
            first = int(np.searchsorted(shard.offsets, read.start))
            ends = shard.offsets[first:] + shard.lengths[first:] + FOOTER
            count = int(np.searchsorted(ends, read.start + len(content), side="right"))
            self._present[base + first : base + first + count] = True

    def read(self, read: RangeRead) -> bytes | None:
        """The bytes of a range whose records are all kept; None when one is not."""
        if not self.has(read):
            return None
        try:
            with self._opened(self._uri(read)) as file:
                content = os.pread(file, read.length, read.start)
        except OSError:
            return None
        return content if len(content) == read.length else None

    def close(self) -> None:
        """Deletes everything."""
        self._clean()

    def _uri(self, read: RangeRead) -> str:
        assert self._dataset is not None
        return self._dataset.shards[read.shard].object.uri

    def _numbers(self, read: RangeRead) -> Int64s:
        assert self._dataset is not None
        return read.rows + int(self._dataset.starts[read.shard])

    @contextmanager
    def _opened(self, uri: str) -> Iterator[int]:
        # Open for as long as it takes: a data set may have more shards than a process may have files.
        with self._lock:
            path = self._folder / str(self._files.setdefault(uri, len(self._files)))
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            yield file
        finally:
            os.close(file)

    def _give_up(self, error: OSError) -> None:
        with self._lock:
            full, self._full = self._full, None
        if full is not None:
            full(f"the disk cache in {self._folder.parent} keeps no more: {error.strerror}")
