"""Records that do not hold the features of their data set, as TensorFlow writes them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from mptraining_records.tfrecord.features import Feature
from mptraining_records.tfrecord.record_check import Fault, fault

FEATURES = (
    Feature(name="x", dtype="float32", shape=(2,)),
    Feature(name="raw", dtype="float16", shape=(4,), decode="raw"),
    Feature(name="label", dtype="int64"),
)
SOUND: dict[str, list[Any]] = {"x": [1.0, 2.0], "raw": [np.arange(4, dtype=np.float16).tobytes()], "label": [3]}


def record(features: dict[str, list[Any]]) -> bytes:
    """Serialize the values with TensorFlow."""

    def of(values: list[Any]) -> tf.train.Feature:
        if isinstance(values[0], bytes):
            return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))
        if isinstance(values[0], int):
            return tf.train.Feature(int64_list=tf.train.Int64List(value=values))
        return tf.train.Feature(float_list=tf.train.FloatList(value=values))

    example = tf.train.Example(features=tf.train.Features(feature={name: of(each) for name, each in features.items()}))
    return bytes(example.SerializeToString())


def test_a_sound_record_has_no_fault() -> None:
    assert fault(FEATURES, record(SOUND)) is None


@pytest.mark.parametrize(
    ("content", "cause", "hint"),
    [
        (b"", "feature 'x' is missing", "The record has: no feature."),
        (b"no example", "not a tf.train.Example; expected serialized tf.train.Example records", ""),
        (record({"X": [1.0, 2.0], "label": [3]}), "feature 'x' is missing", "Did you mean 'X'?"),
        (record({"raw": SOUND["raw"]}), "feature 'x' is missing", "The record has: raw."),
        (
            record(SOUND | {"x": [1, 2]}),
            "feature 'x' is a int64 list; expected a float list for dtype float32",
            "Correct its dtype or decode in data.features.",
        ),
        (
            record(SOUND | {"x": [1.0]}),
            "feature 'x' has 1 values; expected 2 for float32 [2]",
            "Correct its shape in data.features.",
        ),
        (
            record(SOUND | {"raw": [bytes(16)]}),
            "feature 'raw' has 16 bytes; expected 8 bytes for float16 [4]",
            "Correct its dtype or shape in data.features.",
        ),
        (
            record(SOUND | {"raw": [bytes(8), bytes(8)]}),
            "feature 'raw' has 2 values; expected 1 for float16 [4]",
            "Correct its shape in data.features.",
        ),
    ],
    ids=["empty", "no example", "misspelt", "missing", "another kind", "too few", "a multiple", "two values"],
)
def test_the_first_difference_is_named(content: bytes, cause: str, hint: str) -> None:
    found = fault(FEATURES, content)
    assert isinstance(found, Fault)
    assert (found.cause, found.hint) == (cause, hint)
