"""The exported model in a notebook's process, for any version of Keras there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mptraining.cluster.trained_model import load_model
from mptraining_api.problems import InvalidData, InvalidProgram
from mptraining_api.resolve.resolve import ClusterSettings, resolve
from mptraining_api.spec import MPTrainingJob

INPUTS = np.linspace(0, 1, 8, dtype="float32").reshape(2, 4)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[float]]:
    """A model trained under mixed_bfloat16, and the results of its float32 copy."""
    from mptraining_trainer import keras_backend
    from mptraining_trainer.data.schema import ExampleSpec, TensorSpec
    from mptraining_trainer.export import export
    from mptraining_trainer.model.program import build

    keras = keras_backend.load("Keras3")
    example = ExampleSpec((TensorSpec("a", "float32", (4,)),), (TensorSpec("label", "int64", ()),), ("no", "yes"))
    spec = {
        "accelerator": {"type": "cpu"},
        "program": {"application": {"name": "mlp"}},
        "data": {"train": ["x.tfrecord"], "label": "label"},
        "training": {"epochs": 1, "batchSize": {"global": 8}},
        "precision": {"policy": "mixed_bfloat16"},
    }
    job = resolve(MPTrainingJob.parse({"metadata": {"name": "job"}, "spec": spec}), ClusterSettings())
    keras.set_policy("mixed_bfloat16")
    try:
        program = build(job, keras, example, lambda topic, message: None)
        folder = tmp_path_factory.mktemp("run") / "model"
        snapshot = export.take_snapshot(program.model, keras, folder.parent, policy=keras.policy)
        export.export(program, keras, job, example, folder, 1, snapshot)
    finally:
        keras.set_policy("float32")
    return folder, np.asarray(export.load(folder)(INPUTS)).ravel().tolist()


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
