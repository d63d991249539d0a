"""Every record once in every epoch and in the same order, for any number of readers and any first position.

From real files, through the index, by streams, as the trainer's input cuts them; without TensorFlow's pipeline.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from mptraining_records.index import dataset_index
from mptraining_records.reading.order import Order, Position
from mptraining_records.reading.prefetch import RecordStream
from mptraining_records.reading.reader import RecordReader
from mptraining_records.tfrecord import framing
from mptraining_trainer.data.batching import Batching, Share, pieces, training_spans, windows

EPOCHS = 2


@st.composite
def shards(draw: st.DrawFn) -> list[list[bytes]]:
    """Records that begin with their number, of many lengths; a shard may be empty."""
    counts = draw(st.lists(st.integers(0, 60), min_size=1, max_size=5).filter(any))
    longest = draw(st.integers(0, 3000))
    numbers = itertools.count()
    return [[_record(next(numbers), longest) for _ in range(count)] for count in counts]


def _record(number: int, longest: int) -> bytes:
    return number.to_bytes(4, "little") + bytes(number * 7919 % (longest + 1))


@given(
    shards=shards(),
    order=st.builds(
        Order,
        count=st.just(0),
        seed=st.integers(0, 2**32),
        buffer_size=st.integers(1, 400),
        streams=st.integers(1, 70),
        block=st.integers(1, 50),
        shuffle=st.booleans(),
    ),
    examples=st.integers(1, 8),
    workers=st.sampled_from([1, 2, 3, 4, 8]),
    remainder=st.sampled_from(["Drop", "PadAndMask"]),
    read_ahead=st.integers(1, 40_000),
    at=st.floats(0, 1),
)
def test_all_workers_together_read_the_order_of_the_epoch(
    shards: list[list[bytes]],
    order: Order,
    examples: int,
    workers: int,
    remainder: Literal["Drop", "PadAndMask"],
    read_ahead: int,
    at: float,
) -> None:
    count = sum(map(len, shards))
    order = Order(count, order.seed, order.buffer_size, order.streams, order.block, order.shuffle)
    batching = Batching(count, examples * 24, remainder) if examples > 4 else Batching(count, 24, remainder)
    assume(batching.steps_per_pass)
    begin = Position(seed=order.seed, epoch=3, examples=int(at * count), fingerprint="")
    wanted = [number for epoch in range(EPOCHS) for number in _wanted(order, batching, begin, epoch)]
    with TemporaryDirectory() as folder:
        for name, records in enumerate(shards):
            Path(folder, f"{name}.tfrecord").write_bytes(b"".join(map(framing.encode, records)))
        with RecordReader(dataset_index.build([f"{folder}/*.tfrecord"]), streams=4) as reader:
            shares = [
                _read(reader, order, batching, begin, Share(worker, workers), read_ahead=read_ahead, batch=examples)
                for worker in range(workers)
            ]
            assert [number for turn in zip(*shares, strict=True) for number in turn] == wanted


def _wanted(order: Order, batching: Batching, begin: Position, epoch: int) -> list[int]:
    """Return the order of the epoch that is `epoch` after that of `begin`; -1 fills up its last step."""
    first = begin.examples if epoch == 0 else 0
    steps = batching.steps_from(first)
    positions = np.arange(first, min(order.count, first + steps * batching.examples_per_step))
    records: list[int] = order.records(begin.epoch + epoch, positions).tolist()
    if first == 0 and batching.remainder == "PadAndMask":
        assert sorted(records) == list(range(order.count))
    assert len(set(records)) == len(records)
    return records + [-1] * (steps * batching.examples_per_step - len(records))


def _read(
    reader: RecordReader,
    order: Order,
    batching: Batching,
    begin: Position,
    share: Share,
    *,
    read_ahead: int,
    batch: int,
) -> list[int]:
    """Return the numbers in the records of one worker, in the order of its stream; -1 for no record."""
    spans = list(itertools.takewhile(lambda span: span.epoch < begin.epoch + EPOCHS, training_spans(batching, begin)))
    stream = RecordStream(reader, windows(order, spans, share), read_ahead=read_ahead)
    numbers: list[int] = []
    for piece in pieces(order, spans, share, batching.examples_per_step):
        for first in range(0, len(piece.records), batch):
            wanted = piece.records[first : first + batch]
            taken = stream.take(int((wanted >= 0).sum()))
            numbers += [int.from_bytes(record[:4], "little") for record in taken if record is not None]
            numbers += [-1] * (len(wanted) - len(taken))
    assert stream.take(1) == []
    return numbers
