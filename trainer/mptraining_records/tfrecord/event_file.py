"""Event files of TensorBoard: scalars by step, and restarts that make later steps void.

An event file is a TFRecord file of `tensorflow.Event` messages. Source: tensorboard/compat/proto/{event,summary}.proto;
a restart is a SessionLog, as tf.train.Supervisor wrote it, which TensorBoard still reads.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import Literal

from mptraining_api.outputs.scalars import TRAIN, VALIDATION, Restart, Scalar
from mptraining_records.tfrecord import framing
from mptraining_storage import local, storage

# A file is replaced whole in a bucket while it grows.
PART_BYTES = 1 << 20
_VERSION = b"brain.Event:2"
_START = 1
RUNS: tuple[Literal["train", "validation"], ...] = (TRAIN, VALIDATION)


def encode_version(time: float) -> bytes:
    """Return the first record of a file."""
    return framing.encode(_double(1, time) + _bytes(3, _VERSION))


def encode_scalar(scalar: Scalar) -> bytes:
    """Return the record of one value."""
    # struct.pack refuses numbers beyond float32's range.
    number = max(-3.4e38, min(3.4e38, scalar.value))
    value = _bytes(1, scalar.tag.encode()) + b"\x15" + struct.pack("<f", number)
    return framing.encode(_double(1, scalar.time) + _varint(2, scalar.step) + _bytes(5, _bytes(1, value)))


def encode_restart(restart: Restart) -> bytes:
    """Return the record after which TensorBoard drops the values of all steps after the restart's."""
    # TensorBoard drops from the step of the record on.
    return framing.encode(_double(1, restart.time) + _varint(2, restart.step + 1) + _bytes(7, _varint(1, _START)))


class EventFiles:
    """Event files of one launch, in `train/` and `validation/` below `folder`; both have every restart.

    `name` makes the files' names unique; TensorBoard reads the files of a folder in the order of `begin`, in seconds
    since 1970. The caller writes with `flush`, which raises Problem or OSError and may be called again.
    """

    def __init__(self, folder: str, name: str, begin: float) -> None:
        self._folder = folder
        self._name = name
        self._begin = begin
        self._remote = storage.is_remote(folder)
        self._part = dict.fromkeys(RUNS, 0)
        self._content: Mapping[str, bytearray] = {run: bytearray() for run in RUNS}
        self._stored = dict.fromkeys(RUNS, 0)

    def add(self, items: Iterable[Scalar | Restart]) -> None:
        """Add scalars and restarts, which `flush` writes."""
        for item in items:
            if isinstance(item, Restart):
                for run in RUNS:
                    self._append(run, encode_restart(item), item.time)
            else:
                self._append(item.run, encode_scalar(item), item.time)

    def flush(self) -> None:
        """Write what was added; a folder without a scalar is not created."""
        for run in RUNS:
            content, stored = self._content[run], self._stored[run]
            if len(content) == stored:
                continue
            file = f"events.out.tfevents.{int(self._begin):010d}.{self._name}.{self._part[run]:05d}"
            uri = storage.join(self._folder, run, file)
            if self._remote:
                storage.write(uri, bytes(content))
            else:
                local.append(storage.local_path(uri), content, stored)
            self._stored[run] = len(content)
            if len(content) > PART_BYTES:
                self._part[run] += 1
                content.clear()
                self._stored[run] = 0

    def _append(self, run: Literal["train", "validation"], record: bytes, time: float) -> None:
        content = self._content[run]
        if not content:
            content += encode_version(time)
        content += record


def _double(field: int, value: float) -> bytes:
    return bytes([field << 3 | 1]) + struct.pack("<d", value)


def _varint(field: int, value: int) -> bytes:
    return bytes([field << 3]) + _number(value)


def _bytes(field: int, value: bytes) -> bytes:
    return bytes([field << 3 | 2]) + _number(len(value)) + value


def _number(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
