"""What TensorFlow logs when a model is loaded."""

from __future__ import annotations

import contextlib
import os

import pytest

from mptraining.cluster.trained_model import without_greeting

# What TensorFlow 2.21 logged here and on a machine with the CUDA wheels, and what a program wrote.
GREETING = """\
2026-11-23 13:00:00.000001: I tensorflow/core/util/port.cc:153] oneDNN custom operations are on. You may see slightly …
WARNING: All log messages before absl::InitializeLog() is called are written to STDERR
I0000 00:00:1763902800.000001    1234 cpu_feature_guard.cc:227] This TensorFlow binary is optimized to use available CPU
To enable the following instructions: AVX2 AVX512F FMA, in other operations, rebuild TensorFlow with the appropriate …
E0000 00:00:1763902800.000002    1234 cuda_dnn.cc:8579] Unable to register cuDNN factory: Attempting to register factory
W0000 00:00:1763902800.000003    1234 computation_placer.cc:177] computation placer already registered.
"""


def test_tensorflow_s_greeting_is_hidden_and_nothing_else(capfd: pytest.CaptureFixture[str]) -> None:
    with contextlib.suppress(KeyError), without_greeting():
        # As C++ does, past Python.
        os.write(2, GREETING.encode())
        os.write(2, b"E0000 00:00:1763902800.000004 1234 filesystem.cc:1] disk full\n")
        os.write(2, b"a layer of my own: I am built\n")
        raise KeyError
    os.write(2, b"after it\n")
    assert capfd.readouterr().err.splitlines() == [
        "E0000 00:00:1763902800.000004 1234 filesystem.cc:1] disk full",
        "a layer of my own: I am built",
        "after it",
    ]
