"""Exports for other runtimes, opened by them: `build/env/formats` has ONNX Runtime, LiteRT and OpenVINO."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest
import yaml

PYTHON = Path(__file__).parents[3] / "build" / "env" / "formats" / "bin" / "python"
pytestmark = pytest.mark.skipif(not PYTHON.exists(), reason="run: make build/env/formats/.installed")

PROGRAM = """
import keras

def build(generation: str = "") -> keras.Model:
    inputs = {"x": keras.Input((2,), name="x"), "extra": keras.Input((3,), name="extra")}
    hidden = keras.layers.Dense(8, activation="relu")(keras.layers.Concatenate()([inputs["x"], inputs["extra"]]))
    outputs = {name: keras.layers.Dense(size, name=name)(hidden) for name, size in (("first", 2), ("second", 2))}
    model = keras.Model(inputs, outputs)
    model.compile("sgd", {"first": "mse", "second": "mae"})
    return model
"""
# Prints for each of Keras' outputs the difference from the nearest one of the runtime, whose outputs have other names.
OPEN = """
import sys, numpy as np, keras
form, folder = sys.argv[1:]
draw = np.random.default_rng(3)
given = {"x": draw.normal(size=(5, 2)).astype("float32"), "extra": draw.normal(size=(5, 3)).astype("float32")}
expected = {name: np.asarray(value) for name, value in keras.models.load_model(f"{folder}/model.keras")(given).items()}
if form == "onnx":
    import onnxruntime
    session = onnxruntime.InferenceSession(f"{folder}/model.onnx")
    found = session.run(None, {entry.name: given[entry.name] for entry in session.get_inputs()})
elif form == "litert":
    from ai_edge_litert.interpreter import Interpreter
    found = list(Interpreter(model_path=f"{folder}/model.tflite").get_signature_runner()(**given).values())
else:
    import openvino
    model = openvino.Core().compile_model(f"{folder}/model.xml", "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    found = list(model({entry.any_name: given[entry.any_name] for entry in model.inputs}).values())
for output in expected.values():
    print(min(float(np.abs(output - other).max()) for other in found))
"""


@pytest.mark.parametrize(
    ("form", "file"), [("onnx", "model.onnx"), ("litert", "model.tflite"), ("openvino", "model.xml")]
)
def test_another_runtime_computes_what_the_trained_model_does(tmp_path: Path, form: str, file: str) -> None:
    (tmp_path / "program.py").write_text(PROGRAM, encoding="utf-8")
    draw = np.random.default_rng(1)
    columns = {"x": 2, "extra": 3, "first": 2, "second": 2}
    rows = {name: draw.normal(size=(64, size)).astype("float32") for name, size in columns.items()}
    np.savez(tmp_path / "data.npz", **rows)
    job = {
        "apiVersion": "mptraining.dev/v1alpha1",
        "kind": "MPTrainingJob",
        "metadata": {"name": form},
        "spec": {
            "accelerator": {"type": "cpu"},
            "program": {"function": {"entryPoint": "program:build"}},
            "data": {"train": ["records/train-*.tfrecord"], "labels": ["first", "second"]},
            "training": {"epochs": 1, "batchSize": {"perReplica": 16}},
            "export": {"format": form},
        },
    }
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job), encoding="utf-8")

    def run(*arguments: str) -> str:
        done = subprocess.run([PYTHON, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
        return done.stdout

    run("-m", "mptraining", "records", "convert", "data.npz", "records")
    run("-m", "mptraining", "run", "job.yaml")
    folder = tmp_path / "runs" / form / "model"
    about = json.loads((folder / "model.json").read_text(encoding="utf-8"))
    assert (file in about["formats"], about["main"], about["leftOut"]) == (True, "model.keras", {})
    differences = [float(line) for line in run("-c", OPEN, form, str(folder)).split()]
    assert max(differences) < 1e-5
