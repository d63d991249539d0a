"""What is said before the first step: decisions over plain facts, then the facts of real models."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mptraining_api.job import MPTrainingJob
from mptraining_api.problems import InvalidData, InvalidProgram, Problem
from mptraining_api.resolve import ClusterSettings, resolve
from mptraining_api.resolved import ResolvedJob
from mptraining_trainer.keras_generation import Keras
from mptraining_trainer.preflight import (
    Facts,
    InputFacts,
    LabelFacts,
    OutputFacts,
    gather,
    native_bfloat16,
    warnings,
)

SPARSE, BINARY, SQUARED = "SparseCategoricalCrossentropy", "BinaryCrossentropy", "MeanSquaredError"

LABEL = LabelFacts(dtype="int64", shape=(), whole=True, minimum=0.0, maximum=9.0)
OUTPUT = OutputFacts("head", "float32", (10,), activation="linear", probabilities=False, finite=True)
GOOD = Facts(
    device="gpu",
    device_title="NVIDIA T4",
    compute_capability=7.5,
    native_bfloat16=True,
    policy="mixed_float16",
    per_replica_batch=64,
    widths=(("hidden_1", 128), ("hidden_2", 64)),
    inputs=(InputFacts("image", "float32", finite=True),),
    label=LABEL,
    output=OUTPUT,
    loss=SPARSE,
    from_logits=True,
)


def output(**changed: Any) -> dict[str, Any]:
    return {"output": replace(OUTPUT, **changed)}


def label(**changed: Any) -> dict[str, Any]:
    return {"label": replace(LABEL, **changed)}


SOFTMAX = output(activation="softmax", probabilities=True)
ODD = tuple((f"layer_{number}", 3) for number in range(7))


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({}, {}),
        # The output's precision
        (output(dtype="float16"), {"OutputPrecision": "float16 (layer 'head')"}),
        (output(dtype="bfloat16"), {"OutputPrecision": "Activation('linear', dtype='float32')"}),
        # The loss against the output
        (SOFTMAX, {"Logits": "twice"}),
        (SOFTMAX | {"from_logits": False}, {}),
        (output(activation=None, probabilities=True), {"Logits": "probabilities already"}),
        (output(activation=None) | {"from_logits": False}, {}),
        ({"from_logits": False}, {"Logits": "say from_logits=True"}),
        (output(activation="softmax", probabilities=None), {"Logits": "twice"}),
        (output(activation="sigmoid", shape=(1,)) | {"loss": BINARY}, {"Logits": "sigmoid is applied twice"}),
        (output(activation="sigmoid", shape=(1,)) | {"loss": BINARY, "from_logits": False}, {}),
        # What the hardware has
        ({"compute_capability": 6.0}, {"Precision": "6.0"}),
        ({"compute_capability": 6.0, "policy": "float32"}, {}),
        ({"device": "cpu"}, {"Precision": "emulation"}),
        ({"device": "cpu", "policy": "mixed_bfloat16"}, {}),
        (
            {"device": "cpu", "policy": "mixed_bfloat16", "native_bfloat16": False},
            {"Precision": "avx512_bf16"},
        ),
        # What NumPy does when nobody says a dtype
        ({"inputs": (InputFacts("income", "float64", finite=True),)}, {"Float64": "income"}),
        # Dimensions: never on a CPU, on a GPU only where there are Tensor Cores to fill
        ({"per_replica_batch": 10}, {"BatchSize": "10 examples per replica"}),
        ({"per_replica_batch": 10, "policy": "float32"}, {}),
        ({"per_replica_batch": 10, "device": "cpu", "policy": "float32"}, {}),
        ({"widths": (("odd", 100),)}, {"Widths": "odd (100)"}),
        ({"widths": ODD}, {"Widths": "layer_4 (3) and 2 more"}),
        ({"device": "tpu", "policy": "mixed_bfloat16"}, {"Widths": "multiples of 128"}),
        ({"device": "tpu", "policy": "mixed_bfloat16", "widths": (("wide", 256),)}, {}),
    ],
)
def test_what_works_but_costs_is_a_finding(facts: dict[str, Any], said: dict[str, str]) -> None:
    found = {finding.topic: finding.message for finding in warnings(replace(GOOD, **facts))}
    assert set(found) == set(said)
    for topic, part in said.items():
        assert part in found[topic]


@pytest.mark.parametrize(
    ("facts", "problem", "says"),
    [
        ({"inputs": (InputFacts("age", "float32", finite=False),)}, InvalidData, "'age' has NaN or Inf"),
        (output(finite=False), InvalidProgram, "layer 'head'"),
        (
            label(maximum=10.0),
            InvalidData,
            "labels from 0 to 10 in the first batch, the model has 10 classes",
        ),
        (label(minimum=-1.0), InvalidData, "labels from -1 to 9"),
        (label(dtype="float32", whole=False), InvalidData, "not whole numbers"),
        (label(dtype="object", whole=False, minimum=None, maximum=None), InvalidData, "object labels"),
        (label(shape=(10,)), InvalidData, "use CategoricalCrossentropy for one-hot labels"),
        (
            {"loss": "CategoricalCrossentropy"},
            InvalidData,
            "use SparseCategoricalCrossentropy for class numbers",
        ),
        ({"loss": SQUARED, "from_logits": None}, InvalidData, "expected labels of shape [10]"),
    ],
)
def test_what_can_never_work_is_refused(facts: dict[str, Any], problem: type[Problem], says: str) -> None:
    with pytest.raises(problem) as raised:
        warnings(replace(GOOD, **facts))
    assert says in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "facts",
    [
        label(shape=(1,)),
        label(dtype="float32"),
        output(shape=(1,)) | {"loss": SQUARED, "from_logits": None},
        output(shape=(1,)) | label(shape=(1,)) | {"loss": SQUARED, "from_logits": None},
        output(shape=(None, 10)) | label(shape=(7,)),
        output(shape=None),
        label(shape=(3,)) | {"loss": "a loss of the user's own", "from_logits": None},
    ],
)
def test_labels_that_fit_pass(facts: dict[str, Any]) -> None:
    assert warnings(replace(GOOD, **facts)) == []


@pytest.mark.parametrize(
    ("flags", "native"),
    [
        ("fpu avx2 avx512f", False),
        ("fpu avx512f avx512_bf16", True),
        ("amx_bf16 amx_tile", True),
        ("", False),
    ],
)
def test_native_bfloat16_is_read_from_the_cpus_flags(tmp_path: Path, flags: str, native: bool) -> None:
    file = tmp_path / "cpuinfo"
    file.write_text(f"processor\t: 0\nflags\t\t: {flags}\nbugs\t\t: none\n")
    assert native_bfloat16(file) is native


def test_a_machine_that_does_not_say_has_no_native_bfloat16(tmp_path: Path) -> None:
    assert native_bfloat16(tmp_path / "missing") is False


# The facts of real models.


@pytest.fixture
def job() -> ResolvedJob:
    spec = {
        "accelerator": {"type": "cpu"},
        "program": {"application": {"name": "mlp", "classes": 3}},
        "data": {"train": ["x.tfrecord"], "label": "label"},
        "training": {"epochs": 1, "batchSize": {"global": 16}},
    }
    document = {"apiVersion": "mptraining.dev/v1alpha1", "kind": "MPTrainingJob"}
    return resolve(MPTrainingJob.parse(document | {"metadata": {"name": "job"}, "spec": spec}), ClusterSettings())


BATCH = np.linspace(-1, 1, 16 * 5, dtype="float32").reshape(16, 5), np.arange(16) % 3


def model(keras: Keras, activation: str | None, dtype: str = "float32") -> Any:
    layers = keras.module.layers
    body = keras.module.Sequential([keras.module.Input((5,)), layers.Dense(8, name="wide")], name="body")
    head = layers.Dense(3, activation=activation, dtype=dtype, name="head")
    return keras.module.Sequential([keras.module.Input((5,)), body, head])


@pytest.mark.parametrize(("activation", "probabilities"), [("softmax", True), (None, False)])
def test_one_forward_pass_tells_probabilities_from_logits(
    keras: Keras, job: ResolvedJob, activation: str | None, probabilities: bool
) -> None:
    loss = keras.module.losses.SparseCategoricalCrossentropy(from_logits=True)
    facts = gather(model(keras, activation), loss, BATCH, keras, job)
    expected = OutputFacts("head", "float32", (3,), activation or "linear", probabilities=probabilities, finite=True)
    assert facts.output == expected
    assert (facts.loss, facts.from_logits) == (SPARSE, True)
    assert facts.label == LabelFacts("int64", (), whole=True, minimum=0.0, maximum=2.0)
    assert facts.widths == (("wide", 8),)
    assert facts.per_replica_batch == 16
    assert facts.inputs == (InputFacts("inputs", "float32", finite=True),)


def test_a_loss_by_function_is_known_by_its_class(keras: Keras, job: ResolvedJob) -> None:
    loss = keras.module.losses.get("sparse_categorical_crossentropy")
    facts = gather(model(keras, "softmax"), loss, BATCH, keras, job)
    assert (facts.loss, facts.from_logits) == (SPARSE, False)
    assert warnings(facts) == []


def test_a_half_precision_output_is_seen(keras: Keras, job: ResolvedJob) -> None:
    loss = keras.module.losses.SparseCategoricalCrossentropy(from_logits=True)
    found = warnings(gather(model(keras, None, "mixed_bfloat16"), loss, BATCH, keras, job))
    assert [finding.topic for finding in found] == ["OutputPrecision"]


def test_nan_in_the_first_batch_is_the_datas_fault(keras: Keras, job: ResolvedJob) -> None:
    inputs = BATCH[0].copy()
    inputs[-1, 0] = np.nan
    loss = keras.module.losses.SparseCategoricalCrossentropy(from_logits=True)
    with pytest.raises(InvalidData, match="NaN or Inf in the first batch"):
        warnings(gather(model(keras, None), loss, (inputs, BATCH[1]), keras, job))


def test_a_model_that_overflows_on_good_inputs_is_the_programs_fault(keras: Keras, job: ResolvedJob) -> None:
    overflowing = model(keras, None)
    overflowing.layers[-1].set_weights([np.full((8, 3), 1e38, "float32"), np.full(3, np.inf, "float32")])
    loss = keras.module.losses.SparseCategoricalCrossentropy(from_logits=True)
    with pytest.raises(InvalidProgram, match="NaN or Inf"):
        warnings(gather(overflowing, loss, BATCH, keras, job))


def test_a_model_that_cannot_take_the_batch_says_so_in_one_line(keras: Keras, job: ResolvedJob) -> None:
    loss = keras.module.losses.SparseCategoricalCrossentropy(from_logits=True)
    with pytest.raises(InvalidProgram, match="fails on the first batch") as raised:
        gather(model(keras, None), loss, (np.zeros((16, 4), "float32"), BATCH[1]), keras, job)
    assert "\n" not in str(raised.value)
