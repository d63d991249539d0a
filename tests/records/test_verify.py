from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from mptraining_api.problems import InvalidData
from mptraining_records import framing, storage
from mptraining_records.framing import BadRecord
from mptraining_records.verify import VerifyReport, verify

WriteShard = Callable[[str, Sequence[bytes]], str]
FRAME = 16 + len(b"record")


@pytest.fixture
def shards(folder: str, write_shard: WriteShard) -> list[str]:
    return [write_shard(storage.join(folder, f"{n}.tfrecord"), [b"record"] * 2000) for n in range(3)]


def test_a_sound_data_set_has_no_bad_records(shards: list[str], folder: str) -> None:
    steps: list[tuple[int, int]] = []
    report = verify([storage.join(folder, "*")], lambda done, total: steps.append((done, total)))
    assert report == VerifyReport(files=3, records=6000, bytes=6000 * FRAME, bad=())
    assert steps == [(1, 3), (2, 3), (3, 3)]


def test_it_goes_on_after_damaged_payloads(shards: list[str], folder: str, flip: Callable[[str, int], None]) -> None:
    flip(shards[0], 14)
    flip(shards[0], 1500 * FRAME + 12)
    flip(shards[2], -1)
    report = verify([storage.join(folder, "*")])
    assert report.records == 6000
    assert report.bad == (
        BadRecord(shards[0], 0, 0, framing.BAD_PAYLOAD),
        BadRecord(shards[0], 1500, 1500 * FRAME, framing.BAD_PAYLOAD),
        BadRecord(shards[2], 1999, 1999 * FRAME, framing.BAD_PAYLOAD),
    )


def test_a_damaged_length_ends_its_file_alone(shards: list[str], folder: str, flip: Callable[[str, int], None]) -> None:
    flip(shards[1], 10 * FRAME)
    report = verify([storage.join(folder, "*")])
    assert report.records == 4010
    (bad,) = report.bad
    assert (bad.uri, bad.record, bad.offset) == (shards[1], 10, 10 * FRAME)
    assert bad.cause.endswith(f"the last {1990 * FRAME} bytes of the file cannot be read")


def test_a_truncated_file_is_told(shards: list[str], folder: str) -> None:
    storage.write(shards[1], storage.read(shards[1])[:-1])
    (bad,) = verify([storage.join(folder, "*")]).bad
    assert bad.record == 1999
    assert bad.cause.startswith(framing.TRUNCATED)


def test_nothing_to_verify_is_a_mistake(shards: list[str], folder: str) -> None:
    with pytest.raises(InvalidData, match="nothing matches"):
        verify([storage.join(folder, "train-*")])
