"""The exported model: float32, loadable by plain Keras, by an older one too, and never half written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mptraining_api.problems import InvalidData
from mptraining_api.resolved_job import ResolvedJob
from mptraining_trainer.data.schema import ExampleSpec, TensorSpec
from mptraining_trainer.export import export as exporting
from mptraining_trainer.export.export import load, take_snapshot
from mptraining_trainer.export.float32_model import replace_mixed_policies
from mptraining_trainer.keras_backend import Keras
from mptraining_trainer.model.program import Program, build
from tests.jobs import resolved_job
from tests.left_out import TEST_ALL

LABEL = TensorSpec("label", "int64", ())
PHOTO = ExampleSpec((TensorSpec("image", "uint8", (32, 32, 3)),), (LABEL,), ("daisy", "rose", "tulip"))
TABLE = ExampleSpec((TensorSpec("a", "float32", (4,)), TensorSpec("b", "float32", ())), (LABEL,), ("no", "yes"))

BLOOMS = """
import {keras} as keras

class Blooms(keras.Model):
    def __init__(self, units):
        super().__init__()
        self.hidden = keras.layers.Dense(units, activation="relu")
        self.head = keras.layers.Dense(2, dtype="float32")

    def call(self, inputs):
        return self.head(self.hidden(inputs["a"]))

def subclassed(units):
    return dict(model=Blooms(units), loss="sparse_categorical_crossentropy")

def functional():
    inputs = dict(a=keras.Input((4,), name="a"), b=keras.Input((), name="b"))
    both = keras.layers.Concatenate()([inputs["a"], keras.layers.Reshape((1,))(inputs["b"])])
    hidden = keras.layers.BatchNormalization()(keras.layers.Dense(8)(both))
    return keras.Model(inputs, keras.layers.Dense(2, activation="softmax", dtype="float32")(hidden))
"""


@pytest.fixture
def source(keras: Keras, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "blooms.py").write_text(BLOOMS.format(keras="tf_keras" if keras.legacy else "keras"))
    monkeypatch.syspath_prepend(str(folder))
    yield folder
    sys.modules.pop("blooms", None)


MOBILE = {"application": {"name": "MobileNetV2"}}
CNN = {"application": {"name": "cnn"}}
MLP = {"application": {"name": "mlp"}}
SUBCLASSED = {"function": {"entryPoint": "blooms:subclassed", "arguments": {"units": 8}}}
FUNCTIONAL = {"function": {"entryPoint": "blooms:functional"}}

PROGRAMS = [
    pytest.param(SUBCLASSED, TABLE, id="subclassed"),
    pytest.param(FUNCTIONAL, TABLE, id="functional", marks=TEST_ALL),
    pytest.param(MLP, TABLE, id="mlp", marks=TEST_ALL),
    pytest.param(CNN, PHOTO, id="cnn", marks=TEST_ALL),
    pytest.param(MOBILE, PHOTO, id="MobileNetV2", marks=TEST_ALL),
]


def job(program: dict[str, Any], export_format: str = "keras") -> ResolvedJob:
    return resolved_job(
        "job",
        program=program,
        data={"train": ["x.tfrecord"], "label": "label"},
        training={"epochs": 1, "batchSize": {"global": 8}},
        precision={"policy": "mixed_bfloat16"},
        export={"format": export_format},
    )


def trained(keras: Keras, resolved: ResolvedJob, example: ExampleSpec) -> Program:
    """A program built under mixed_bfloat16, with weights that no initializer produces."""
    keras.set_policy("mixed_bfloat16")
    program = build(resolved, keras, example, lambda topic, message: None)
    numbers = np.random.default_rng(7)
    shapes = [weight.shape for weight in program.model.get_weights()]
    program.model.set_weights([numbers.uniform(0.1, 0.2, shape).astype("float32") for shape in shapes])
    return program


def export(
    built: Program,
    keras: Keras,
    resolved: ResolvedJob,
    example: ExampleSpec | None,
    folder: Path,
    step: int,
    *,
    metrics: Mapping[str, float] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Export as a run of one process does, and return the content of model.json."""
    with tempfile.TemporaryDirectory() as scratch:
        snapshot = take_snapshot(built.model, keras, Path(scratch), policy=keras.policy, **options)
        return exporting.export(built, keras, resolved, example, folder, step, snapshot, metrics=metrics)


def batch(example: ExampleSpec) -> Any:
    numbers = np.random.default_rng(8)
    inputs = {
        spec.name: numbers.integers(0, 9, (2, *(size or 1 for size in spec.shape))).astype(spec.dtype)
        for spec in example.inputs
    }
    return inputs if len(inputs) > 1 else next(iter(inputs.values()))


def run_plainly(python: Path | str, folder: Path, code: str) -> str:
    """Return the output of a process without mptraining, in the model's folder."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [str(python), "-W", "ignore", "-c", code]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()[-1]


def answers(python: Path | str, folder: Path, *loads: str) -> list[Any]:
    """Return the results of the model for the inputs that `expected` kept, loaded in each way in a separate process."""
    printed = run_plainly(python, folder, ANSWER.format(loads=loads))
    return [pytest.approx(outputs, rel=1e-4) for outputs in json.loads(printed)]


def main_file(keras: Keras, program: dict[str, Any]) -> str:
    """Return the model's main file. Keras 3 writes no class whose arguments it cannot inspect: that model is exported
    as weights and rebuild.py.
    """
    return "rebuild.py" if program is SUBCLASSED and not keras.legacy else "model.keras"


ANSWER = """
import json, sys, numpy as np
inputs = np.load("../inputs.npz")
batch = dict(inputs) if len(inputs.files) > 1 else inputs[inputs.files[0]]
outputs = []
for load in {loads}:
    names = dict()
    exec(load, names)
    outputs.append(np.asarray(names["model"](batch), "float64").ravel().tolist())
assert "mptraining_trainer" not in sys.modules
print(json.dumps(outputs))
"""
REBUILD = "from rebuild import load_model; model = load_model()"
OPEN = "import {package}; model = {package}.models.load_model('model.keras')"
SERVE = (
    "import tensorflow as tf; served = tf.saved_model.load('saved_model'); "
    "model = lambda images: served.serve(images.astype('float32'))"
)


def expected(folder: Path, example: ExampleSpec) -> list[float]:
    """Return the results of this process's model; keep the inputs for others."""
    inputs = batch(example)
    np.savez(folder.parent / "inputs.npz", **(inputs if isinstance(inputs, dict) else {"only": inputs}))
    outputs: list[float] = np.asarray(load(folder)(inputs), "float64").ravel().tolist()
    return outputs


@pytest.mark.parametrize(("program", "example"), PROGRAMS)
def test_the_copy_is_float32_and_has_the_trained_weights(
    keras: Keras, tmp_path: Path, source: Path, program: dict[str, Any], example: ExampleSpec
) -> None:
    built = trained(keras, job(program), example)
    assert export(built, keras, job(program), example, tmp_path / "model", 12, inputs=batch(example))[
        "main"
    ] == main_file(keras, program)
    model = load(tmp_path / "model")
    assert {layer.compute_dtype for layer in keras.layers(model)} == {"float32"}
    for before, after in zip(built.model.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(before, after)
    rounded = np.asarray(built.model(batch(example)))
    np.testing.assert_allclose(np.asarray(model(batch(example))), rounded, rtol=0.05, atol=0.05)
    assert keras.module.mixed_precision.global_policy().name == "mixed_bfloat16"


def test_the_content_of_the_folder(keras: Keras, tmp_path: Path, source: Path) -> None:
    built = trained(keras, job(FUNCTIONAL), TABLE)
    export(built, keras, job(FUNCTIONAL), TABLE, tmp_path / "model", 12, metrics={"val_loss": 0.5})
    names = {path.relative_to(tmp_path / "model").as_posix() for path in (tmp_path / "model").rglob("*.*")}
    assert names == {
        "model.keras", "weights.npz", "model.json", "rebuild.py", "source/blooms.py",
    }  # fmt: skip
    about = json.loads((tmp_path / "model" / "model.json").read_text())
    assert about["version"] == 1
    assert about["keras"] == {"generation": keras.generation, "version": keras.module.__version__}
    assert about["rebuild"]["arguments"]["entryPoint"] == "blooms:functional"
    assert [spec["name"] for spec in about["inputs"]] == ["a", "b"]
    assert about["classes"] == ["no", "yes"]
    assert (about["trainedUnder"], about["policy"]) == ("mixed_bfloat16", "float32")
    assert (about["step"], about["metrics"]) == (12, {"val_loss": 0.5})
    assert len(about["recipe"]) == 5


def test_given_weights_are_exported_instead_of_the_models_own(keras: Keras, tmp_path: Path) -> None:
    built = trained(keras, job(MLP), TABLE)
    best = [np.zeros_like(weight) for weight in built.model.get_weights()]
    export(built, keras, job(MLP), TABLE, tmp_path / "model", 1, weights=best)
    assert not any(weight.any() for weight in load(tmp_path / "model").get_weights())


@pytest.mark.parametrize(("program", "example"), PROGRAMS)
def test_a_plain_process_opens_it_and_rebuilds_it(
    keras: Keras, tmp_path: Path, source: Path, program: dict[str, Any], example: ExampleSpec
) -> None:
    folder = tmp_path / "model"
    export(trained(keras, job(program), example), keras, job(program), example, folder, 1)
    outputs = expected(folder, example)
    # A custom class opens only through rebuild.py.
    opens = [OPEN.format(package="tf_keras" if keras.legacy else "keras")] * (program is not SUBCLASSED)
    for found in answers(sys.executable, folder, REBUILD, *opens):
        assert found == outputs


@TEST_ALL
def test_a_saved_model_serves(keras: Keras, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    resolved, folder = job(CNN, "saved_model"), tmp_path / "model"
    assert export(trained(keras, resolved, PHOTO), keras, resolved, PHOTO, folder, 1)["main"] == "saved_model"
    assert capsys.readouterr().out == ""
    # It keeps the inputs for the answers.
    outputs = expected(folder, PHOTO)
    assert answers(sys.executable, folder, SERVE) == [outputs]


def test_a_scripts_model_that_keras_cannot_load_again_is_served_as_it_is(
    keras: Keras, tmp_path: Path, source: Path
) -> None:
    built = trained(keras, job(SUBCLASSED), TABLE)
    script = job(SUBCLASSED).model_copy(update={"program": job(MLP).program})
    of_script = replace(built, rebuild={"builder": "script", "arguments": {}})
    about = export(of_script, keras, script, None, tmp_path / "model", 1, inputs=batch(TABLE))
    names = {path.name for path in (tmp_path / "model").iterdir()}
    if keras.legacy:
        assert (about["formats"], about["policy"]) == (["model.keras"], "float32")
        assert names == {"model.keras", "model.json", "weights.npz"}
    else:
        assert (about["formats"], about["policy"]) == (["saved_model"], "mixed_bfloat16")
        assert "Keras cannot save the model: NotImplementedError" in about["leftOut"]["model.keras"]
        assert names == {"saved_model", "model.json", "weights.npz", "model.weights.h5"}
        with pytest.raises(InvalidData, match="no form that Keras opens; it has saved_model"):
            load(tmp_path / "model")


def test_a_failed_export_leaves_the_earlier_model_whole(keras: Keras, tmp_path: Path) -> None:
    built = trained(keras, job(MLP), TABLE)
    export(built, keras, job(MLP), TABLE, tmp_path / "model", 1)
    before = {path: path.read_bytes() for path in (tmp_path / "model").iterdir()}
    snapshot = take_snapshot(built.model, keras, tmp_path, policy=keras.policy)
    with pytest.raises(ValueError, match="shorter"):
        exporting.export(built, keras, job(MLP), TABLE, tmp_path / "model", 2, replace(snapshot, weights=[np.zeros(3)]))
    assert {path: path.read_bytes() for path in (tmp_path / "model").iterdir()} == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["live.keras", "model"]


def test_a_folder_without_a_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidData, match="no exported model here"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("mixed_float16", "float32"),
        ("bfloat16", "bfloat16"),
        ({"dtype": "mixed_bfloat16", "units": 3}, {"dtype": "float32", "units": 3}),
        (
            [{"class_name": "DTypePolicy", "config": {"name": "mixed_float16"}}],
            [{"class_name": "DTypePolicy", "config": {"name": "float32"}}],
        ),
        ({"class_name": "Dense", "config": {"name": "mixed_float16_head"}},) * 2,
    ],
)
def test_every_mixed_policy_of_a_configuration_becomes_float32(before: Any, after: Mapping[str, Any]) -> None:
    assert replace_mixed_policies(before) == after
