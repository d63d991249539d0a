"""Examples of this project beside TensorFlow's own."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

from tests.left_out import first_of


@pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="TensorFlow is not installed")
@pytest.mark.parametrize("first", first_of("ours", "theirs"))
def test_it_lives_beside_tensorflow_in_one_process(first: str) -> None:
    ours = "from mptraining_records.tfrecord import example; record = example.encode({'x': [1, 2]})"
    theirs = "import tensorflow as tf"
    lines = [ours, theirs] if first == "ours" else [theirs, ours]
    lines.append("assert tf.train.Example.FromString(record).features.feature['x'].int64_list.value == [1, 2]")
    lines.append("assert tf.io.parse_single_example(record, {'x': tf.io.VarLenFeature(tf.int64)})")
    subprocess.run([sys.executable, "-c", "\n".join(lines)], check=True, capture_output=True, timeout=600)
