"""A trained model in another Keras, without arguments that it does not know, and without TensorFlow's greeting."""

from __future__ import annotations

import contextlib
import json
import os
import zipfile
from pathlib import Path
from typing import Any

import pytest

from mptraining.cluster.trained_model import copy_without_unknown, without_greeting, without_unknown

KNOWN = {"Dense": frozenset({"units", "kernel_initializer"}), "GlorotUniform": frozenset({"seed"})}


def known(module: str, name: str) -> frozenset[str] | None:
    return KNOWN.get(name) if module.startswith("keras") else None


def dense(**arguments: Any) -> dict[str, Any]:
    return {"module": "keras.layers", "class_name": "Dense", "config": arguments, "registered_name": None}


def initializer(**arguments: Any) -> dict[str, Any]:
    return {"module": "keras.initializers", "class_name": "GlorotUniform", "config": arguments}


@pytest.mark.parametrize(
    ("config", "expected", "named"),
    [
        (dense(units=1, quantization_config=None), dense(units=1), ["Dense.quantization_config"]),
        (dense(units=None), dense(units=None), []),
        (dense(units=1, gate=False), dense(units=1, gate=False), []),
        (dense(quantization_config={"bits": 4}), dense(quantization_config={"bits": 4}), []),
        ({"layers": [dense(kernel_initializer=initializer(seed=None, input_axes=None)), dense(other=None)]},
         {"layers": [dense(kernel_initializer=initializer(seed=None)), dense()]}, ["GlorotUniform.input_axes",
         "Dense.other"]),
        ({**dense(other=None), "module": "flowers"}, {**dense(other=None), "module": "flowers"}, []),
        ({**dense(other=None), "class_name": "Rare"}, {**dense(other=None), "class_name": "Rare"}, []),
        ({"config": {"other": None}}, {"config": {"other": None}}, []),
    ],
    ids=["unused", "known", "false is a value", "used", "nested", "not keras", "unknown class", "no class"],
)  # fmt: skip
def test_only_unused_arguments_of_known_classes_are_removed(config: Any, expected: Any, named: list[str]) -> None:
    left_out: dict[str, None] = {}
    assert without_unknown(config, known, left_out) == expected
    assert list(left_out) == named


def test_the_rest_of_the_file_is_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mptraining.cluster.trained_model.constructor_arguments", known)
    with zipfile.ZipFile(tmp_path / "old", "w") as archive:
        archive.writestr("metadata.json", "{}")
        archive.writestr("config.json", json.dumps(dense(units=1, new=None)))
        archive.writestr("model.weights.h5", bytes(range(256)))
    assert copy_without_unknown(tmp_path / "old", tmp_path / "new") == ("Dense.new",)
    with zipfile.ZipFile(tmp_path / "new") as archive:
        assert archive.namelist() == ["metadata.json", "config.json", "model.weights.h5"]
        assert archive.read("model.weights.h5") == bytes(range(256))
        assert json.loads(archive.read("config.json")) == dense(units=1)
    (tmp_path / "other").write_bytes(b"no archive")
    with pytest.raises(zipfile.BadZipFile):
        copy_without_unknown(tmp_path / "other", tmp_path / "newer")


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
