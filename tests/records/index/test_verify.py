from __future__ import annotations

import gzip
from collections.abc import Callable, Sequence

import pytest

from mptraining_api.problems import InvalidData
from mptraining_records.index.verify import VerifyReport, verify
from mptraining_records.storage import storage
from mptraining_records.tfrecord import framing
from mptraining_records.tfrecord.framing import BadRecord

WriteShard = Callable[[str, Sequence[bytes]], str]
FRAME = 16 + len(b"record")


@pytest.fixture
def shards(folder: str, write_shard: WriteShard) -> list[str]:
    return [write_shard(storage.join(folder, f"{n}.tfrecord"), [b"record"] * 2000) for n in range(3)]


def test_a_sound_data_set_has_no_bad_records(shards: list[str], folder: str) -> None:
    steps: list[tuple[int, int]] = []
    report = verify([storage.join(folder, "*")], lambda done, total: steps.append((done, total)))
    assert report == VerifyReport(files=3, records=6000, bytes=6000 * FRAME, bad=())
    # In bytes; a bucket reports them window by window as well as at the end of each file.
    assert steps == sorted(steps)
    assert sorted(set(steps)) == [(number * 2000 * FRAME, 6000 * FRAME) for number in (1, 2, 3)]


def test_it_continues_after_damaged_payloads(shards: list[str], folder: str, flip: Callable[[str, int], None]) -> None:
    flip(shards[0], 14)
    flip(shards[0], 1500 * FRAME + 12)
    flip(shards[2], -1)
    report = verify([storage.join(folder, "*")])
    assert report.records == 6000
    assert report.bad == (
        BadRecord(shards[0], 0, 0, framing.BAD_PAYLOAD, FRAME),
        BadRecord(shards[0], 1500, 1500 * FRAME, framing.BAD_PAYLOAD, FRAME),
        BadRecord(shards[2], 1999, 1999 * FRAME, framing.BAD_PAYLOAD, FRAME),
    )


def test_it_continues_after_damaged_lengths(shards: list[str], folder: str, flip: Callable[[str, int], None]) -> None:
    for number in (10, 20, 21):
        flip(shards[1], number * FRAME + number % 12)
    flip(shards[1], 15 * FRAME + 12)
    report = verify([storage.join(folder, "*")])
    assert report.records == 5997
    assert [(bad.record, bad.offset // FRAME) for bad in report.bad] == [
        (number, number) for number in (10, 15, 20, 21)
    ]


def test_a_truncated_file_is_reported(shards: list[str], folder: str) -> None:
    storage.write(shards[1], storage.read(shards[1])[:-1])
    (bad,) = verify([storage.join(folder, "*")]).bad
    assert bad == BadRecord(shards[1], 1999, 1999 * FRAME, framing.TRUNCATED, FRAME - 1)


def test_compressed_files_are_verified_by_what_they_hold(
    folder: str, flip: Callable[[str, int], None], write_shard: WriteShard
) -> None:
    uri = write_shard(storage.join(folder, "a.tfrecord"), [b"record"] * 10)
    flip(uri, 3 * FRAME + 12)
    flip(uri, 5 * FRAME)
    storage.write(uri, gzip.compress(storage.read(uri)))
    report = verify([uri])
    assert (report.records, report.bytes) == (9, storage.stat(uri).size)
    assert [(bad.uri, bad.record, bad.offset) for bad in report.bad] == [(uri, 3, 3 * FRAME), (uri, 5, 5 * FRAME)]


def test_nothing_to_verify_is_a_mistake(shards: list[str], folder: str) -> None:
    with pytest.raises(InvalidData, match="nothing matches"):
        verify([storage.join(folder, "train-*")])
