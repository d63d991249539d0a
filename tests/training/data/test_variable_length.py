"""Features of varying length: padded as `padded_batch` pads them, in the same order from memory and files."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import tensorflow as tf

from mptraining_api.problems import InvalidData, InvalidSpec
from mptraining_api.resolved_job import ResolvedJob
from mptraining_records.reading.order import Position
from mptraining_trainer.data import cache as data_cache
from mptraining_trainer.data.decode import bytes_per_example
from mptraining_trainer.data.pipeline import Split
from mptraining_trainer.data.preprocess import Preprocess
from mptraining_trainer.data.schema import Column, Columns
from mptraining_trainer.session.variable_sizes import allow_xla
from tests.training.data.splits import dataset, open_split, order

COUNT, BATCH = 30, 6
LENGTHS = [1 + number * 7 % 11 for number in range(COUNT)]
TOKENS = {"name": "tokens", "dtype": "int32", "shape": [0]}
LABEL = {"name": "label", "dtype": "int64"}


def write(path: Path, record: Any) -> None:
    with tf.io.TFRecordWriter(str(path)) as file:
        for number in range(COUNT):
            file.write(record(number))


def record(number: int, *, lengths: Any = LENGTHS) -> bytes:
    tokens = tf.train.Feature(int64_list=tf.train.Int64List(value=range(1, 1 + lengths[number])))
    label = tf.train.Feature(int64_list=tf.train.Int64List(value=[number]))
    features = tf.train.Features(feature={"tokens": tokens, "label": label})
    return bytes(tf.train.Example(features=features).SerializeToString())


@pytest.fixture
def file(tmp_path: Path) -> Path:
    write(tmp_path / "a.tfrecord", record)
    return tmp_path / "a.tfrecord"


def split(file: Path, cache: str = "None", features: Any = (TOKENS, LABEL), **fields: Any) -> Split:
    return open_split(str(file), cache, **({"features": list(features)} if features else {}), **fields)[0]


def batches(data: Split, steps: int = 5, **fields: Any) -> Any:
    return list(itertools.islice(dataset(data, COUNT, BATCH, **fields), steps))


def by_hand(file: Path, steps: int = 5, *, padding: int = 0) -> list[Any]:
    """The batches of TensorFlow's reader, parser and `padded_batch` over the records in our order."""
    records = list(tf.data.TFRecordDataset(str(file)))
    in_order = tf.data.Dataset.from_tensor_slices(
        [records[number] for number in order(COUNT).records(0, np.arange(steps * BATCH))]
    )

    def parse(one: Any) -> Any:
        found = tf.io.parse_single_example(
            one, {"tokens": tf.io.VarLenFeature(tf.int64), "label": tf.io.FixedLenFeature([], tf.int64)}
        )
        return tf.cast(tf.sparse.to_dense(found["tokens"]), tf.int32), found["label"]

    return list(in_order.map(parse).padded_batch(BATCH, padding_values=(padding, None)))


@pytest.mark.parametrize("cache", ["None", "Memory"])
def test_a_batch_is_padded_as_padded_batch_pads_it(file: Path, cache: str) -> None:
    for (tokens, labels, _), (expected, numbers) in zip(batches(split(file, cache)), by_hand(file), strict=True):
        assert tokens.dtype == tf.int32
        assert np.array_equal(labels, numbers)
        assert np.array_equal(tokens, expected)


@pytest.mark.parametrize("cache", ["None", "Memory"])
def test_boundaries_limit_the_shapes_and_default_fills_them(file: Path, cache: str) -> None:
    feature = TOKENS | {"bucketBoundaries": [16, 8, 4], "default": -1, "lengthName": "length"}
    for inputs, labels, _ in batches(split(file, cache, (feature, LABEL))):
        lengths = [LENGTHS[number] for number in labels.numpy()]
        size = next(each for each in (4, 8, 16) if each >= max(lengths))
        assert inputs["tokens"].shape == (BATCH, size)
        assert inputs["length"].numpy().tolist() == lengths
        assert inputs["length"].dtype == tf.int32
        for row, length in zip(inputs["tokens"].numpy(), lengths, strict=True):
            assert row.tolist() == [*range(1, length + 1), *[-1] * (size - length)]


@pytest.mark.parametrize("cache", ["None", "Memory"])
def test_one_boundary_makes_a_static_shape(file: Path, cache: str) -> None:
    data = split(file, cache, (TOKENS | {"bucketBoundaries": [16]}, LABEL))
    assert data.columns.example_spec().inputs[0].shape == (16,)
    assert dataset(data, COUNT, BATCH).element_spec[0].shape == (BATCH, 16)


def test_padding_changes_neither_the_order_nor_a_resume(file: Path) -> None:
    feature = TOKENS | {"bucketBoundaries": [4, 16]}
    whole = batches(split(file, features=(feature, LABEL)))
    assert sorted(int(label) for _, labels, _ in whole for label in labels) == list(range(COUNT))
    resumed = batches(split(file, features=(feature, LABEL)), 3, position=Position(5, 0, 2 * BATCH, ""))
    for before, after in zip(whole[2:], resumed, strict=True):
        assert all(np.array_equal(one, other) for one, other in zip(before[:2], after[:2], strict=True))


def test_preprocessing_gets_each_example_without_padding(file: Path) -> None:
    def tail(tokens: Any, label: Any) -> Any:
        return tokens[-2:], tf.size(tokens, tf.int64)

    for (tokens, lengths, _), (_, numbers) in zip(
        batches(split(file), preprocess=Preprocess(tail)), by_hand(file), strict=True
    ):
        expected = [LENGTHS[number] for number in numbers.numpy()]
        assert lengths.numpy().tolist() == expected
        assert tokens.numpy()[:, 0].tolist() == [max(1, length - 1) for length in expected]


def test_a_ragged_feature_is_a_ragged_tensor(file: Path) -> None:
    for (tokens, labels, _), (expected, _) in zip(
        batches(split(file, features=(TOKENS | {"ragged": True}, LABEL))), by_hand(file), strict=True
    ):
        assert isinstance(tokens, tf.RaggedTensor)
        assert np.array_equal(tokens.to_tensor(), expected)
        assert tokens.row_lengths().numpy().tolist() == [LENGTHS[number] for number in labels.numpy()]


def test_varying_lengths_are_inferred_and_reported(file: Path) -> None:
    data = split(file, features=None)
    assert data.columns.describe() == ("label: int64 [] (label)", "tokens: int64 [?] padded")
    assert data.columns.columns[1].typical_size == pytest.approx(np.mean(LENGTHS[:16]))


def test_a_length_above_the_last_boundary_is_named(file: Path) -> None:
    features = (TOKENS | {"bucketBoundaries": [4, 8]}, LABEL)
    with pytest.raises(
        InvalidData, match=r"record 3 .*'tokens' has the length 11; expected at most 8.* Add 11 to bucket"
    ):
        split(file, features=features)


def test_a_longer_record_behind_the_first_ones_is_skipped_and_named(tmp_path: Path) -> None:
    lengths = [3] * 20 + [9] + [3] * 9
    write(tmp_path / "a.tfrecord", lambda number: record(number, lengths=lengths))
    features = (TOKENS | {"bucketBoundaries": [8]}, LABEL)
    data = split(tmp_path / "a.tfrecord", features=features, badRecords={"action": "Skip", "maxSkipped": 1})
    seen = [int(label) for _, labels, _ in batches(data) for label in labels]
    assert len(data.reader.skipped) == 1
    assert data.reader.skipped[0].record == 20
    assert "has the length 9" in data.reader.skipped[0].cause
    assert len(seen) == COUNT


def test_a_misspelled_feature_is_not_an_empty_one(file: Path) -> None:
    with pytest.raises(InvalidData, match=r"feature 'token' is missing.*Did you mean 'tokens'"):
        split(file, features=(TOKENS | {"name": "token"}, LABEL))


def test_an_undecodable_first_record_is_named_or_skipped_without_a_description(tmp_path: Path) -> None:
    write(tmp_path / "a.tfrecord", lambda number: b"no example" if number == 3 else record(number))
    with pytest.raises(InvalidData, match=r"a.tfrecord.*record 3 at byte \d+: .*not a tf.train.Example"):
        split(tmp_path / "a.tfrecord", features=None)
    skipping = split(tmp_path / "a.tfrecord", features=None, badRecords={"action": "Skip", "maxSkipped": 1})
    assert [bad.record for bad in skipping.reader.skipped] == [3]


COLUMN = Column("x", "int64", (None,), None, None, typical_size=50.0)


def columns(*extra: Column) -> Columns:
    return Columns((*extra, Column("label", "int64", (), None, None)), ("label",), None)


def test_memory_is_estimated_from_the_first_records() -> None:
    assert bytes_per_example(columns(COLUMN).columns) == 50 * 8 + 8


def test_records_that_prove_longer_than_the_first_ones_stay_out_of_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "a.tfrecord", partial(record, lengths=[*[1] * 16, *[2_000] * (COUNT - 16)]))
    # A quarter of the free memory: enough for 30 records as short as the first 16.
    monkeypatch.setattr(data_cache, "available_memory", lambda: 4 * 20_000)
    streamed, cached = split(tmp_path / "a.tfrecord", "None"), split(tmp_path / "a.tfrecord", "Auto")
    assert cached.cached is None
    for ours, expected in zip(batches(cached), batches(streamed), strict=True):
        tf.nest.map_structure(np.testing.assert_array_equal, ours, expected)


def test_the_memory_of_a_cache_is_that_of_its_tensors(file: Path) -> None:
    _, name, size = open_split(str(file), "Memory", features=[TOKENS, LABEL])
    # int32 tokens, int64 labels, and 8 bytes a row for where the tokens of a row end.
    assert name == "Memory"
    assert size == pytest.approx(4 * sum(LENGTHS) + 8 * COUNT + 8 * COUNT, abs=8 * 4 + 4 * COUNT)


def job(**fields: Any) -> ResolvedJob:
    accelerator = SimpleNamespace(kind=fields.pop("kind", "cpu"))
    made = {"replicas": 1, "jit_compile": "Auto", **fields, "accelerator": accelerator}
    return cast("ResolvedJob", SimpleNamespace(**made))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"kind": "tpu"}, "true on a TPU"),
        ({"replicas": 2}, "true on 2 replicas"),
        ({"accumulation": 4}, "true with gradientAccumulationSteps: 4"),
        ({"jit_compile": "Always"}, "true with jitCompile: Always"),
    ],
)
def test_a_ragged_feature_is_refused_with_the_line_to_write(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidSpec, match=rf"\[x\].ragged: {said}.* Write bucketBoundaries: \[128\] instead"):
        allow_xla(
            [replace(COLUMN, ragged=True)], job(**fields), fields.get("accumulation", 1), lambda topic, text: None
        )


def test_ragged_tensors_turn_xla_off_and_padded_ones_do_not() -> None:
    assert not allow_xla([replace(COLUMN, ragged=True)], job(), 1, lambda topic, text: None)
    assert allow_xla([COLUMN], job(), 1, lambda topic, text: None)


def test_a_tpu_needs_one_boundary() -> None:
    for boundaries in ((), (64, 128)):
        with pytest.raises(InvalidSpec, match=r"\[x\].bucketBoundaries: .* on a TPU.* Write bucketBoundaries: \[128\]"):
            allow_xla([replace(COLUMN, boundaries=boundaries)], job(kind="tpu"), 1, lambda topic, text: None)
    assert allow_xla([replace(COLUMN, boundaries=(64,))], job(kind="tpu"), 1, lambda topic, text: None)


def test_compiling_every_length_is_reported() -> None:
    said: list[str] = []
    allow_xla([COLUMN], job(jit_compile="Always"), 1, lambda topic, text: said.append(text))
    allow_xla(
        [replace(COLUMN, boundaries=(8, 64))], job(jit_compile="Always"), 1, lambda topic, text: said.append(text)
    )
    assert said == ["XLA compiles again for each length of 'x'; bucketBoundaries limits their number"]
