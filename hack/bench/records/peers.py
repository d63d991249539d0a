"""Readers for comparison: TensorFlow's own, plain and tuned, and Python's.

Each yields the records of an epoch in batches. Imports come first, in `imports`, so that they count neither as time
nor as memory.
"""

from __future__ import annotations

import functools
import importlib
import io
import itertools
import os
import queue
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from mptraining_records.tfrecord import framing

Batches = Iterator[Sequence[bytes]]
_BLOCK = 8 << 20


@dataclass(frozen=True)
class Peer:
    """`by_tensorflow`: it uses TensorFlow's gs:// file system. `environment` is its manual tuning. `read` takes
    patterns, the size of a batch, and that of a shuffle buffer or None.
    """

    read: Callable[[Sequence[str], int, int | None], Batches]
    imports: tuple[str, ...] = ("tensorflow",)
    by_tensorflow: bool = True
    environment: Mapping[str, str] = field(default_factory=dict)

    def prepare(self) -> None:
        """Import all modules that reading needs."""
        for name in self.imports:
            importlib.import_module(name)


def _tensorflow(patterns: Sequence[str], batch: int, buffer: int | None, *, reads: int | None = None) -> Batches:
    import tensorflow as tf

    files = sorted(itertools.chain.from_iterable(map(tf.io.gfile.glob, patterns)))
    records = tf.data.TFRecordDataset(files, num_parallel_reads=reads)
    if buffer is not None:
        records = records.shuffle(buffer, seed=1)
    yield from records.batch(batch).prefetch(tf.data.AUTOTUNE).as_numpy_iterator()


def _gcsfs(patterns: Sequence[str], batch: int, _: int | None) -> Batches:
    """Read with a thread for each of eight files."""
    import gcsfs

    system = gcsfs.GCSFileSystem(token="anon", endpoint_url=os.environ["STORAGE_EMULATOR_HOST"])
    paths = sorted(itertools.chain.from_iterable(map(system.glob, patterns)))
    groups: queue.Queue[list[bytes] | BaseException | None] = queue.Queue(32)

    def follow(path: str) -> None:
        try:
            with system.open(path, "rb", block_size=_BLOCK) as file:
                for group in _grouped(_framed(io.BufferedReader(file, _BLOCK)), batch):
                    groups.put(group)
        except BaseException as error:  # noqa: BLE001  handed to who reads
            groups.put(error)
        groups.put(None)

    with ThreadPoolExecutor(8) as pool:
        for path in paths:
            pool.submit(follow, path)
        left = len(paths)
        while left:
            group = groups.get()
            if isinstance(group, BaseException):
                raise group
            if group is None:
                left -= 1
            else:
                yield group


def _framed(file: Any) -> Iterator[bytes]:
    """Yield the records of an open file after comparing their checksums."""
    while header := file.read(framing.HEADER):
        length, _ = framing.header_format.unpack(header)
        body = file.read(length + framing.FOOTER)
        if body[length:] != framing.footer_format.pack(framing.masked_crc(body[:length])):
            raise ValueError("a damaged record")
        yield body[:length]


def _grouped(records: Iterable[bytes], batch: int) -> Iterator[list[bytes]]:
    records = iter(records)
    while group := list(itertools.islice(records, batch)):
        yield group


_BLOCKS = {"GCS_READ_CACHE_BLOCK_SIZE_MB": "8"}
# Otherwise it would request the kind of the bucket by gRPC, which no emulator supports.
_GCSFS = {"DEFAULT_GCSFS_CONCURRENCY": "16", "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false"}
PEERS = {
    "plain": Peer(_tensorflow),
    "reads-16": Peer(functools.partial(_tensorflow, reads=16), environment=_BLOCKS),
    "gcsfs": Peer(_gcsfs, ("gcsfs", "google_crc32c"), by_tensorflow=False, environment=_GCSFS),
}
