from __future__ import annotations

import gzip
import io
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mptraining_records.convert.convert import convert
from mptraining_records.index.verify import verify
from mptraining_records.tfrecord import framing, manifest
from mptraining_records.tfrecord.example import Encodable, encode
from mptraining_records.tfrecord.features import Feature
from mptraining_records.tfrecord.framing import BadRecord
from mptraining_storage import storage

WriteShard = Callable[[str, Sequence[bytes]], str]
FRAME = 16 + len(b"record")
PAYLOAD, LENGTH = framing.BAD_PAYLOAD, framing.BAD_LENGTH


@pytest.fixture
def shards(folder: str, write_shard: WriteShard) -> list[str]:
    return [write_shard(storage.join(folder, f"{n}.tfrecord"), [b"record"] * 2000) for n in range(3)]


def test_a_sound_data_set_has_no_bad_records(shards: list[str], folder: str) -> None:
    steps: list[tuple[int, int]] = []
    report = verify([storage.join(folder, "*")], lambda done, total: steps.append((done, total)))
    assert (report.files, report.records, report.bytes, report.bad) == (3, 6000, 6000 * FRAME, ())
    assert "not a tf.train.Example" in report.unchecked
    # In bytes; a bucket reports them window by window as well as at the end of each file.
    assert steps == sorted(steps)
    assert sorted(set(steps)) == [(number * 2000 * FRAME, 6000 * FRAME) for number in (1, 2, 3)]


@pytest.mark.parametrize(
    ("flips", "records", "bad"),
    [
        # Byte of a shard: the records that are bad, with the cause and the bytes that it costs.
        (
            [(0, 14), (0, 1500 * FRAME + 12), (2, -1)],
            6000,
            [(0, 0, PAYLOAD, FRAME), (0, 1500, PAYLOAD, FRAME), (2, 1999, PAYLOAD, FRAME)],
        ),
        (
            [(1, 1990 * FRAME + 3), (1, 15 * FRAME + 12), (2, 12)],
            5990,
            [(1, 15, PAYLOAD, FRAME), (1, 1990, LENGTH, 10 * FRAME), (2, 0, PAYLOAD, FRAME)],
        ),
    ],
    ids=["payloads", "a length"],
)
def test_a_payload_costs_its_record_and_a_length_the_rest_of_its_file(
    shards: list[str],
    folder: str,
    flip: Callable[[str, int], None],
    flips: list[tuple[int, int]],
    records: int,
    bad: list[tuple[int, int, str, int]],
) -> None:
    for shard, place in flips:
        flip(shards[shard], place)
    report = verify([storage.join(folder, "*")])
    assert report.records == records
    assert report.bad == tuple(
        BadRecord(shards[shard], record, record * FRAME, cause, length) for shard, record, cause, length in bad
    )


def test_compressed_files_are_verified_by_what_they_hold(
    folder: str, flip: Callable[[str, int], None], write_shard: WriteShard
) -> None:
    uri = write_shard(storage.join(folder, "a.tfrecord"), [b"record"] * 10)
    flip(uri, 3 * FRAME + 12)
    flip(uri, 5 * FRAME)
    storage.write(uri, gzip.compress(storage.read(uri)))
    report = verify([uri])
    assert (report.records, report.bytes) == (5, storage.stat(uri).size)
    assert [(bad.uri, bad.record, bad.offset) for bad in report.bad] == [(uri, 3, 3 * FRAME), (uri, 5, 5 * FRAME)]


def png(number: int) -> bytes:
    content = io.BytesIO()
    Image.fromarray(np.full((4, 4), number, np.uint8)).save(content, "PNG")
    return content.getvalue()


def test_records_without_the_features_of_the_first_ones_are_listed(folder: str, write_shard: WriteShard) -> None:
    rows: list[dict[str, Encodable]] = [{"image": png(number), "label": number} for number in range(40)]
    rows[3] = {"label": 3}
    rows[20] = {"label": 20}
    rows[30] = {"image": png(30)[:-20], "label": 30}
    records = [encode(row) for row in rows]
    records[25] = b""
    uri = write_shard(storage.join(folder, "a.tfrecord"), records)
    for content in (storage.read(uri), gzip.compress(storage.read(uri))):
        storage.write(uri, content)
        report = verify([uri])
        assert [(bad.record, bad.cause) for bad in report.bad] == [
            *((number, "feature 'image' is missing") for number in (3, 20, 25)),
            (30, "feature 'image' cannot be decoded: image file is truncated"),
        ]
        assert (report.records, report.unchecked) == (40, "")


def test_the_features_of_a_manifest_hold_from_the_first_record_on(folder: str, write_shard: WriteShard) -> None:
    uri = write_shard(storage.join(folder, "a.tfrecord"), [encode({"x": [1.0]}), encode({"x": [1.0, 2.0]})])
    file = manifest.File(name="a.tfrecord", records=2, bytes=0, crc32c=0)
    known = Feature(name="x", dtype="float32", shape=(2,))
    manifest.save(folder, manifest.Manifest(name="train", features=(known,), records=2, files=(file,)))
    (bad,) = verify([uri]).bad
    assert (bad.record, bad.cause) == (0, "feature 'x' has 1 values; expected 2 for float32 [2]")


def test_splits_with_other_features_are_verified_together(folder: str, tmp_path: Path, write_shard: WriteShard) -> None:
    for split in ("a", "b"):
        np.savez(tmp_path / f"{split}.npz", **{split: np.arange(40, dtype=np.float32)})
        convert(str(tmp_path / f"{split}.npz"), storage.join(folder, split))
        # Without a manifest.
        write_shard(storage.join(folder, f"x{split}.tfrecord"), [encode({split: number}) for number in range(20)])
    patterns = [storage.join(folder, name) for name in ("a/*.tfrecord", "b/*.tfrecord", "xa*", "xb*")]
    report = verify(patterns)
    assert (report.records, report.bad, report.unchecked) == (120, (), "")
    other = write_shard(storage.join(folder, "xb2.tfrecord"), [encode({"a": 1})])
    assert [bad.uri for bad in verify(patterns).bad] == [other]
