"""The model is built and traced, not run: its layers, their numbers, and the tensors that a step must keep."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mptraining_api.model_report import ModelFacts
from mptraining_api.problems import InvalidData, InvalidProgram, InvalidSpec
from mptraining_api.resolve.resolve import ClusterSettings, resolve
from mptraining_api.resolved_job import ResolvedData
from mptraining_api.spec import MPTrainingJob
from mptraining_records.convert.convert import convert
from mptraining_trainer.data.schema import ExampleSpec
from mptraining_trainer.model.inspect import example_of, inspect

NUMBERS = [{"name": "x", "dtype": "float32", "shape": [10]}, {"name": "label", "dtype": "int64", "shape": []}]
WORDS = [{"name": "x", "dtype": "int32", "shape": [6]}, {"name": "label", "dtype": "int64", "shape": []}]
IMAGES = [{"name": "x", "dtype": "uint8", "shape": [32, 32, 3]}, {"name": "label", "dtype": "int64", "shape": []}]

PROGRAM = """
import {package} as keras

L = keras.layers

class Scaled(L.Layer):
    def __init__(self):
        super().__init__(name="scaled")
        self.inner = L.Dense(12, name="inner")

    def call(self, inputs):
        return keras.activations.softmax(self.inner(inputs))

def functional():
    entry = keras.Input((10,))
    x = Scaled()(L.Dense(12, activation="relu", name="first")(entry))
    return keras.Model(entry, L.Dense(3, activation="softmax", name="head")(L.Add(name="added")([x, x])))

class Own(keras.Model):
    def __init__(self):
        super().__init__()
        self.first = L.Dense(12, activation="relu", name="first")
        self.head = L.Dense(3, dtype="float32", name="head")

    def call(self, inputs):
        return self.head(self.first(inputs))

def shortened(inputs, labels):
    return inputs[:4], labels

def words():
    layers = [L.Embedding(50, 8, name="embedded"), L.LSTM(4, name="memory"), L.Dense(3, dtype="float32", name="head")]
    return dict(model=keras.Sequential([keras.Input((4,)), *layers]), preprocess=shortened)
"""


@pytest.fixture
def look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Inspects a job with this program and these features."""
    monkeypatch.syspath_prepend(tmp_path)

    def looked(program: str | dict[str, Any], features: Any = None, keras: str = "Keras3", **spec: Any) -> ModelFacts:
        package = "tf_keras" if keras == "Legacy" else "keras"
        (tmp_path / f"{package}_models.py").write_text(PROGRAM.format(package=package))
        if isinstance(program, str):
            program = {"function": {"entryPoint": f"{package}_models:{program}"}}
        data = {"train": ["gs://no-such-bucket/train"], "label": "label"} | ({"features": features} if features else {})
        document = {
            "accelerator": {"type": "nvidia-tesla-t4", "countPerNode": 2},
            "keras": keras,
            "program": program,
            "data": data | spec.pop("data", {}),
            "training": {"epochs": 1, "batchSize": {"perReplica": 8}},
        } | spec
        if "script" in program:
            document = {"accelerator": {"type": "cpu"}, "program": program}
        job = resolve(MPTrainingJob.parse({"metadata": {"name": "job"}, "spec": document}), ClusterSettings())
        return inspect(job, {}, lambda topic, message, level="Info": None, lambda: 0.0)

    return looked


def test_an_mlps_numbers_are_those_of_a_calculation(look: Any) -> None:
    found = look({"application": {"name": "mlp", "classes": 3}}, NUMBERS)
    parameters = 10 * 128 + 128 + 128 * 128 + 128 + 128 * 3 + 3
    assert (found.parameters, found.trainable) == (parameters, parameters)
    assert (found.weights, found.gradients) == (4 * parameters, 4 * parameters)
    # Adam keeps two numbers for each, its step counter and its rate.
    assert 0 <= found.slots - 8 * parameters <= 16
    plain, mixed = found.policies
    assert (plain.policy, mixed.policy) == ("float32", "mixed_float16")
    # The inputs, two hidden layers, the probabilities that the loss computes from the logits.
    assert plain.activations == 4 * (10 + 128 + 128 + 3)
    # The same in float16; the head takes its inputs in float32.
    assert mixed.activations == 2 * (10 + 128 + 128) + 4 * (128 + 3)
    # The second layer's weights, which the gradient of its inputs needs. The head's are already in float32.
    # The loss adds some scalars.
    assert 0 <= plain.copies <= 16
    assert 0 <= mixed.copies - 2 * 128 * 128 <= 16
    assert [(layer.name, layer.compute, layer.variables, layer.output_shape) for layer in mixed.layers] == [
        ("hidden_1", "float16", "float32", (128,)),
        ("hidden_2", "float16", "float32", (128,)),
        ("head", "float32", "float32", (3,)),
    ]
    assert [layer.multiply_adds for layer in mixed.layers] == [1280, 128 * 128, 384]
    assert (mixed.output, mixed.output_layer) == ("float32", "head")


@pytest.mark.parametrize("keras", ["Keras3", "Legacy"])
def test_layers_inside_layers_and_operations_are_seen(look: Any, keras: str) -> None:
    found = look("functional", NUMBERS, keras)
    mixed = found.policies[1]
    assert [(layer.name, layer.kind) for layer in mixed.layers] == [
        ("first", "Dense"),
        ("scaled/inner", "Dense"),
        ("added", "Add"),
        ("head", "Dense"),
    ]
    assert [layer.name for layer in mixed.layers if layer.softmax] == ["head"]
    (other,) = mixed.softmax
    assert other.startswith("scaled")
    assert other.endswith(" (float16)")
    assert mixed.output == "float16"


def test_a_subclassed_model_is_inspected_too(look: Any) -> None:
    named = {"loss": {"className": "SparseCategoricalCrossentropy", "config": {"from_logits": True}}}
    found = look("Own", NUMBERS, "Legacy", training={"epochs": 1, "batchSize": {"global": 8}} | named)
    assert [layer.name for layer in found.policies[1].layers] == ["first", "head"]
    assert found.policies[0].activations == 4 * (10 + 12 + 3)


def test_a_recurrent_layer_is_one_and_reported_as_not_counted(look: Any) -> None:
    """The model's input is the output of the program's own preprocessing."""
    found = look("words", WORDS)
    assert found.policies[1].layers[0].output_shape == (4, 8)
    assert [layer.name for layer in found.policies[1].layers] == ["embedded", "memory", "head"]
    assert found.uncounted == ("memory",)


def test_any_application_is_built_without_its_weights(look: Any) -> None:
    application = {"name": "MobileNet", "weights": "imagenet", "classes": 5, "freezeBase": True}
    found = look({"application": application}, IMAGES)
    assert found.trainable == 1024 * 5 + 5
    assert found.gradients == 4 * found.trainable
    assert found.weights > 4 * 3_000_000
    by_name = {layer.name: layer for layer in found.policies[1].layers}
    # Each channel separately: no matrix unit, no padding.
    assert by_name["conv_dw_1"].inputs is None
    pointwise = by_name["conv_pw_1"]
    assert (pointwise.inputs, pointwise.outputs, pointwise.output_shape) == (32, 64, (16, 16, 64))
    assert pointwise.multiply_adds == 32 * 64 * 16 * 16
    assert by_name["conv1"].multiply_adds == 9 * 3 * 32 * 16 * 16
    assert found.policies[1].activations < found.policies[0].activations


def data_section(**data: Any) -> ResolvedData:
    document = {
        "accelerator": {"type": "cpu"},
        "program": {"application": {"name": "mlp", "classes": 3}},
        "data": data,
        "training": {"epochs": 1, "batchSize": {"global": 8}},
    }
    job = resolve(MPTrainingJob.parse({"metadata": {"name": "job"}, "spec": document}), ClusterSettings())
    assert job.data is not None
    return job.data


def example(**data: Any) -> ExampleSpec:
    return example_of(data_section(**data), lambda topic, message, level="Info": None, lambda: 0.0)


def test_an_example_is_that_of_the_job_the_manifest_or_the_first_records(tmp_path: Path) -> None:
    np.savez(tmp_path / "train.npz", x=np.zeros((4, 10), np.float32), label=np.zeros(4, np.int64))
    convert(str(tmp_path / "train.npz"), str(tmp_path), keep_order=True)
    by_manifest = example(train=[f"{tmp_path}/train-*.tfrecord"])
    for path in tmp_path.glob("*.json"):
        path.unlink()
    by_records = example(train=[f"{tmp_path}/train-*.tfrecord"])
    by_job = example(train=["gs://no-such-bucket/train"], features=NUMBERS, label="label")
    assert by_manifest == by_records == by_job


def test_a_job_that_cannot_be_inspected_reports_what_it_needs(look: Any, bucket: str) -> None:
    with pytest.raises(InvalidData, match=r"Name data\.features, with them no data is needed"):
        example(train=[f"{bucket}/train-*.tfrecord"])
    with pytest.raises(InvalidSpec, match="a script builds its model itself"):
        look({"script": {"path": "train.py"}})
    with pytest.raises(InvalidProgram, match="Did you mean 'functional'"):
        look("functionall", NUMBERS)
