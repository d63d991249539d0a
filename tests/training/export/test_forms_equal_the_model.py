"""Every exported form equals the live model, by plain Keras and TensorFlow in another process, or is left out."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from mptraining_trainer.export import export
from mptraining_trainer.export.export import load, load_model, take_snapshot
from mptraining_trainer.keras_backend import Keras
from mptraining_trainer.model.program import ExportedModel
from tests.fakes import Notices
from tests.left_out import first_of
from tests.training.export.test_export import MLP, TABLE, job, run_plainly, trained

# Each function returns a model and inputs; `adapt` is a part of the program, so that a rebuild repeats it.
MODELS = '''
import numpy as np, tensorflow as tf
import {keras} as keras
L = keras.layers
ROWS = (np.arange(64, dtype="float32").reshape(16, 4) * 7 % 23) - 5
WORDS = np.array(["red", "green", "blue", "cyan"] * 4)[:, None]
NUMBERS = np.array([[3], [5], [7], [9]] * 4)
TEXTS = np.array(["red green blue", "green sun", "a blue sun", "unknown words"] * 4)

def model(entry, outputs):
    return keras.Model(entry, L.Dense(2, name="out")(outputs))

def normalization():
    layer = L.Normalization(); layer.adapt(ROWS)
    entry = keras.Input((4,))
    return model(entry, layer(entry)), ROWS

def discretization():
    layer = L.Discretization(num_bins=4); layer.adapt(ROWS)
    entry = keras.Input((4,))
    return model(entry, L.Flatten()(L.Embedding(4, 3)(layer(entry)))), ROWS

def category_encoding():
    entry = keras.Input((1,), dtype="int64")
    return model(entry, L.CategoryEncoding(num_tokens=10, output_mode="one_hot")(entry)), NUMBERS

def string_lookup():
    layer = L.StringLookup(output_mode="one_hot"); layer.adapt(WORDS)
    entry = keras.Input((1,), dtype="string")
    return model(entry, layer(entry)), WORDS

def string_lookup_with_vocabulary():
    layer = L.StringLookup(output_mode="one_hot"); layer.set_vocabulary(["blue", "red", "cyan"])
    entry = keras.Input((1,), dtype="string")
    return model(entry, layer(entry)), WORDS

def integer_lookup():
    layer = L.IntegerLookup(output_mode="one_hot"); layer.adapt(NUMBERS)
    entry = keras.Input((1,), dtype="int64")
    return model(entry, layer(entry)), NUMBERS

def text_vectorization():
    layer = L.TextVectorization(output_sequence_length=4); layer.adapt(TEXTS)
    entry = keras.Input((), dtype="string")
    return model(entry, L.Flatten()(L.Embedding(20, 3)(layer(entry)))), TEXTS

def tf_idf():
    layer = L.TextVectorization(output_mode="tf_idf"); layer.adapt(TEXTS)
    entry = keras.Input((), dtype="string")
    return model(entry, layer(entry)), TEXTS

def hashing():
    entry = keras.Input((1,), dtype="string")
    return model(entry, L.Hashing(num_bins=7, output_mode="one_hot")(entry)), WORDS

@keras.utils.register_keras_serializable("tests")
class Centered(L.Layer):
    """Keeps its means outside of the weights and the configuration."""
    means = np.zeros(4)
    def adapt(self, rows): self.means = rows.mean(axis=0)
    def build(self, shape): self.built = True
    def call(self, rows): return rows - tf.cast(self.means, rows.dtype)
    def save_own_variables(self, store): store["means"] = self.means
    def load_own_variables(self, store): self.means = np.asarray(store["means"])
    def compute_output_shape(self, shape): return shape

def own_variables():
    layer = Centered(); layer.adapt(ROWS)
    entry = keras.Input((4,))
    return model(entry, layer(entry)), ROWS

@keras.utils.register_keras_serializable("tests")
class Scaled(L.Layer):
    """Keeps its factor in a file."""
    factor = 1.0
    def call(self, rows): return rows * self.factor
    def save_assets(self, folder): open(folder + "/factor.txt", "w").write(str(self.factor))
    def load_assets(self, folder): self.factor = float(open(folder + "/factor.txt").read())
    def compute_output_shape(self, shape): return shape

def assets():
    layer = Scaled(); layer.factor = 3.0
    entry = keras.Input((4,))
    return model(entry, layer(entry)), ROWS

def stateful_rnn():
    entry = keras.Input((2, 2), batch_size=16)
    return model(entry, L.LSTM(3, stateful=True)(entry)), ROWS.reshape(16, 2, 2)

@keras.utils.register_keras_serializable("tests")
class Forgetful(L.Layer):
    """Omits its factor from its configuration."""
    def __init__(self, factor=1.0, **options):
        super().__init__(**options)
        self.factor = factor
    def call(self, rows): return rows * self.factor
    def get_config(self): return super().get_config()
    def compute_output_shape(self, shape): return shape

def forgetful():
    entry = keras.Input((4,))
    return model(entry, Forgetful(3.0)(entry)), ROWS

def compiled_with_a_partial():
    import functools
    entry = keras.Input((4,))
    built = model(entry, entry)
    loss = lambda labels, outputs, factor: factor * tf.reduce_mean(tf.square(labels - tf.cast(outputs, labels.dtype)))
    built.compile("adam", functools.partial(loss, factor=2.0))
    return built, ROWS

def random_at_inference():
    entry = keras.Input((4,))
    return model(entry, L.Dropout(0.5)(L.Dense(32)(entry), training=True)), ROWS
'''
STATE = (
    "normalization", "discretization", "category_encoding", "string_lookup", "string_lookup_with_vocabulary",
    "integer_lookup", "text_vectorization", "tf_idf", "hashing", "own_variables", "assets", "stateful_rnn",
)  # fmt: skip
# One of each kind of state: arrays, a table, a vocabulary with its settings, a layer's own, files, and of a batch.
SOME = ("normalization", "string_lookup", "text_vectorization", "own_variables", "assets", "stateful_rnn")

# Opens all forms in a process that has plain Keras and the program's own source alone.
OPEN = """
import importlib, json, os, sys
import numpy as np, tensorflow as tf, {keras} as keras
sys.path.insert(0, "source")
import forms
outputs = {{}}
for name in json.loads({names!r}):
    data = np.load(name + "/inputs.npz")["inputs"]
    inputs = tf.constant(data.astype(object) if data.dtype.kind in "US" else data)
    archive = name + "/model/model.keras"
    opened = keras.models.load_model(archive) if os.path.exists(archive) else None
    sys.path.insert(0, name + "/model")
    sys.modules.pop("rebuild", None)
    rebuilt = importlib.import_module("rebuild").load_model()
    sys.path.pop(0)
    loaded = tf.saved_model.load(name + "/model/saved_model")
    ((signature, *_), _) = loaded.serve.concrete_functions[0].structured_input_signature
    served = lambda rows: loaded.serve(tf.nest.pack_sequence_as(signature, [rows]))
    assert {{layer.compute_dtype for layer in rebuilt.layers if hasattr(layer, "kernel")}} <= {{"float32"}}
    outputs[name] = [np.asarray(call(inputs), "float64").ravel().tolist() for call in (rebuilt, served, opened) if call]
assert not any(module.startswith("mptraining") for module in sys.modules)
print(json.dumps(outputs))
"""


@pytest.fixture
def source(keras: Keras, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "source"
    folder.mkdir()
    text = MODELS.replace("{keras}", "tf_keras" if keras.legacy else "keras")
    functions = (*STATE, "forgetful", "compiled_with_a_partial", "random_at_inference")
    programs = "".join(f"\ndef program_{name}():\n    return {name}()[0]\n" for name in functions)
    (folder / "forms.py").write_text(text + programs)
    monkeypatch.syspath_prepend(str(folder))
    yield folder
    sys.modules.pop("forms", None)


def exported(keras: Keras, folder: Path, name: str, policy: str, builder: str = "function") -> dict[str, Any]:
    """Export the model of that function into `folder`/model; keep its inputs and its outputs there."""
    import forms

    keras.clear_session()
    keras.set_policy(policy)
    model, inputs = getattr(forms, name)()
    folder.mkdir()
    np.savez(folder / "inputs.npz", inputs=inputs)
    tensors = tf.constant(inputs)
    specs = [{"name": "inputs", "dtype": tensors.dtype.name, "shape": list(inputs.shape[1:])}]
    arguments = {"entryPoint": f"forms:program_{name}"} if builder == "function" else {}
    program = ExportedModel(model=model, rebuild={"builder": builder, "arguments": arguments, "inputs": specs})
    snapshot = take_snapshot(model, keras, folder, policy=policy, inputs=tensors)
    if snapshot.reference is not None:
        np.savez(folder / "outputs.npz", outputs=snapshot.reference.outputs[0])
    return export.export(program, keras, job(MLP, "saved_model"), None, folder / "model", 1, snapshot)


@pytest.mark.parametrize(
    ("names", "policy"), first_of((SOME, "mixed_bfloat16"), (STATE, "mixed_bfloat16"), (STATE, "float32"))
)
def test_the_state_of_layers_is_in_every_form(
    keras: Keras, tmp_path: Path, source: Path, names: tuple[str, ...], policy: str
) -> None:
    for name in names:
        about = exported(keras, tmp_path / name, name, policy)
        forms = ["saved_model", "model.keras", "rebuild.py"]
        if keras.legacy and name == "discretization":
            # tf_keras itself loses the adapted boundaries in a .keras file.
            forms.remove("model.keras")
        assert about["formats"] == forms, (name, about["leftOut"])
        assert about["policy"] == "float32"
    code = OPEN.format(keras="tf_keras" if keras.legacy else "keras", names=json.dumps(names))
    answers = json.loads(run_plainly(sys.executable, tmp_path, code))
    for name in names:
        expected = np.load(tmp_path / name / "outputs.npz")["outputs"].ravel()
        bound = (1e-5 if policy == "float32" else 2e-2) * np.abs(expected).max()
        for answer in answers[name]:
            np.testing.assert_allclose(answer, expected, rtol=0, atol=bound, err_msg=name)
            # The forms are all float32, so they agree more closely with each other.
            np.testing.assert_allclose(answer, answers[name][0], rtol=0, atol=1e-4 * bound + 1e-4, err_msg=name)


@pytest.mark.parametrize("policy", first_of("mixed_float16", "float32"))
def test_a_form_that_differs_is_left_out(keras: Keras, tmp_path: Path, source: Path, policy: str) -> None:
    about = exported(keras, tmp_path / "run", "forgetful", policy)
    assert about["leftOut"]["model.keras"].startswith("its outputs differ by ")
    assert about["formats"] == ["saved_model", "rebuild.py"]
    assert not (tmp_path / "run" / "model" / "model.keras").exists()
    expected = np.load(tmp_path / "run" / "outputs.npz")["outputs"]
    bound = (1e-5 if policy == "float32" else 2e-3) * np.abs(expected).max()
    inputs = np.load(tmp_path / "run" / "inputs.npz")["inputs"]
    for model in (load(tmp_path / "run" / "model"), load_model(tmp_path / "run" / "model")):
        np.testing.assert_allclose(np.asarray(model(inputs)), expected, rtol=0, atol=bound)


def test_if_no_form_of_keras_equals_the_live_model_is_served(keras: Keras, tmp_path: Path, source: Path) -> None:
    about = exported(keras, tmp_path / "run", "forgetful", "float32", builder="script")
    assert about["formats"] == ["saved_model"]
    assert (tmp_path / "run" / "model" / "model.weights.h5").exists()
    served = tf.saved_model.load(str(tmp_path / "run" / "model" / "saved_model"))
    answer = served.serve(np.load(tmp_path / "run" / "inputs.npz")["inputs"])
    np.testing.assert_allclose(answer, np.load(tmp_path / "run" / "outputs.npz")["outputs"], rtol=1e-5)


@pytest.mark.parametrize("name", ["compiled_with_a_partial", "random_at_inference"])
def test_neither_arguments_of_compile_nor_random_outputs_keep_a_model_from_its_export(
    keras: Keras, tmp_path: Path, source: Path, name: str
) -> None:
    about = exported(keras, tmp_path / "run", name, "float32")
    assert about["formats"] == ["saved_model", "model.keras", "rebuild.py"], about["leftOut"]


def test_a_difference_of_precision_alone_leaves_out_nothing() -> None:
    """Class numbers, and outputs near a large mean, differ more between the policies than their roundings."""
    outputs = (np.array([[1000.0], [1001.0]]), np.array([3.0, 1.0, 2.0]))
    reference = export.Reference(None, outputs, (0.0, 0.0), "mixed_bfloat16")
    rounded = [np.array([[996.0], [1000.0]]), np.array([3.0, 2.0, 2.0])]
    assert reference.difference(lambda _: rounded, rounded=True) is None
    assert replace(reference, policy="float32").difference(lambda _: rounded) is not None
    tripled = [3 * output for output in reference.outputs]
    assert reference.difference(lambda _: tripled, rounded=True) is not None


Publish = Callable[[ExportedModel, str], Notices]


@pytest.fixture
def publish(keras: Keras, tmp_path: Path) -> Publish:
    """Publish a program into the run folder `tmp_path`/run, and return the notices."""

    def published(program: ExportedModel, export_format: str = "keras") -> Notices:
        notices = Notices()
        telemetry = SimpleNamespace(notice=notices)
        resolved = job(MLP, export_format)
        worker: Any = SimpleNamespace(job=resolved, folder=str(tmp_path / "run"), fence=None, telemetry=telemetry)
        scratch = tmp_path / "scratch"
        scratch.mkdir(exist_ok=True)
        snapshot = take_snapshot(program.model, keras, scratch, policy=keras.policy)
        export.publish(worker, program, keras, TABLE, 1, {}, snapshot)
        return notices

    return published


def test_nothing_of_an_earlier_export_is_left(keras: Keras, tmp_path: Path, source: Path, publish: Publish) -> None:
    import forms

    first = trained(keras, job(MLP), TABLE)
    keras.set_policy("float32")
    publish(first, "saved_model")
    folder = tmp_path / "run" / "model"
    assert (folder / "model.keras").exists()
    assert (folder / "saved_model").exists()
    second = ExportedModel(
        model=forms.forgetful()[0],
        rebuild={"builder": "function", "arguments": {"entryPoint": "forms:program_forgetful"}},
    )
    second = replace(second, rebuild=second.rebuild | {"inputs": [{"name": "a", "dtype": "float32", "shape": [4]}]})
    notices = publish(second)
    assert {path.name for path in folder.iterdir()} == {"model.json", "rebuild.py", "source", "weights.npz"}
    rows = np.ones((2, 4), "float32")
    np.testing.assert_allclose(np.asarray(load(folder)(rows)), np.asarray(second.model(rows)), rtol=1e-5)
    assert notices.of("FormatLeftOut").startswith("model/ has no model.keras: its outputs differ by")


def test_a_file_that_model_json_does_not_name_is_not_opened(keras: Keras, tmp_path: Path, publish: Publish) -> None:
    program = trained(keras, job(MLP), TABLE)
    publish(program)
    folder = tmp_path / "run" / "model"
    about = json.loads((folder / "model.json").read_text())
    (folder / "model.json").write_text(json.dumps(about | {"formats": ["rebuild.py"]}))
    (folder / "model.keras").write_bytes(b"of an earlier export")
    assert len(load(folder).get_weights()) == len(program.model.get_weights())
