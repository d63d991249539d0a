"""Ranges of remote shards kept on the local disk, so that the second epoch asks the bucket for nothing.

One sparse file a shard, each range at its own place in it. A record counts as kept once all of its bytes are written,
never before; nothing is evicted, and the folder goes with the process: what an earlier one left half-written is never
read. A disk that is full ends the keeping, not the training.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import threading
import weakref
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mptraining_api.problems import StorageUnavailable
from mptraining_records import files
from mptraining_records.framing import FOOTER
from mptraining_records.index import DatasetIndex
from mptraining_records.read_plan import RangeRead
from mptraining_records.shard_index import Int64s


class DiskCache:
    """Keeps what is fetched of one data set below `folder`. Safe to use from several threads.

    `full` hears one line when the disk is full. Raises StorageUnavailable when the folder cannot be made.
    """

    def __init__(self, dataset: DatasetIndex, folder: Path, full: Callable[[str], None]) -> None:
        self._dataset = dataset
        self._full: Callable[[str], None] | None = full
        self._present = np.zeros(dataset.count, bool)
        self._lock = threading.Lock()
        self._files: dict[int, int] = {}
        with files.explained(folder):
            self._folder = Path(tempfile.mkdtemp(prefix="mptraining-records-", dir=folder))
        self._clean = weakref.finalize(self, _remove, self._folder, self._files)

    @property
    def kept(self) -> int:
        """How many records are kept."""
        return int(np.count_nonzero(self._present))

    def holds(self, numbers: Int64s) -> NDArray[np.bool_]:
        """Which of these records (shape [n]) are kept."""
        held: NDArray[np.bool_] = self._present[numbers]
        return held

    def keep(self, shard: int, start: int, content: bytes | memoryview) -> None:
        """Keeps the bytes from byte `start` of a shard, and with them every record that lies in them whole."""
        if self._full is None:
            return
        try:
            written = 0
            # A disk that is nearly full takes a part, and says so at the next call.
            while written < len(content):
                written += os.pwrite(self._file(shard), memoryview(content)[written:], start + written)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO):
                raise StorageUnavailable(str(self._folder), f"the disk cache failed: {error.strerror}") from error
            self._give_up(error)
            return
        index = self._dataset.shards[shard]
        first = int(np.searchsorted(index.offsets, start))
        ends = index.offsets + index.lengths + FOOTER
        last = int(np.searchsorted(ends, start + len(content), side="right"))
        base = int(self._dataset.starts[shard])
        self._present[base + first : base + last] = True

    def has(self, read: RangeRead) -> bool:
        """Whether the records of a range are all kept."""
        return bool(self._present[int(self._dataset.starts[read.shard]) + read.rows].all())

    def read(self, read: RangeRead) -> bytes | None:
        """The bytes of a range whose records are all kept; None when one is not."""
        if not self.has(read):
            return None
        content = os.pread(self._file(read.shard), read.length, read.start)
        return content if len(content) == read.length else None

    def forget(self, number: int) -> None:
        """Record `number` is fetched again when it is asked for."""
        self._present[number] = False

    def close(self) -> None:
        """Deletes everything."""
        self._clean()

    def _file(self, shard: int) -> int:
        with self._lock:
            if shard not in self._files:
                flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
                self._files[shard] = os.open(self._folder / str(shard), flags, 0o600)
            return self._files[shard]

    def _give_up(self, error: OSError) -> None:
        with self._lock:
            full, self._full = self._full, None
        if full is not None:
            share = f"{self.kept} of {self._dataset.count} records"
            full(f"the disk cache in {self._folder.parent} ends with {share}: {error.strerror}")


def _remove(folder: Path, opened: dict[int, int]) -> None:
    for file in opened.values():
        os.close(file)
    opened.clear()
    shutil.rmtree(folder, ignore_errors=True)
