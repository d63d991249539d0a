"""Export of the trained model as float32 files under any training policy, in forms that several Keras versions read.

model/
├── model.keras          for the same version of Keras, `keras.models.load_model`
├── saved_model/         for serving, if the job asks for it
├── model.weights.h5     Keras' own weights file
├── weights.npz          the same arrays in order, readable with NumPy alone
├── model.json           description of the model and of its rebuild
├── rebuild.py           plain Keras: `from rebuild import load_model`; works where model.keras cannot be opened
└── source/              the program's own modules, if they are small
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import io
import json
import shutil
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from mptraining_api import run_folder
from mptraining_api.model import json_value
from mptraining_api.problems import InvalidData, Problem
from mptraining_api.resolved_job import ResolvedJob
from mptraining_records.storage import storage, transfers
from mptraining_trainer.data.schema import Columns, ExampleSpec, to_features
from mptraining_trainer.export.float32_model import rebuild_from_config, switch_to_float32
from mptraining_trainer.keras_backend import Keras
from mptraining_trainer.model.applications import cnn, mlp, pretrained
from mptraining_trainer.model.hyperparameters import fill_hyperparameters
from mptraining_trainer.model.output_losses import output_losses
from mptraining_trainer.model.program import Program
from mptraining_trainer.worker import Worker

VERSION = 1
_LARGEST_SOURCE = 1 << 20
_RECIPE = (
    "cd model                            # this folder",
    "python                              # with keras (Legacy: tf_keras) and numpy",
    ">>> from rebuild import load_model",
    ">>> model = load_model()            # rebuilt under float32, weights from weights.npz",
    ">>> model(examples)                 # examples as `inputs` says, after `preprocess`",
)


def export(
    program: Program,
    keras: Keras,
    job: ResolvedJob,
    example: ExampleSpec | None,
    folder: Path,
    step: int,
    *,
    metrics: Mapping[str, float] | None = None,
    weights: Sequence[Any] | None = None,
    columns: Columns | None = None,
) -> str:
    """Write the model into `folder`, completely or not at all; return the name of its main file.

    Call it outside `strategy.scope()`. `weights` are arrays in the order of `model.get_weights()`; pass them if reading
    the model's own is a collective operation. For the same reason, only `weights` are written of a script's model on
    several workers that Keras cannot rebuild. `example` and `columns`, the features of the records, are None for
    scripts. Raise Problem if Keras can neither copy nor save the model.
    """
    arrays = list(program.model.get_weights() if weights is None else weights)
    part = folder.with_name(folder.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    try:
        model, policy = float32_copy(program.model, keras, program.rebuild, arrays, readable=job.processes == 1)
        main = "weights.npz" if model is None else _write_model(model, keras, job, part)
        if model is not None and not _write_weights(model, part / "model.weights.h5", program) and "h5" in main:
            main = "weights.npz"
        rebuilds = model is not None and program.rebuild.get("builder") != "script"
        of = program.model if model is None else model
        # Only these attributes are safe: a distributed variable looks up a missing one in its value, a collective read.
        names = [variable.name if keras.legacy else variable.path for variable in of.weights]
        keys = [f"{number:05d} {name}" for number, name in enumerate(names)]
        np.savez(part / "weights.npz", allow_pickle=False, **dict(zip(keys, arrays, strict=True)))
        about = {
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
            "losses": {name: one._asdict() for name, one in output_losses(program.compiled).items()},
            "trainedUnder": job.precision.policy,
            "policy": policy,
            "main": main,
            "step": step,
            "metrics": {name: json_value(value) for name, value in (metrics or {}).items()},
            "recipe": _RECIPE if rebuilds else None,
        }
        (part / "model.json").write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
        if rebuilds:
            (part / "rebuild.py").write_text(_rebuild_source(), encoding="utf-8")
        for entry_point in {*_entry_points(program.rebuild), job.data.preprocess if job.data else ""}:
            if ":" in entry_point:
                _copy_source(entry_point.partition(":")[0], part / "source")
        shutil.rmtree(folder, ignore_errors=True)
        part.replace(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return main


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
        "features": [each.to_document() for each in to_features(columns.columns)],
        "labels": list(columns.labels),
        "sampleWeight": columns.weight,
    }


def load(folder: Path) -> Any:
    """Return the exported model under float32, from `model.keras` if it opens, else rebuilt.

    Raise InvalidData if the folder has no model, and the program's own error if the rebuild fails.
    """
    try:
        about = json.loads((folder / "model.json").read_text(encoding="utf-8"))
        keras = importlib.import_module("tf_keras" if about["keras"]["generation"] == "Legacy" else "keras")
    except (OSError, ValueError, KeyError):
        raise InvalidData(str(folder), "no exported model here", expected="a folder with model.json") from None
    except ImportError:
        raise InvalidData(str(folder), "exported by tf_keras", next_step="pip install tf-keras") from None
    same = keras.__version__ == about["keras"]["version"]
    if (folder / "model.keras").exists() and (same or about["rebuild"].get("builder") in (None, "script")):
        # Keras opens a user-defined class only after the program has defined it; then `load_model` rebuilds the model.
        with contextlib.suppress(TypeError, ValueError), under_float32(keras):
            return keras.models.load_model(folder / "model.keras", compile=False)
    return load_model(folder)


def float32_copy(
    model: Any, keras: Keras, rebuild: Mapping[str, Any], arrays: Sequence[Any], *, readable: bool = True
) -> tuple[Any, str]:
    """Return a float32 copy of the model with these weights, and the copy's actual policy.

    The copy is built from the model's configuration, else by the program's builder. A script's model that Keras cannot
    rebuild is itself switched to float32. The copy is None if that model's variables are not `readable` by this process
    alone, and for a model with its own `train_step` that cannot be built.
    """
    with under_float32(keras.module):
        with contextlib.suppress(Exception):
            return rebuild_from_config(model, keras, replace_mixed_policies(model.get_config()), arrays), "float32"
        if rebuild.get("builder", "script") == "script":
            return (model, switch_to_float32(model, keras)) if readable else (None, "float32")
        try:
            copy = build_model(keras.module, rebuild)
        except Exception:
            if "train_step" not in keras.own_steps(model):
                raise
            # Its own step calls its parts directly: it may have no `call`, so only its weights can be exported.
            return None, "float32"
        try:
            copy.set_weights(list(arrays))
        except ValueError as error:
            raise Problem("spec.program", f"built again under float32, the model has other weights: {error}") from error
        return copy, "float32"


@contextlib.contextmanager
def under_float32(keras: Any) -> Iterator[None]:
    """Set the global policy to float32 in the block."""
    before = keras.mixed_precision.global_policy()
    keras.mixed_precision.set_global_policy("float32")
    try:
        yield
    finally:
        keras.mixed_precision.set_global_policy(before)


def replace_mixed_policies(config: Any) -> Any:
    """Return a Keras configuration with every mixed policy replaced by float32."""
    if isinstance(config, Mapping):
        name = (config.get("config") or {}).get("name") if "class_name" in config else None
        if config.get("class_name") in ("DTypePolicy", "Policy") and str(name).startswith("mixed_"):
            return {**config, "config": {**config["config"], "name": "float32"}}
        return {key: replace_mixed_policies(value) for key, value in config.items()}
    if isinstance(config, (list, tuple)):
        return type(config)(replace_mixed_policies(value) for value in config)
    return "float32" if isinstance(config, str) and config in ("mixed_float16", "mixed_bfloat16") else config


def build_model(keras: Any, rebuild: Mapping[str, Any]) -> Any:
    """Return the untrained model that `rebuild` of model.json describes, under the current global policy."""
    builders: dict[str, Any] = {"mlp": mlp, "cnn": cnn, "pretrained": pretrained}
    if rebuild["builder"] == "ensemble":
        arguments = rebuild["arguments"]
        models = [build_model(keras, member) for member in arguments["members"]]
        return average_models(keras, models, arguments["inputs"], arguments["weights"], arguments["activations"])
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


def average_models(keras: Any, models: Any, inputs: Any, weights: Any, activations: Any) -> Any:
    """Return the weighted mean of the models' outputs.

    `activations` has a dict by output for each model, which is applied to that model's outputs before.
    """
    entries = {
        spec["name"]: keras.Input(tuple(spec["shape"]), dtype=spec["dtype"], name=spec["name"]) for spec in inputs
    }
    entry = entries if len(entries) > 1 else next(iter(entries.values()))
    found = []
    for number, model in enumerate(models):
        # Nested models need different names.
        setattr(model, "_name" if keras.__name__ == "tf_keras" else "name", f"member_{number}")
        found.append(model([entries[spec["name"]] for spec in inputs] if takes_list(model) else entry))

    def mean(name: Any, outputs: Any) -> Any:
        scaled = []
        for weight, by_output, output in zip(weights, activations, outputs, strict=True):
            needed = by_output.get(name)
            activated = keras.layers.Activation(needed, dtype="float32")(output) if needed else output
            scaled.append(keras.layers.Rescaling(weight, dtype="float32")(activated))
        return keras.layers.Add(name=name or "mean", dtype="float32")(scaled)

    first = found[0]
    outputs: Any
    if isinstance(first, dict):
        single = len(first) == 1
        outputs = {name: mean("" if single else name, [each[name] for each in found]) for name in first}
    elif isinstance(first, (list, tuple)):
        names = list(activations[0]) if len(activations[0]) == len(first) else [None] * len(first)
        outputs = [mean(name, list(each)) for name, each in zip(names, zip(*found, strict=True), strict=True)]
    else:
        outputs = mean("", found)
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


def _write_weights(model: Any, path: Path, program: Program) -> bool:
    """Return whether Keras could write its weights file; a failure is an error except for a script's model."""
    try:
        model.save_weights(str(path))
    except Exception:
        path.unlink(missing_ok=True)
        if program.rebuild.get("builder") != "script":
            raise
        return False
    return True


def _write_model(model: Any, keras: Keras, job: ResolvedJob, part: Path) -> str:
    # tf_keras prints a message on standard output, which is reserved for Events.
    with contextlib.redirect_stdout(io.StringIO()):
        # A model that Keras cannot serialize is exported as weights and the program that builds it.
        with contextlib.suppress(Exception), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.save(str(part / "unfinished.keras"))
            (part / "unfinished.keras").replace(part / "model.keras")
        (part / "unfinished.keras").unlink(missing_ok=True)
        if job.export.format == "saved_model":
            try:
                model.export(str(part / "saved_model"), **({} if keras.legacy else {"verbose": False}))
            except Exception as error:
                raise Problem("spec.export.format", f"the model cannot be a SavedModel: {error}") from error
            return "saved_model"
    return "model.keras" if (part / "model.keras").exists() else "model.weights.h5"


def _rebuild_source() -> str:
    head = (
        '"""Builds the trained model of this folder with plain Keras: `from rebuild import load_model`."""\n\n'
        "from __future__ import annotations\n\n"
        "import importlib\nimport inspect\nimport json\nimport sys\nfrom pathlib import Path\n\nimport numpy as np\n"
    )
    parts = (mlp, cnn, pretrained, fill_hyperparameters, build_model, average_models, takes_list, load_model)
    functions = "\n\n".join(inspect.getsource(each) for each in parts)
    return f'{head}\n\n{functions}\n\nif __name__ == "__main__":\n    load_model().summary()\n'


def _copy_source(name: str, target: Path) -> None:
    """Copy the Python files of the source that the program imported; other files of the folder may be unrelated."""
    file = Path(getattr(sys.modules.get(name), "__file__", None) or "")
    if file.suffix != ".py" or "site-packages" in file.parts:
        return
    root = file.parents[name.count(".") + (file.name == "__init__.py")]
    imported = {Path(found) for module in list(sys.modules.values()) if (found := getattr(module, "__file__", None))}
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
    program: Program,
    keras: Keras,
    example: ExampleSpec | None,
    step: int,
    metrics: Mapping[str, float],
    weights: Sequence[Any],
    columns: Columns | None = None,
) -> str:
    """Export the model with `weights` (in the order of `model.get_weights()`); return its path in the run folder.

    Raise Superseded, before any write, if a newer attempt has claimed the folder.
    """
    with tempfile.TemporaryDirectory(prefix="mptraining-") as scratch:
        folder = Path(scratch, run_folder.MODEL)
        export(program, keras, worker.job, example, folder, step, metrics=metrics, weights=weights, columns=columns)
        to = {
            path: storage.join(worker.folder, run_folder.MODEL, path.relative_to(folder).as_posix())
            for path in folder.rglob("*")
            if path.is_file()
        }
        # model.json is uploaded last: it marks the export as complete.
        last = folder / "model.json"
        if worker.fence is not None:
            worker.fence.check()
        transfers.upload({path: uri for path, uri in to.items() if path != last})
        storage.upload(last, to[last])
    return run_folder.MODEL
