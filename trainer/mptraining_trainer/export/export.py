"""Export of the trained model as files that equal it, float32 under any training policy.

model/
├── model.keras          for the same version of Keras, `keras.models.load_model`
├── saved_model/         for serving: if the job asks for it, or if Keras cannot save the model in its own format
├── model.onnx|tflite|xml  for other runtimes, if the job asks for one
├── weights.npz          the arrays in order, readable with NumPy alone
├── model.json           description of the model and of its rebuild; `formats` names the forms that equal the model
├── rebuild.py           plain Keras: `from rebuild import load_model`; works where model.keras cannot be opened
├── source/              the program's own modules, if they are small
└── model.weights.h5     Keras' own weights file, with neither model.keras nor rebuild.py

Every form is loaded again from its files and compared with the live model on the first batch. One that differs is left
out, with the reason in model.json and a warning.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import json
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from mptraining_api import run_folder
from mptraining_api.model import json_value
from mptraining_api.problems import InvalidData
from mptraining_api.resolved_job import ResolvedJob
from mptraining_storage import storage, transfers
from mptraining_trainer.data.schema import Columns, ExampleSpec, to_features
from mptraining_trainer.export import float32_model, reference
from mptraining_trainer.export.float32_model import own_objects, policy_of
from mptraining_trainer.export.reference import Reference
from mptraining_trainer.export.serving_forms import FORMS
from mptraining_trainer.keras_backend import Keras
from mptraining_trainer.model.applications import cnn, mlp, pretrained
from mptraining_trainer.model.hyperparameters import fill_hyperparameters
from mptraining_trainer.model.program import ExportedModel
from mptraining_trainer.worker import Worker

VERSION = 1
KERAS_FILE, SAVED_MODEL, REBUILD, KERAS_WEIGHTS = "model.keras", "saved_model", "rebuild.py", "model.weights.h5"
_LARGEST_SOURCE = 1 << 20
_RECIPE = (
    "cd model                            # this folder",
    "python                              # with keras (Legacy: tf_keras) and numpy",
    ">>> from rebuild import load_model",
    ">>> model = load_model()            # rebuilt under float32, weights from weights.npz",
    ">>> model(examples)                 # examples as `inputs` says, after `preprocess`",
)


@dataclass(frozen=True)
class Snapshot:
    """The live model as every worker saves it in its own `folder`, and its outputs on the first batch.

    `policy` is the global one that it was built under, `computes` that of its layers. `failure` says why Keras could
    not save it as an archive; `reference` is None and `not_called` says why if it was not called on a batch.
    `weights` are in the order of `model.get_weights()`.
    """

    folder: Path
    policy: str
    computes: str
    weights: Sequence[Any]
    reference: Reference | None
    failure: str | None = None
    not_called: str | None = None

    @property
    def archive(self) -> Path:
        return self.folder / "live.keras"


def take_snapshot(
    model: Any,
    keras: Keras,
    folder: Path,
    *,
    policy: str,
    inputs: Any = None,
    weights: Sequence[Any] | None = None,
    callable_here: bool = True,
) -> Snapshot:
    """Save the live model and call it on `inputs`, by default random ones of the shapes that the model names.

    Every worker calls this function, because reading per-replica variables is a collective operation. The model gets
    `weights` before, if they are given. `callable_here` is False where an eager call takes minutes, as on a TPU.
    """
    if weights is None:
        weights = model.get_weights()
    else:
        model.set_weights(list(weights))
    failure = None
    try:
        float32_model.save_archive(model, keras, folder / "live.keras")
    except Exception as error:  # noqa: BLE001 - Keras' own saving fails in many ways
        failure = reference.describe(error)
        (folder / "live.keras").unlink(missing_ok=True)
        with contextlib.suppress(Exception):
            float32_model.save_weights(model, keras, folder / KERAS_WEIGHTS)
    outputs, computes, not_called = None, policy_of(model, keras), "its inputs are not known"
    try:
        with float32_model.global_policy(keras.module, policy):
            batch = reference.synthetic_batch(model) if inputs is None else reference.first_rows(inputs, model)
            if callable_here and batch is not None:
                outputs = Reference.of(model, keras, batch, computes)
    except Exception as error:  # noqa: BLE001 - a model with its own train_step may have no `call`
        not_called = reference.describe(error)
    return Snapshot(folder, policy, computes, weights, outputs, failure, not_called)


def export(
    program: ExportedModel,
    keras: Keras,
    job: ResolvedJob,
    example: ExampleSpec | None,
    folder: Path,
    step: int,
    snapshot: Snapshot,
    *,
    metrics: Mapping[str, float] | None = None,
    columns: Columns | None = None,
) -> dict[str, Any]:
    """Write the model of the snapshot into `folder`, completely or not at all; return the content of model.json.

    Call it outside `strategy.scope()`. `example` and `columns`, the features of the records, are None for scripts.
    """
    part = folder.with_name(folder.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    try:
        rebuilds = program.rebuild.get("builder", "script") != "script"
        _write_arrays(part / "weights.npz", program.model, keras, snapshot.weights)
        about: dict[str, Any] = {
            "version": VERSION,
            "name": job.name,
            "keras": {"generation": keras.generation, "version": keras.module.__version__},
            "tensorflow": tf.__version__,
            "rebuild": dict(program.rebuild),
            "inputs": program.rebuild.get("inputs"),
            "label": example.label.name if example and example.label else None,
            "classes": list(example.classes) if example and example.classes else None,
            "preprocess": program.rebuild.get("preprocess"),
            "records": _records(columns) if columns else None,
            "losses": {name: loss._asdict() for name, loss in program.losses.items()},
            "trainedUnder": job.precision.policy,
            "step": step,
            "metrics": {name: json_value(value) for name, value in (metrics or {}).items()},
        }
        (part / "model.json").write_text(json.dumps(about) + "\n", encoding="utf-8")
        for entry_point in {*_entry_points(program.rebuild), job.data.preprocess if job.data else ""}:
            if ":" in entry_point:
                _copy_source(entry_point.partition(":")[0], part / "source")
        forms = _Forms(program, keras, snapshot, part)
        forms.write_keras_file()
        if rebuilds:
            forms.write_rebuild()
        # On several workers the others have left by now, so that the live model's variables cannot be read.
        if job.export.format in FORMS:
            forms.write_for_serving(job.export.format, live=job.workers == 1)
        if not forms.formats:
            forms.write_for_serving(SAVED_MODEL, live=job.workers == 1)
        if not {KERAS_FILE, REBUILD} & set(forms.formats):
            forms.write_keras_weights()
        about |= {
            "policy": forms.policy,
            "main": forms.formats[0] if forms.formats else "weights.npz",
            "formats": forms.formats,
            "leftOut": forms.left_out,
            "recipe": _RECIPE if REBUILD in forms.formats else None,
        }
        (part / "model.json").write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)
        part.replace(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return about


def _write_arrays(path: Path, model: Any, keras: Keras, weights: Sequence[Any]) -> None:
    names: list[str] = []
    for weight in model.weights:
        if keras.legacy and not isinstance(weight, tf.Variable):
            # The table of a lookup layer.
            names += [type(weight).__name__] * weight.num_tensors
        else:
            # Only these attributes are safe: a distributed variable looks up a missing one in its value.
            names.append(weight.name if keras.legacy else weight.path)
    keys = [f"{number:05d} {name}" for number, name in enumerate(names)]
    # NumPy alone reads neither objects nor bfloat16.
    dtypes = {"object": "S", "bfloat16": "float32"}
    arrays = [np.asarray(array).astype(dtypes.get(array.dtype.name, array.dtype)) for array in weights]
    np.savez(path, allow_pickle=False, **dict(zip(keys, arrays, strict=True)))


@dataclass
class _Forms:
    """The forms of the model in `folder`: `formats` equal the live model, `left_out` do not, each with the reason."""

    _program: ExportedModel
    _keras: Keras
    _snapshot: Snapshot
    _folder: Path

    def __post_init__(self) -> None:
        # A copy that equals the live model, and its outputs if they are float32's.
        self._copy: Any = None
        self._exact: Reference | None = None
        self.policy = "float32"
        self.formats: list[str] = []
        self.left_out: dict[str, str] = {}

    def write_keras_file(self) -> None:
        """Write model.keras: the live model's archive under float32, else as it is."""
        target = self._folder / KERAS_FILE
        verified = write_keras_file(self._program.model, self._keras, self._snapshot, target)
        self._note(KERAS_FILE, verified)

    def write_rebuild(self) -> None:
        """Write rebuild.py, if the model that it builds equals the live one."""
        (self._folder / REBUILD).write_text(_rebuild_source(), encoding="utf-8")
        verified = _verify(
            self._build_again, self._keras, self._snapshot, self._snapshot.computes != "float32", self._exact
        )
        if verified.policy != "float32" and not verified.failure:
            # It builds under float32 alone.
            verified = replace(verified, failure=f"it equals the trained model only under {verified.policy}")
        self._note(REBUILD, verified)
        if verified.failure:
            (self._folder / REBUILD).unlink()

    def _build_again(self, live: bool) -> Any:
        if not live:
            return load_model(self._folder)
        with float32_model.global_policy(self._keras.module, self._snapshot.policy):
            copy = build_model(self._keras.module, self._program.rebuild)
        copy.set_weights(list(self._snapshot.weights))
        return copy

    def write_for_serving(self, name: str, *, live: bool) -> None:
        """Write a form of `FORMS` from the copy, else from the live model if it is readable here."""
        form = FORMS[name]
        target, failure = self._folder / form.path, "only a copy can be exported on several workers"
        options: dict[str, Any] = {} if self._keras.legacy else {"verbose": False}
        options |= {} if name == SAVED_MODEL else {"format": name}
        sources = [] if self._copy is None else [(self._copy, self._exact or self._snapshot.reference, self.policy)]
        if live:
            sources.append((self._program.model, self._snapshot.reference, self._snapshot.computes))
        for model, expected, policy in sources:
            form.delete(self._folder)
            try:
                with float32_model.quiet(), float32_model.global_policy(self._keras.module, policy):
                    model.export(str(target), **options)
                serve = form.load(target)
            except Exception as error:  # noqa: BLE001 - Keras and TensorFlow raise anything
                failure = f"Keras cannot export it: {reference.describe(error)}"
                continue
            difference = expected.difference(serve) if expected else None
            if difference is None:
                self.policy = policy
                # What `load` and `mptj predict` open comes first.
                self.formats.insert(0 if name == SAVED_MODEL else len(self.formats), form.path)
                return
            failure = difference
        form.delete(self._folder)
        self.left_out[form.path] = failure

    def write_keras_weights(self) -> None:
        """Write the live model's weights in Keras' format, with the state that layers save themselves."""
        archive = self._snapshot.archive
        if archive.exists():
            with zipfile.ZipFile(archive) as file:
                file.extract(KERAS_WEIGHTS, self._folder)
        elif (self._snapshot.folder / KERAS_WEIGHTS).exists():
            shutil.copyfile(self._snapshot.folder / KERAS_WEIGHTS, self._folder / KERAS_WEIGHTS)

    def _note(self, name: str, verified: _Verified) -> None:
        if verified.failure is not None:
            self.left_out[name] = verified.failure
            return
        self.formats.append(name)
        if self._copy is None:
            self._copy, self.policy, self._exact = verified.model, verified.policy, verified.exact


@dataclass(frozen=True)
class _Verified:
    """A copy that equals the live model, or the reason why there is none; `exact` are its outputs under float32."""

    model: Any = None
    policy: str = "float32"
    failure: str | None = None
    exact: Reference | None = None


def write_keras_file(model: Any, keras: Keras, snapshot: Snapshot, target: Path) -> _Verified:
    """Write the archive of the live model under float32, or as it is if only that equals the model.

    The file is absent if neither does.
    """
    if snapshot.failure is not None:
        return _Verified(failure=f"Keras cannot save the model: {snapshot.failure}")
    mixed = float32_model.write_float32_archive(snapshot.archive, target)
    objects = own_objects(model, keras)

    def load_again(live: bool) -> Any:
        if live:
            return float32_model.load_archive(snapshot.archive, keras, snapshot.policy, objects)
        return float32_model.load_archive(target, keras, "float32", objects)

    verified = _verify(load_again, keras, snapshot, mixed)
    if verified.failure is not None:
        target.unlink()
    elif verified.policy != "float32":
        shutil.copyfile(snapshot.archive, target)
    return verified


def _verify(
    make: Callable[[bool], Any], keras: Keras, snapshot: Snapshot, mixed: bool, exact: Reference | None = None
) -> _Verified:
    """Compare the copies that `make` returns, with the policies of the live model or under float32, with the model.

    If the policies are `mixed`, both are compared; with `exact`, the outputs of an equal copy under float32, only the
    copy under float32.
    """
    live = snapshot.reference

    def differs(copy: Any, expected: Reference | None, *, rounded: bool = False) -> str | None:
        return (
            expected.difference(lambda inputs: reference.call(copy, keras, inputs), rounded=rounded)
            if expected
            else None
        )

    both = mixed and exact is None
    try:
        copy = make(both)
    except Exception as error:  # noqa: BLE001 - Keras and the user's code raise anything
        return _Verified(failure=f"it cannot be loaded again: {reference.describe(error)}")
    failure = differs(copy, exact or live)
    if failure is not None:
        return _Verified(failure=failure)
    if not both:
        return _Verified(copy, exact=exact or live)
    # One copy at a time is in memory.
    del copy
    with contextlib.suppress(Exception):
        single = make(False)
        if differs(single, live, rounded=True) is None:
            return _Verified(single, exact=live and Reference.of(single, keras, live.inputs, "float32"))
    return _Verified(make(True), snapshot.computes)


def _entry_points(rebuild: Mapping[str, Any]) -> Iterator[str]:
    """Yield the functions that build the model, and its preprocessing if that is a function with a name."""
    yield str(rebuild.get("preprocess") or "")
    if rebuild.get("builder") == "function":
        yield rebuild["arguments"]["entryPoint"]
    for member in rebuild["arguments"]["members"] if rebuild.get("builder") == "ensemble" else ():
        yield from _entry_points(member)


def _records(columns: Columns) -> dict[str, Any]:
    """Return the features of the records that the model was trained on, for `mptj predict`."""
    return {
        "features": [feature.to_document() for feature in to_features(columns.columns)],
        "labels": list(columns.labels),
        "sampleWeight": columns.weight,
    }


def load(folder: Path) -> Any:
    """Return the exported model, from the form that model.json names: `model.keras`, else rebuilt.

    Another version of Keras rebuilds. Raise InvalidData if the folder has no such form, and the program's own error if
    the rebuild fails.
    """
    try:
        about = json.loads((folder / "model.json").read_text(encoding="utf-8"))
        keras = importlib.import_module("tf_keras" if about["keras"]["generation"] == "Legacy" else "keras")
        formats = about["formats"]
    except (OSError, ValueError, KeyError):
        raise InvalidData(str(folder), "no exported model here", expected="a folder with model.json") from None
    except ImportError:
        raise InvalidData(str(folder), "exported by tf_keras", next_step="pip install tf-keras") from None
    same = keras.__version__ == about["keras"]["version"]
    if KERAS_FILE in formats and (same or REBUILD not in formats):
        # Keras opens a user-defined class only after the program has defined it; then `load_model` rebuilds the model.
        with contextlib.suppress(TypeError, ValueError) if REBUILD in formats else contextlib.nullcontext():
            return float32_model.load_archive(
                folder / KERAS_FILE, Keras(keras, about["keras"]["generation"]), "float32"
            )
    if REBUILD not in formats:
        raise InvalidData(
            str(folder),
            f"no form that Keras opens; it has {', '.join(formats) or 'the weights alone'}",
            next_step="Build the model by its program, and load weights.npz or model.weights.h5.",
        )
    return load_model(folder)


def build_model(keras: Any, rebuild: Mapping[str, Any]) -> Any:
    """Return the untrained model that `rebuild` of model.json describes, under the current global policy."""
    builders: dict[str, Any] = {"mlp": mlp, "cnn": cnn, "pretrained": pretrained}
    if rebuild["builder"] == "ensemble":
        arguments = rebuild["arguments"]
        models = [build_model(keras, member) for member in arguments["members"]]
        return average_models(keras, models, arguments["inputs"], arguments["weights"])
    if rebuild["builder"] in builders:
        return builders[rebuild["builder"]](keras, **rebuild["arguments"])
    module, _, name = rebuild["arguments"]["entryPoint"].partition(":")
    function = getattr(importlib.import_module(module), name)
    returned = function(**fill_hyperparameters(function, rebuild["arguments"].get("arguments", {})))
    model = returned["model"] if isinstance(returned, dict) else returned
    if not model.built or not model.weights:
        batch = {
            spec["name"]: np.zeros((1, *(size or 32 for size in spec["shape"])), spec["dtype"].replace("string", "S"))
            for spec in rebuild["inputs"]
        }
        for spec in rebuild["inputs"]:
            if spec.get("ragged"):
                ragged = importlib.import_module("tensorflow").RaggedTensor
                batch[spec["name"]] = ragged.from_tensor(batch[spec["name"]])
        model(batch if len(batch) > 1 else next(iter(batch.values())))
    return model


def average_models(keras: Any, models: Any, inputs: Any, weights: Any) -> Any:
    """Return the weighted mean of the models' outputs."""
    entries = {
        spec["name"]: keras.Input(tuple(spec["shape"]), dtype=spec["dtype"], name=spec["name"]) for spec in inputs
    }
    entry = entries if len(entries) > 1 else next(iter(entries.values()))
    results = []
    for number, model in enumerate(models):
        # Nested models need different names.
        setattr(model, "_name" if keras.__name__ == "tf_keras" else "name", f"member_{number}")
        results.append(model([entries[spec["name"]] for spec in inputs] if takes_list(model) else entry))

    def mean(name: Any, outputs: Any) -> Any:
        scaled = [
            keras.layers.Rescaling(weight, dtype="float32")(output)
            for weight, output in zip(weights, outputs, strict=True)
        ]
        return keras.layers.Add(name=name, dtype="float32")(scaled)

    first = results[0]
    outputs: Any
    if isinstance(first, dict):
        outputs = {name: mean(name, [output[name] for output in results]) for name in first}
    elif isinstance(first, (list, tuple)):
        # A loss by output needs the names of the members' outputs.
        names = getattr(models[0], "output_names", [None] * len(first))
        outputs = [mean(name, list(members)) for name, members in zip(names, zip(*results, strict=True), strict=True)]
    else:
        outputs = mean("mean", results)
    return keras.Model(entry, outputs, name="ensemble")


def takes_list(model: Any) -> bool:
    """Return whether the model's inputs are a list, and not one tensor or a dict by name."""
    try:
        return isinstance(model.input, (list, tuple))
    except (AttributeError, ValueError, RuntimeError):
        return False


def load_model(folder: Any = None) -> Any:
    """Return the trained model of this folder, built by plain Keras under float32, with weights from weights.npz."""
    folder = Path(folder or Path(__file__).parent)
    about = json.loads((folder / "model.json").read_text(encoding="utf-8"))
    keras = importlib.import_module("tf_keras" if about["keras"]["generation"] == "Legacy" else "keras")
    before = keras.mixed_precision.global_policy()
    keras.mixed_precision.set_global_policy("float32")
    sys.path.insert(0, str(folder / "source"))
    try:
        model = build_model(keras, about["rebuild"])
    finally:
        sys.path.remove(str(folder / "source"))
        keras.mixed_precision.set_global_policy(before)
    with np.load(folder / "weights.npz") as arrays:
        model.set_weights([arrays[key] for key in arrays.files])
    return model


def _rebuild_source() -> str:
    head = (
        '"""Builds the trained model of this folder with plain Keras: `from rebuild import load_model`."""\n\n'
        "from __future__ import annotations\n\n"
        "import importlib\nimport inspect\nimport json\nimport sys\nfrom pathlib import Path\n\nimport numpy as np\n"
    )
    parts = (mlp, cnn, pretrained, fill_hyperparameters, build_model, average_models, takes_list, load_model)
    functions = "\n\n".join(inspect.getsource(part) for part in parts)
    return f'{head}\n\n{functions}\n\nif __name__ == "__main__":\n    load_model().summary()\n'


def _copy_source(name: str, target: Path) -> None:
    """Copy the Python files of the source that the program imported; other files of the folder may be unrelated."""
    file = Path(getattr(sys.modules.get(name), "__file__", None) or "")
    if file.suffix != ".py" or "site-packages" in file.parts:
        return
    root = file.parents[name.count(".") + (file.name == "__init__.py")]
    files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    imported = {Path(name) for name in files if name}
    ours = [path for path in imported if path.suffix == ".py" and path.is_relative_to(root) and _is_source(path, root)]
    if sum(path.stat().st_size for path in ours) > _LARGEST_SOURCE:
        ours = [file]
    for path in ours:
        copied = target / path.relative_to(root)
        copied.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copied)


def _is_source(path: Path, root: Path) -> bool:
    """Return whether the file is the program's own and not of a virtual environment in the same folder."""
    below = path.relative_to(root).parts
    return "site-packages" not in below and not any(part.startswith(".") for part in below)


def publish(
    worker: Worker,
    program: ExportedModel,
    keras: Keras,
    example: ExampleSpec | None,
    step: int,
    metrics: Mapping[str, float],
    snapshot: Snapshot,
    columns: Columns | None = None,
) -> str:
    """Export the model of the snapshot in place of an earlier export; return its path in the run folder.

    Raise Superseded, before any write, if a newer attempt has claimed the folder.
    """
    with tempfile.TemporaryDirectory(prefix="mptraining-") as scratch:
        folder = Path(scratch, run_folder.MODEL)
        about = export(program, keras, worker.job, example, folder, step, snapshot, metrics=metrics, columns=columns)
        target = storage.join(worker.folder, run_folder.MODEL)
        to = {
            path: storage.join(target, path.relative_to(folder).as_posix())
            for path in folder.rglob("*")
            if path.is_file()
        }
        # model.json marks the export as complete: it is deleted first and uploaded last.
        last = folder / "model.json"
        if worker.fence is not None:
            worker.fence.check()
        storage.delete(to[last])
        storage.delete_prefix(target)
        transfers.upload({path: uri for path, uri in to.items() if path != last})
        storage.upload(last, to[last])
    _warn(worker, about, snapshot)
    return run_folder.MODEL


def _warn(worker: Worker, about: Mapping[str, Any], snapshot: Snapshot) -> None:
    notice = worker.telemetry.notice
    for name, reason in about["leftOut"].items():
        notice("FormatLeftOut", f"model/ has no {name}: {reason}", level="Warning")
    if about["formats"] and about["policy"] != "float32":
        notice("NotFloat32", f"the exported model computes under {about['policy']}", level="Warning")
    if not {KERAS_FILE, REBUILD} & set(about["formats"]):
        notice(
            "OnlyWeights",
            f"Keras cannot load this model again, so its weights{' and a SavedModel' if about['formats'] else ''} are "
            "exported; classes with get_config and @keras.saving.register_keras_serializable() can be loaded",
            level="Warning",
        )
    if snapshot.reference is None and about["formats"]:
        why = snapshot.not_called
        notice("NotCompared", f"the exported model was loaded again, and not compared with the trained one: {why}")
