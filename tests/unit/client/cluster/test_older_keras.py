"""Arguments of a newer Keras that an older one does not know are removed if they are unused, and only then."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from mptraining.cluster.trained_model import copy_without_unknown, without_unknown

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
