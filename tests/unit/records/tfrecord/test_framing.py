from __future__ import annotations

import gzip
import zlib

import pytest

from mptraining_api.problems import InvalidData
from mptraining_records.tfrecord import framing

# Written by tf.io.TFRecordWriter of TensorFlow 2.21: the records b"hello" and b"".
BY_TENSORFLOW = bytes.fromhex("0500000000000000eab2043e68656c6c6fbb1f1c19000000000000000029039807d8ea82a2")


def test_records_are_framed_as_tensorflow_frames_them() -> None:
    assert framing.encode(b"hello") + framing.encode(b"") == BY_TENSORFLOW


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"PAR1" + bytes(20), "a Parquet file"),
        (b"PK\x03\x04" + bytes(20), r"a ZIP or NumPy .npz file"),
        (b"\xff\xd8\xff\xe0" + bytes(20), "a JPEG image"),
        (b"label,pixel\n1,2\n", "begins b'label,pi'"),
        (b"short", "begins b'short'"),
        (gzip.compress(BY_TENSORFLOW, mtime=0), "is compressed"),
        (zlib.compress(BY_TENSORFLOW), "is compressed"),
    ],
)
def test_other_files_are_refused_with_the_way_out(content: bytes, said: str) -> None:
    with pytest.raises(InvalidData, match=said) as caught:
        framing.refuse_foreign("gs://bucket/file", content)
    assert str(caught.value).startswith("gs://bucket/file: ")
    assert caught.value.next_step


def test_tfrecord_files_and_empty_ones_are_not_refused() -> None:
    framing.refuse_foreign("file", BY_TENSORFLOW)
    framing.refuse_foreign("file", b"")
