from __future__ import annotations

import itertools
import struct
import tracemalloc
from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mptraining_api.problems import InvalidData
from mptraining_records.index.scanner import FrameWalk
from mptraining_records.index.shard_index import ShardIndex
from mptraining_records.tfrecord import framing
from mptraining_records.tfrecord.framing import BadRecord
from mptraining_storage.preconditions import StoredObject


def _walked(content: bytes, cuts: Iterable[int] = (), *, check_payloads: bool = False) -> FrameWalk:
    fault = (lambda _: None) if check_payloads else None
    walk = FrameWalk(StoredObject("file", len(content), "1"), content_fault=fault)
    places = [0, *sorted(cut % (len(content) + 1) for cut in cuts), len(content)]
    for begin, end in itertools.pairwise(places):
        walk.feed(memoryview(content)[begin:end])
    return walk


def _index(content: bytes) -> ShardIndex:
    return _walked(content).finish()


def _records(content: bytes, shard: ShardIndex) -> list[bytes]:
    return [content[at : at + size] for at, size in zip(shard.offsets, shard.lengths, strict=True)]


def _flipped(content: bytes, *places: int) -> bytes:
    changed = bytearray(content)
    for place in places:
        changed[place] ^= 0xFF
    return bytes(changed)


def _frames(records: Sequence[bytes]) -> bytes:
    return b"".join(map(framing.encode, records))


ODD = [b"", b"one", b"", bytes(700), b"four" * 30, b"five"]
# Ten records of 24 bytes with frames of 40.
TEN = [b"record %d" % number * 3 for number in range(10)]


@pytest.mark.parametrize("records", [ODD, TEN, []])
def test_every_record_of_a_sound_file_has_a_row(records: list[bytes]) -> None:
    content = _frames(records)
    shard = _index(content)
    assert (_records(content, shard), shard.damage) == (records, None)


def test_more_or_fewer_bytes_than_the_object_has_are_a_mistake() -> None:
    walk = FrameWalk(StoredObject("file", 20, "1"))
    with pytest.raises(ValueError, match="fed 0 bytes of 20"):
        walk.finish()
    with pytest.raises(ValueError, match="fed 21 bytes of 20"):
        walk.feed(_frames([b"12345"]))


@pytest.mark.parametrize("byte", [0, 7, 8, 11])
@pytest.mark.parametrize("number", [1, 4, 9])
def test_a_damaged_length_ends_the_shard(number: int, byte: int) -> None:
    content = _flipped(_frames(TEN), 40 * number + byte)
    shard = _index(content)
    assert _records(content, shard) == TEN[:number]
    assert shard.damage == BadRecord("file", number, 40 * number, framing.BAD_LENGTH, 400 - 40 * number)
    other = _index(_flipped(_frames(TEN), 40 * (number - 1) + byte)) if number > 1 else _index(_frames(TEN))
    assert shard.checksum != other.checksum


@pytest.mark.parametrize("lost", [1, 4, 5, 24, 28, 29, 39])
def test_a_truncated_file_names_its_last_record(lost: int) -> None:
    content = _frames(TEN)[:-lost]
    shard = _index(content)
    assert _records(content, shard) == TEN[:9]
    assert shard.damage == BadRecord("file", 9, 360, framing.TRUNCATED, 40 - lost)
    assert _index(b"x").damage == BadRecord("file", 0, 0, framing.TRUNCATED, 1)


@pytest.mark.parametrize("content", [b"label,pixel\n" * 9, b"PAR1" + bytes(99), bytes(999), _flipped(_frames(TEN), 0)])
def test_a_file_that_does_not_begin_with_a_length_is_refused_at_once(content: bytes) -> None:
    walk = FrameWalk(StoredObject("file", 1 << 40, "1"))
    with pytest.raises(InvalidData, match="not a TFRecord file"):
        walk.feed(content)


def test_a_payload_in_pieces_is_checked_whole() -> None:
    payloads = [b"", b"one", b"a longer one" * 9]
    content = _frames(payloads)
    checked: list[bytes] = []

    def fault(payload: bytes) -> str | None:
        checked.append(payload)
        return "three letters" if payload == b"one" else None

    walk = FrameWalk(StoredObject("file", len(content), "1"), content_fault=fault)
    for place in range(len(content)):
        walk.feed(content[place : place + 1])
    assert checked == payloads
    assert [(bad.record, bad.offset, bad.cause) for bad in walk.bad_payloads] == [(1, 16, "three letters")]
    assert walk.finish().count == 3


_RECORDS = st.lists(st.binary(max_size=60), min_size=1, max_size=30)
_PLACES = st.lists(st.integers(0, 1 << 20), max_size=8)


def _outcome(content: bytes, cuts: Iterable[int], *, check_payloads: bool) -> object:
    """Return all results of a scan, refusals included."""
    try:
        walk = _walked(content, cuts, check_payloads=check_payloads)
    except InvalidData as error:
        return str(error)
    shard = walk.finish()
    return shard.offsets.tolist(), shard.lengths.tolist(), shard.damage, shard.checksum, walk.bad_payloads


@given(_RECORDS, _PLACES, _PLACES, st.integers(0, 16), st.booleans())
def test_any_cutting_of_any_bytes_gives_the_same(
    records: list[bytes], flips: list[int], cuts: list[int], lost: int, check: bool
) -> None:
    whole = _frames(records)
    content = _flipped(whole, *(place % len(whole) for place in flips))[: len(whole) - lost]
    at_once = _outcome(content, [], check_payloads=check)
    assert _outcome(content, cuts, check_payloads=check) == at_once
    assert _outcome(content, range(len(content)), check_payloads=check) == at_once


@given(_RECORDS, st.data())
def test_a_damaged_payload_costs_its_record_alone(records: list[bytes], data: st.DataObject) -> None:
    damaged = data.draw(st.sets(st.integers(0, len(records) - 1)))
    frames = [bytearray(framing.encode(record)) for record in records]
    for number in damaged:
        place = data.draw(st.integers(framing.HEADER, len(frames[number]) - 1))
        frames[number][place] ^= data.draw(st.integers(1, 255))
    walk = _walked(b"".join(frames), check_payloads=True)
    begins = [0, *itertools.accumulate(map(len, frames))]
    assert walk.bad_payloads == tuple(
        BadRecord("file", number, begins[number], framing.BAD_PAYLOAD, len(frames[number]))
        for number in sorted(damaged)
    )
    shard = walk.finish()
    assert (shard.count, shard.damage) == (len(records), None)


@pytest.mark.parametrize("length", [2**31, 2**62, 2**63, 2**64 - 1])
def test_a_false_length_allocates_no_memory(length: int) -> None:
    """Its checksum is right, as in a file that was crafted."""
    header = struct.pack("<Q", length)
    content = header + struct.pack("<I", framing.masked_crc(header)) + b"payload" + _frames([b"behind"])
    tracemalloc.start()
    try:
        shard = _index(content)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 << 20
    assert shard.damage == BadRecord("file", 0, 0, framing.TRUNCATED, len(content))
