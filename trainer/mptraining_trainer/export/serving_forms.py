"""Forms of a model for other runtimes, written by Keras' `model.export` and opened by the runtime for a comparison."""

from __future__ import annotations

import importlib
import importlib.util
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from mptraining_api.problems import InvalidSpec
from mptraining_api.resolved_job import ResolvedJob
from mptraining_trainer.export import reference

FIELD = "spec.export.format"
# Inputs in the structure of the model to its flat outputs.
Forward = Callable[[Any], Sequence[Any]]


@dataclass(frozen=True)
class ServingForm:
    """`path` is its file or folder in the export; `modules` write and load it, in addition to TensorFlow.

    `modules` have the names of their packages, with underscores. `weights` is a second file, if it has one.
    """

    path: str
    modules: tuple[str, ...]
    load: Callable[[Path], Forward]
    weights: str | None = None

    def delete(self, folder: Path) -> None:
        """Delete the form from the folder of an export, whether it is there or not."""
        shutil.rmtree(folder / self.path, ignore_errors=True)
        for file in filter(None, (self.path, self.weights)):
            (folder / file).unlink(missing_ok=True)


def require_packages(job: ResolvedJob) -> None:
    """Raise InvalidSpec, before the training, if this image cannot write the form that the job asks for."""
    form = FORMS.get(job.export.format)
    missing = [module for module in form.modules if importlib.util.find_spec(module) is None] if form else []
    if missing:
        packages = " ".join(module.replace("_", "-") for module in missing)
        raise InvalidSpec(
            FIELD,
            f"{job.export.format!r} needs {packages}, which this image does not have",
            next_step=f"pip install 'mptraining[{job.export.format}]', or add it to the image or to the program's "
            "requirements.",
        )


def _open_saved_model(folder: Path) -> Forward:
    loaded = tf.saved_model.load(str(folder))
    # `serve` takes the inputs in its own structure and dtypes.
    ((signature, *_), _) = loaded.serve.concrete_functions[0].structured_input_signature

    def serve(inputs: Any) -> Sequence[Any]:
        entries = [
            entry if spec.dtype == entry.dtype else tf.cast(entry, spec.dtype)
            for entry, spec in zip(tf.nest.flatten(inputs), tf.nest.flatten(signature), strict=True)
        ]
        return reference.flat(loaded.serve(tf.nest.pack_sequence_as(signature, entries)))

    return serve


def _open_onnx(file: Path) -> Forward:
    session = importlib.import_module("onnxruntime").InferenceSession(str(file), providers=["CPUExecutionProvider"])
    names = [entry.name for entry in session.get_inputs()]
    return lambda inputs: reference.flat(session.run(None, _by_name(inputs, names)))


def _open_litert(file: Path) -> Forward:
    interpreter = importlib.import_module("ai_edge_litert.interpreter").Interpreter(model_path=str(file))
    runner = interpreter.get_signature_runner("serving_default")
    names = list(runner.get_input_details())

    def run(inputs: Any) -> Sequence[Any]:
        outputs = runner(**_by_name(inputs, names))
        return reference.flat([outputs[name] for name in sorted(outputs)])

    return run


def _open_openvino(file: Path) -> Forward:
    # The processor's bfloat16 would differ from the model's float32.
    exact = {"INFERENCE_PRECISION_HINT": "f32"}
    model = importlib.import_module("openvino").Core().compile_model(str(file), "CPU", exact)
    names = [entry.any_name for entry in model.inputs]

    def run(inputs: Any) -> Sequence[Any]:
        outputs = model(_by_name(inputs, names))
        return reference.flat([outputs[output] for output in model.outputs])

    return run


def _by_name(inputs: Any, names: Sequence[str]) -> dict[str, Any]:
    """Return the inputs by the names of the form: a dict's own, else in their order, as Keras numbers them."""
    if isinstance(inputs, Mapping):
        arrays = {name: np.asarray(value) for name, value in inputs.items()}
        if set(arrays) == set(names):
            return arrays
    flat = [np.asarray(value) for value in tf.nest.flatten(inputs)]
    return dict(zip(names if len(names) == 1 else sorted(names), flat, strict=True))


FORMS: Mapping[str, ServingForm] = {
    "saved_model": ServingForm("saved_model", (), _open_saved_model),
    "onnx": ServingForm("model.onnx", ("tf2onnx", "onnx", "onnxruntime"), _open_onnx),
    "litert": ServingForm("model.tflite", ("ai_edge_litert",), _open_litert),
    "openvino": ServingForm("model.xml", ("openvino",), _open_openvino, weights="model.bin"),
}
