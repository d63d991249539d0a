from __future__ import annotations

import itertools
import struct
import tracemalloc
from collections.abc import Iterable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mptraining_api.problems import InvalidData
from mptraining_records.index import scanner
from mptraining_records.index.scanner import FrameWalk
from mptraining_records.index.shard_index import ShardIndex
from mptraining_records.storage.storage import StoredObject
from mptraining_records.tfrecord import framing
from mptraining_records.tfrecord.framing import BadRecord


def _walked(content: bytes, cuts: Iterable[int] = (), *, check_payloads: bool = False) -> FrameWalk:
    walk = FrameWalk(StoredObject("file", len(content), "1"), check_payloads=check_payloads)
    places = [0, *sorted(cut % (len(content) + 1) for cut in cuts), len(content)]
    for begin, end in itertools.pairwise(places):
        walk.feed(memoryview(content)[begin:end])
    return walk


def _index(content: bytes, cuts: Iterable[int] = ()) -> ShardIndex:
    return _walked(content, cuts).finish()


def _found(content: bytes, shard: ShardIndex) -> list[bytes]:
    return [content[at : at + size] for at, size in zip(shard.offsets, shard.lengths, strict=True)]


def _delivered(content: bytes) -> list[bytes]:
    """Return the records that a reader yields when it skips damage."""
    walk = _walked(content, check_payloads=True)
    bad = {each.offset + framing.HEADER for each in walk.bad_payloads}
    shard = walk.finish()
    return [record for at, record in zip(shard.offsets.tolist(), _found(content, shard), strict=True) if at not in bad]


def _flipped(content: bytes, *places: int) -> bytes:
    changed = bytearray(content)
    for place in places:
        changed[place] ^= 0xFF
    return bytes(changed)


def _frames(records: Sequence[bytes]) -> bytes:
    return b"".join(map(framing.encode, records))


ODD = [b"", b"one", b"", bytes(700), b"four" * 30, b"five"]


class Test_sound_files:
    def test_every_record_is_found(self) -> None:
        content = _frames(ODD)
        shard = _index(content)
        assert _found(content, shard) == ODD
        assert shard.damaged == ()

    def test_an_empty_file_has_no_records(self) -> None:
        assert _index(b"").count == 0

    def test_payloads_are_checked_when_asked_for(self) -> None:
        content = _frames(ODD)
        begin = len(_frames(ODD[:4]))
        walk = _walked(_flipped(content, begin + 20), cuts=[begin + 15, begin + 30], check_payloads=True)
        assert walk.finish().count == len(ODD)
        assert walk.bad_payloads == (BadRecord("file", 4, begin, framing.BAD_PAYLOAD, 136),)

    def test_a_long_record_is_not_kept(self) -> None:
        records = [b"a", bytes(200 << 20), b"b"]
        size = sum(len(record) + framing.OVERHEAD for record in records)
        walk = FrameWalk(StoredObject("file", size, "1"))
        header = struct.pack("<Q", 200 << 20)
        walk.feed(framing.encode(b"a") + header + struct.pack("<I", framing.masked_crc(header)))
        window = bytes(1 << 20)
        for _ in range(200):
            walk.feed(window)
        walk.feed(bytes(4) + framing.encode(b"b"))
        assert walk.finish().lengths.tolist() == [1, 200 << 20, 1]

    def test_more_or_fewer_bytes_than_the_object_has_are_a_mistake(self) -> None:
        walk = FrameWalk(StoredObject("file", 20, "1"))
        with pytest.raises(ValueError, match="fed 0 bytes of 20"):
            walk.finish()
        with pytest.raises(ValueError, match="fed 21 bytes of 20"):
            walk.feed(_frames([b"12345"]))


class Test_damage:
    records = tuple(b"record %d" % number * 3 for number in range(10))
    content = _frames(records)

    def begin(self, number: int) -> int:
        return len(_frames(self.records[:number]))

    def without(self, *numbers: int) -> list[bytes]:
        return [record for number, record in enumerate(self.records) if number not in numbers]

    @pytest.mark.parametrize("byte", range(12))
    @pytest.mark.parametrize("number", [0, 4, 9])
    def test_one_wrong_byte_of_a_header_costs_its_record(self, number: int, byte: int) -> None:
        content = _flipped(self.content, self.begin(number) + byte)
        shard = _index(content)
        assert _found(content, shard) == self.without(number)
        to = (
            f"the next record begins at byte {self.begin(number + 1)}" if number < 9 else "no record was found after it"
        )
        cause = f"{framing.BAD_LENGTH}; {to}"
        assert shard.damaged == (BadRecord("file", number, self.begin(number), cause, 40),)

    def test_damaged_headers_side_by_side_are_one_gap(self) -> None:
        content = _flipped(self.content, *(self.begin(number) + number for number in range(3, 8)))
        shard = _index(content)
        assert [(gap.record, gap.offset, gap.length) for gap in shard.damaged] == [(3, self.begin(3), 200)]
        assert _found(content, shard) == self.without(*range(3, 8))

    def test_a_damaged_header_costs_the_bytes_up_to_the_next_record(self) -> None:
        begin = self.begin(4)
        content = _flipped(self.content, *range(begin, begin + 12))
        shard = _index(content)
        assert _found(content, shard) == self.without(4)
        cause = f"{framing.BAD_LENGTH}; the next record begins at byte {begin + 40}"
        assert shard.damaged == (BadRecord("file", 4, begin, cause, 40),)
        assert shard.bad_record(4).record == 5

    def test_lost_bytes_in_the_middle_end_with_the_next_record(self) -> None:
        content = self.content[: self.begin(4)] + self.content[self.begin(4) + 25 :]
        shard = _index(content)
        assert _found(content, shard) == self.without(4)

    def test_a_frame_that_leads_past_the_end_may_be_followed_by_others(self) -> None:
        # Two files written one after the other, the first cut short.
        content = framing.encode(bytes(5000))[:100] + self.content
        shard = _index(content)
        assert _found(content, shard) == self.without()
        cause = f"{scanner.PAST_END}; the next record begins at byte 100"
        assert shard.damaged == (BadRecord("file", 0, 0, cause, 100),)

    @pytest.mark.parametrize("lost", [1, 4, 5, 24, 28, 29, 39])
    def test_a_truncated_file_names_its_last_record(self, lost: int) -> None:
        content = self.content[:-lost]
        shard = _index(content)
        assert _found(content, shard) == self.without(9)
        assert shard.damaged == (BadRecord("file", 9, self.begin(9), framing.TRUNCATED, 40 - lost),)

    def test_a_file_of_one_byte_is_a_truncated_record(self) -> None:
        shard = _index(b"x")
        assert shard.count == 0
        assert shard.damaged == (BadRecord("file", 0, 0, framing.TRUNCATED, 1),)

    def test_a_frame_without_confirmation_is_not_used(self) -> None:
        # A header by chance, within the payload of a record whose own header is lost.
        chance = framing.encode(b"12345")[:12]
        content = _frames([b"a"]) + bytes(12) + b"....." + chance + b"........" + _frames([b"b"])
        shard = _index(content)
        assert _found(content, shard) == [b"a", b"b"]

    def test_the_checksum_changes_with_the_damage(self) -> None:
        checksums = {
            _index(self.content).checksum,
            _index(_flipped(self.content, self.begin(4))).checksum,
            _index(_flipped(self.content, self.begin(5))).checksum,
        }
        assert len(checksums) == 3


class Test_foreign_files:
    def test_are_refused(self) -> None:
        for content in (b"label,pixel\n" * 9, b"PAR1" + bytes(100), bytes(1000)):
            with pytest.raises(InvalidData, match="not a TFRecord file"):
                _index(content)

    def test_are_not_searched_for_records_to_their_end(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(scanner, "LOOKAHEAD", 1000)
        content = b"label,pixel\n" * 90
        with pytest.raises(InvalidData, match="not a TFRecord file"):
            _index(content + _frames(ODD))
        walk = FrameWalk(StoredObject("file", 1 << 40, "1"))
        with pytest.raises(InvalidData, match="not a TFRecord file"):
            walk.feed(content)

    def test_compressed_ones_have_a_name(self) -> None:
        with pytest.raises(framing.CompressedFile):
            _index(b"\x1f\x8b" + bytes(100))


_RECORDS = st.lists(st.binary(max_size=60), min_size=1, max_size=30)
_PLACES = st.lists(st.integers(0, 1 << 20), max_size=8)


def test_a_payload_in_pieces_is_checked_whole() -> None:
    payloads = [b"", b"one", b"a longer one" * 9]
    content = b"".join(map(framing.encode, payloads))
    seen: list[bytes] = []

    def fault(payload: bytes) -> str | None:
        seen.append(payload)
        return "three letters" if payload == b"one" else None

    walk = FrameWalk(StoredObject("file", len(content), "1"), content_fault=fault)
    for place in range(len(content)):
        walk.feed(content[place : place + 1])
    assert seen == payloads
    assert [(bad.record, bad.offset, bad.cause) for bad in walk.bad_payloads] == [(1, 16, "three letters")]
    assert walk.finish().count == 3


def _outcome(content: bytes, cuts: Iterable[int], *, check_payloads: bool) -> object:
    """Return all results of a scan, refusals included."""
    try:
        walk = _walked(content, cuts, check_payloads=check_payloads)
    except InvalidData as error:
        return str(error)
    shard = walk.finish()
    return shard.offsets.tolist(), shard.lengths.tolist(), shard.damaged, shard.checksum, walk.bad_payloads


@given(_RECORDS, _PLACES, _PLACES, st.integers(0, 16), st.booleans(), st.sampled_from([40, 64 << 20]))
def test_any_cutting_of_any_bytes_gives_the_same(
    records: list[bytes], flips: list[int], cuts: list[int], lost: int, check: bool, lookahead: int
) -> None:
    whole = _frames(records)
    content = _flipped(whole, *(place % len(whole) for place in flips))[: len(whole) - lost]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(scanner, "LOOKAHEAD", lookahead)
        at_once = _outcome(content, [], check_payloads=check)
        assert _outcome(content, cuts, check_payloads=check) == at_once
        assert _outcome(content, range(len(content)), check_payloads=check) == at_once


@given(_RECORDS, st.data())
def test_a_flipped_byte_in_the_payloads_of_some_records_costs_these_alone(
    records: list[bytes], data: st.DataObject
) -> None:
    damaged = data.draw(st.sets(st.integers(0, len(records) - 1)))
    frames = [bytearray(framing.encode(record)) for record in records]
    for number in damaged:
        place = data.draw(st.integers(framing.HEADER, len(frames[number]) - 1))
        frames[number][place] ^= data.draw(st.integers(1, 255))
    content = b"".join(frames)
    walk = _walked(content, check_payloads=True)
    shard = walk.finish()
    begins = np.cumsum([0, *map(len, frames)]).tolist()
    bad = sorted((*shard.damaged, *walk.bad_payloads), key=lambda each: each.offset)
    assert [(each.record, each.offset, each.length) for each in bad] == [
        (number, begins[number], len(frames[number])) for number in sorted(damaged)
    ]
    assert _delivered(content) == [record for number, record in enumerate(records) if number not in damaged]


@given(_RECORDS, st.binary(min_size=1, max_size=50), st.data())
def test_rubbish_between_records_costs_no_record(records: list[bytes], rubbish: bytes, data: st.DataObject) -> None:
    at = data.draw(st.integers(1, len(records)))
    content = _frames(records[:at]) + rubbish + _frames(records[at:])
    assert _delivered(content) == records


@pytest.mark.parametrize("count", [1, 20])
@pytest.mark.parametrize("part", ["length", "length's checksum", "payload", "payload's checksum"])
def test_a_flipped_byte_in_some_of_240_records(count: int, part: str) -> None:
    records = [bytes([number]) * (number * 7 % 100 + 1) for number in range(240)]
    frames = [bytearray(framing.encode(record)) for record in records]
    place = {"length": 1, "length's checksum": 9, "payload": 12, "payload's checksum": -1}[part]
    for number in range(100, 100 + count):
        frames[number][place] ^= 0x10
    assert len(_delivered(b"".join(frames))) == 240 - count


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
    assert _found(content, shard) == [b"behind"]
    assert sum(each.length for each in shard.damaged) == len(content) - framing.OVERHEAD - len(b"behind")
