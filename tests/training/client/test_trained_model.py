"""The exported model in a notebook's process, for any version of Keras there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mptraining.cluster.trained_model import load_model
from mptraining_api.problems import InvalidData, InvalidProgram
from tests.testbed.exported_model import INPUTS


def test_the_same_keras_opens_it_in_float32(exported: tuple[Path, list[float]]) -> None:
    import keras

    folder, outputs = exported
    keras.mixed_precision.set_global_policy("mixed_float16")
    model = load_model(folder)
    assert keras.mixed_precision.global_policy().name == "mixed_float16", "the notebook's own choice stays"
    assert {layer.compute_dtype for layer in model.layers} == {"float32"}
    assert np.asarray(model(INPUTS)).ravel().tolist() == pytest.approx(outputs, rel=1e-5)


def test_the_error_names_a_keras_that_can_build_the_model(exported: tuple[Path, list[float]], tmp_path: Path) -> None:
    with pytest.raises(InvalidData, match=r"no exported model here; expected a folder with model\.json"):
        load_model(tmp_path)
    about: dict[str, Any] = json.loads((exported[0] / "model.json").read_text())
    about["keras"]["version"] = "3.99.0"
    (tmp_path / "model.json").write_text(json.dumps(about))
    (tmp_path / "model.keras").write_bytes(b"not a model")
    (tmp_path / "rebuild.py").write_text("def load_model(folder): raise TypeError('no such argument')\n")
    with pytest.raises(InvalidProgram) as refused:
        load_model(tmp_path)
    assert "of Keras 3.99.0: rebuild.py: TypeError: no such argument; model.keras: " in str(refused.value)
    assert "pip install 'keras==3.99.0'" in str(refused.value)
