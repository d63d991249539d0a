from __future__ import annotations

import errno
import gzip
import io
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mptraining_api.problems import InvalidData, StorageUnavailable
from mptraining_records.index import compressed, dataset_index
from mptraining_records.index.bad_record_policy import BadRecords
from mptraining_records.reading.reader import RecordReader
from mptraining_records.tfrecord import framing
from mptraining_storage import storage

RECORDS = [bytes([number]) * (number * 37 % 400) for number in range(250)]
CONTENT = b"".join(map(framing.encode, RECORDS))
# Written by tf.io.TFRecordWriter of TensorFlow 2.21 with TFRecordOptions: the records b"hello" and b"".
BY_TENSORFLOW = {
    "GZIP": "1f8b080000000000000363658080579b58ec32527372f277cbcb4842c518349967b0df78d5b40800b3afd7f825000000",
    "ZLIB": "789c63658080579b58ec32527372f277cbcb4842c518349967b0df78d5b4080086a508b8",
}
Write = Callable[[bytes], str]


@pytest.fixture
def write(folder: str) -> Write:
    def write_file(content: bytes) -> str:
        uri = storage.join(folder, "a.tfrecord.gz")
        storage.write(uri, content)
        return uri

    return write_file


def _read(uri: str, account: BadRecords | None = None) -> list[bytes | None]:
    dataset = dataset_index.build([uri], bad_records=account)
    with RecordReader(dataset, bad_records=account) as reader:
        return reader.read(np.arange(dataset.count))


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(gzip.compress(CONTENT), id="GZIP"),
        pytest.param(zlib.compress(CONTENT), id="ZLIB"),
        pytest.param(gzip.compress(CONTENT[:5000]) + gzip.compress(CONTENT[5000:]), id="two members"),
        pytest.param(gzip.compress(CONTENT) + bytes(512), id="padded"),
    ],
)
def test_compressed_records_are_read_like_others_piece_by_piece(
    write: Write, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _read(write(content)) == RECORDS
    monkeypatch.setattr(compressed, "_READ", 100)
    monkeypatch.setattr(compressed, "_WRITE", 128)
    assert _read(write(content)) == RECORDS


@pytest.mark.parametrize("kind", ["GZIP", "ZLIB"])
def test_those_of_tensorflow_are_read(write: Write, kind: str) -> None:
    assert _read(write(bytes.fromhex(BY_TENSORFLOW[kind]))) == [b"hello", b""]


def test_shards_keep_their_names_and_are_reported_once(write: Write, folder: str) -> None:
    storage.write(storage.join(folder, "b.tfrecord.gz"), gzip.compress(CONTENT))
    storage.write(storage.join(folder, "c.tfrecord"), CONTENT)
    uri = write(gzip.compress(CONTENT))
    notices: list[str] = []
    shard, *_ = dataset_index.build([storage.join(folder, "*")], notice=notices.append).shards
    assert (shard.stored, shard.readable.size) == (storage.stat(uri), len(CONTENT))
    assert not storage.is_remote(shard.readable.uri)
    assert len(notices) == 1
    assert notices[0].startswith("2 compressed files were expanded to 0.1 MB")


def test_damage_inside_names_the_file_that_the_user_knows(write: Write) -> None:
    content = bytearray(CONTENT)
    content[-1] ^= 1
    uri = write(gzip.compress(bytes(content)))
    with pytest.raises(InvalidData, match="record 249 at byte") as caught:
        _read(uri)
    assert caught.value.where == uri


def _flushed() -> bytes:
    """Return a GZIP file that ends between two records."""
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb") as file:
        file.write(CONTENT)
        file.flush()
        return packed.getvalue()


def _flipped(packed: bytes) -> bytes:
    place = len(packed) // 2
    return packed[:place] + bytes([packed[place] ^ 0xFF]) + packed[place + 1 :]


@pytest.mark.parametrize(
    ("packed", "fewest", "cause"),
    [
        (gzip.compress(CONTENT)[: len(gzip.compress(CONTENT)) // 2], 1, framing.TRUNCATED),
        (_flushed(), 250, framing.TRUNCATED),
        (_flipped(gzip.compress(CONTENT)), 50, None),
    ],
    ids=["torn", "torn between two records", "damaged"],
)
def test_the_records_before_damage_are_given(write: Write, packed: bytes, fewest: int, cause: str | None) -> None:
    account = BadRecords("Skip", 250)
    uri = write(packed)
    records = _read(uri, account)
    assert fewest <= len(records) <= 250
    assert [record for record in records if record is not None] == RECORDS[: len(records) - records.count(None)]
    assert {bad.uri for bad in account.skipped} == {uri}
    if cause is not None:
        (bad,) = account.skipped
        assert (bad.record, bad.cause) == (len(records), cause)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (gzip.compress(b"label,pixel\n1,2\n", mtime=0), "not a TFRecord file"),
        (b"\x1f\x8b" + b"no gzip at all", "neither a TFRecord file nor a readable GZIP or ZLIB file"),
        (b"\x78\x9c" + b"no zlib at all", "neither a TFRecord file nor a readable GZIP or ZLIB file"),
    ],
)
def test_what_holds_no_records_is_refused_by_its_own_name(write: Write, content: bytes, said: str) -> None:
    uri = write(content)
    with pytest.raises(InvalidData, match=said) as caught:
        dataset_index.build([uri])
    assert caught.value.where == uri


def test_without_room_the_error_has_a_next_step(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(pieces: Any, file: Any) -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(compressed, "_inflate", full)
    uri = write(gzip.compress(CONTENT))
    with pytest.raises(StorageUnavailable, match=r"no room to expand this .*: the disk is full.*TMPDIR") as caught:
        compressed.scan(storage.stat(uri), tmp_path)
    assert caught.value.where == uri
    assert [path for path in tmp_path.rglob("*") if path.is_file() and path.name != "a.tfrecord.gz"] == []
