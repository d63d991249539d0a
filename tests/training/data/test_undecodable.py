"""Records with a valid checksum that cannot be decoded: holes under Skip, an error that names them under Fail."""

from __future__ import annotations

import io
import itertools
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from mptraining_api.problems import InvalidData
from mptraining_trainer.data import pipeline
from mptraining_trainer.data.batching import Batching, Share
from mptraining_trainer.data.pipeline import Split
from mptraining_trainer.data.preprocess import Preprocess
from tests.training.data.splits import START, dataset, open_split

COUNT, BATCH, BAD = 43, 8, 23
RAW = [{"name": "x", "dtype": "float16", "shape": [4], "decode": "raw"}, {"name": "label", "dtype": "int64"}]
IMAGE = [{"name": "x", "dtype": "uint8", "shape": [4, 4, 1], "decode": "png"}, {"name": "label", "dtype": "int64"}]


def raw(number: int, size: int = 4) -> bytes:
    return np.full(size, number, np.float16).tobytes()


def png(number: int) -> bytes:
    content = io.BytesIO()
    Image.fromarray(np.full((4, 4), number, np.uint8)).save(content, "PNG")
    return content.getvalue()


def record(content: bytes | None, number: int) -> bytes:
    feature = {"label": tf.train.Feature(int64_list=tf.train.Int64List(value=[number]))}
    if content is not None:
        feature["x"] = tf.train.Feature(bytes_list=tf.train.BytesList(value=[content]))
    return bytes(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())


# Features, the sound content of a record by its number, the bad record, and the cause.
CASES: dict[str, tuple[Any, Any, bytes, str]] = {
    "missing feature": (RAW, raw, record(None, BAD), "feature 'x' is missing"),
    "empty record": (RAW, raw, b"", "feature 'x' is missing"),
    "raw twice as long": (
        RAW, raw, record(raw(BAD, 8), BAD), "feature 'x' has 16 bytes; expected 8 bytes for float16 [4]"
    ),
    "torn png": (IMAGE, png, record(png(BAD)[:-20], BAD), "feature 'x' cannot be decoded: Invalid PNG"),
}  # fmt: skip


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> tuple[Any, Any, bytes, str]:
    return CASES[request.param]


def write(folder: Path, content: Any, bad: dict[int, bytes]) -> None:
    for shard, numbers in enumerate((range(20), range(20, COUNT))):
        with tf.io.TFRecordWriter(str(folder / f"{shard}.tfrecord")) as file:
            for number in numbers:
                file.write(bad.get(number, record(content(number), number)))


def split(folder: Path, features: Any, cache: str, **fields: Any) -> Split:
    return open_split(f"{folder}/*.tfrecord", cache, features=features, **fields)[0]


def batches(data: Split, steps: int, **settings: Any) -> list[Any]:
    made = dataset(data, COUNT, BATCH, remainder="PadAndMask", rows="Masked", **settings)
    with pipeline.raise_reading_problems(data):
        return list(itertools.islice(made.as_numpy_iterator(), steps))


SKIP = {"badRecords": {"action": "Skip", "maxSkipped": 1}}


@pytest.mark.parametrize("cache", ["Memory", "None"])
def test_under_skip_it_is_a_hole_and_nothing_shifts(tmp_path: Path, case: Any, cache: str) -> None:
    features, content, bad, cause = case
    write(tmp_path, content, {})
    whole = batches(split(tmp_path, features, cache), 12)
    write(tmp_path, content, {BAD: bad})
    data = split(tmp_path, features, cache, **SKIP)
    holed = batches(data, 12)

    for (_, labels, _, mask), (inputs, found, _, found_mask) in zip(whole, holed, strict=True):
        assert np.array_equal(found_mask, np.where(labels == BAD, 0, mask))
        there = found_mask > 0
        assert np.array_equal(found[there], labels[there])
        # Inputs and labels are of the same record.
        assert np.array_equal(inputs[there].reshape(there.sum(), -1)[:, 0], found[there])
    (skipped,) = data.reader.skipped
    assert (Path(skipped.uri).name, skipped.record) == ("1.tfrecord", BAD - 20)
    assert skipped.cause.startswith(cause)


@pytest.mark.parametrize("cache", ["Memory", "None"])
def test_a_hole_is_the_same_after_a_resume_and_for_two_workers(tmp_path: Path, cache: str) -> None:
    """Bit for bit, for any cause: each cause is a hole in the same way (above)."""
    features, content, bad, _ = CASES["torn png"]
    write(tmp_path, content, {BAD: bad})
    data = split(tmp_path, features, cache, **SKIP)
    holed = batches(data, 12)
    position = Batching(COUNT, BATCH, "PadAndMask").advance(START, 4)
    for one, other in zip(batches(data, 8, position=position), holed[4:], strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))
    for worker in range(2):
        for one, other in zip(batches(data, 6, share=Share(worker, 2)), holed, strict=False):
            assert np.array_equal(one[3], other[3][worker::2])
            assert np.array_equal(one[1][one[3] > 0], other[1][worker::2][one[3] > 0])


@pytest.mark.parametrize("cache", ["Memory", "None"])
def test_under_fail_the_error_names_file_record_and_feature(tmp_path: Path, case: Any, cache: str) -> None:
    features, content, bad, cause = case
    write(tmp_path, content, {BAD: bad})
    message = rf"1\.tfrecord: record {BAD - 20} at byte \d+ is damaged: {re.escape(cause)}.*badRecords.action: Skip"
    with pytest.raises(InvalidData, match=message):
        batches(split(tmp_path, features, cache), 12)


@pytest.mark.parametrize("cache", ["Memory", "None"])
def test_more_than_max_skipped_end_the_run(tmp_path: Path, cache: str) -> None:
    write(tmp_path, raw, {BAD: b"", 30: b"", 31: b""})
    with pytest.raises(InvalidData, match=r"2 damaged records.*maxSkipped = 1"):
        batches(split(tmp_path, RAW, cache, **SKIP), 12)


@pytest.mark.parametrize("cache", ["Memory", "None"])
def test_the_first_record_may_be_skipped_as_well(tmp_path: Path, cache: str) -> None:
    write(tmp_path, raw, {0: b""})
    data = split(tmp_path, RAW, cache, **SKIP)
    found = [int(label) for _, labels, _, mask in batches(data, 6) for label in labels[mask > 0]]
    assert sorted(found) == list(range(1, COUNT))
    assert [bad.record for bad in data.reader.skipped] == [0]


@pytest.mark.parametrize("skip", [{}, {"badRecords": {"action": "Skip", "maxSkipped": 100}}], ids=["Fail", "Skip"])
@pytest.mark.parametrize("dtype", ["float16", "uint8"])
def test_a_shape_of_which_all_records_hold_a_multiple_is_refused(tmp_path: Path, dtype: str, skip: Any) -> None:
    """It gave twice the rows of inputs for the labels, and the memory cache paired them by number."""
    write(tmp_path, lambda number: raw(number, 8), {})
    size = np.dtype(dtype).itemsize
    features = [{"name": "x", "dtype": dtype, "shape": [4], "decode": "raw"}, RAW[1]]
    message = rf"0\.tfrecord: record 0 at byte 0: feature 'x' has 16 bytes; expected {4 * size} bytes for {dtype} \[4\]"
    with pytest.raises(InvalidData, match=message):
        split(tmp_path, features, "Memory", **skip)


@pytest.mark.parametrize("cache", ["Memory", "None"])
def test_the_rows_of_a_batch_are_static(tmp_path: Path, cache: str) -> None:
    write(tmp_path, raw, {})
    made = split(tmp_path, RAW, cache).validation(
        examples_per_step=BATCH, share=Share(0, 1), batch=BATCH, preprocess=Preprocess()
    )
    inputs, labels, _, mask = made.element_spec
    assert [each.shape for each in (inputs, labels, mask)] == [(BATCH, 4), (BATCH,), (BATCH,)]


def test_a_map_that_changes_the_number_of_rows_is_an_error(tmp_path: Path) -> None:
    write(tmp_path, raw, {})
    flat = Preprocess(per_batch=lambda inputs: tf.reshape(inputs, [-1, 2]))
    data = split(tmp_path, RAW, "None")
    with pytest.raises(ValueError, match="Dimension 0 in both shapes must be equal, but are 8 and 16"):
        next(iter(data.validation(examples_per_step=BATCH, share=Share(0, 1), batch=BATCH, preprocess=flat)))
