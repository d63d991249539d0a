"""Training of a model and data of this process in a job: `tensorflow_cloud.tuner.cloud_fit_client.cloud_fit`.

    model, fit arguments ──► remote_dir/model…, training_assets/ ──► a script that loads them and calls fit
                             remote_dir/checkpoint…, output…, run/ ◄──

All files are in formats of TensorFlow, Keras, NumPy and JSON. Nothing is pickled: built-in Keras callbacks are sent as
their constructor arguments and attributes.
"""

from __future__ import annotations

import io
import json
import secrets
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from mptraining.job_file.paths import absolute_path
from mptraining.packaging.package import SourceFile, build_package
from mptraining.tensorflow_cloud_compat.arguments import InvalidArgument, RunArguments, check_arguments
from mptraining.tensorflow_cloud_compat.job import job_name
from mptraining.tensorflow_cloud_compat.run import Shipped, Target, launch
from mptraining_api.problems import InvalidProgram
from mptraining_api.tensorflow_cloud.machine_configs import AcceleratorType, MachineConfig

if TYPE_CHECKING:
    from mptraining.cluster.job import Job
    from mptraining.local.job import LocalJob

STRATEGIES = ("MultiWorkerMirroredStrategy", "MirroredStrategy")
# tensorflow-cloud's default job: a master and one worker of this AI Platform machine type.
_DEFAULT_MACHINE = "n1-standard-4"
_DEFAULT_WORKERS = 1
_MEMORY_GB_PER_CORE = 3.75
# The callbacks that can be sent, with the required arguments of their constructors.
CALLBACKS: dict[str, tuple[str, ...]] = {
    "CSVLogger": ("filename",),
    "EarlyStopping": (),
    "ModelCheckpoint": ("filepath", "save_weights_only"),
    "ReduceLROnPlateau": (),
    "TensorBoard": (),
    "TerminateOnNaN": (),
}
_PROGRAM = "cloud_fit_program.py"
_ASSETS = "training_assets"

Generation = Literal["Keras3", "Legacy"]


class JobId(str):
    """The job's name, as tensorflow-cloud returns it, with the job as an attribute."""

    job: Job | LocalJob


def fit_in_job(
    model: Any,
    remote_dir: str,
    *,
    distribution_strategy: str,
    job_spec: Mapping[str, Any] | None,
    job_id: str | None,
    unused: Mapping[str, object],
    fit_arguments: Mapping[str, Any],
) -> JobId:
    """Write model and arguments, submit the job, and return its name. `unused` are arguments for AI Platform only.

    Raises ValueError for an unsupported strategy, TypeError and NotImplementedError for data that cannot be written,
    and Problem.
    """
    if distribution_strategy not in STRATEGIES:
        raise ValueError(f"{distribution_strategy} is not supported. Supported Strategies are {list(STRATEGIES)}")
    generation = keras_generation(model)
    if getattr(model, "optimizer", None) is None:
        step = "Call model.compile(optimizer, loss) before cloud_fit."
        raise InvalidProgram("model", "it is not compiled", next_step=step)
    target = Target(name=None, output=None, spec={}, where=None, backend=None)
    folder = _remote(remote_dir, local=target.local)
    arguments, notes = _arguments(job_spec, distribution_strategy, generation)
    notes += [f"{name} is not used: the job goes into your cluster" for name, value in unused.items() if value]
    write_assets(model, folder, generation, dict(fit_arguments))
    name = (job_id or (job_spec or {}).get("job_id")) or ""
    target = Target(
        name=job_name(name, secrets.token_hex(3)) if name else None,
        output=f"{folder}/run",
        # The layers were created with their policy, so the job must use the same one.
        spec={"keras": generation, "precision": {"policy": _policy(model)}},
        where=None,
        backend=None,
    )
    text = Path(__file__).with_name(_PROGRAM).read_text(encoding="utf-8")
    program = {"script": {"path": _PROGRAM, "arguments": ["--remote_dir", folder]}}
    shipped = Shipped(build_package([SourceFile.of_text(_PROGRAM, text)], program=program, notes=notes), "cloud-fit")
    job = launch(arguments, shipped, target, stream_logs=False)
    made = JobId(job["job_id"])
    made.job = job
    return made


def keras_generation(model: Any) -> Generation:
    """Return the Keras generation of a model. Raises TypeError for other objects."""
    roots = {each.__module__.partition(".")[0] for each in type(model).__mro__ if each.__name__ == "Model"}
    if roots & {"tf_keras", "keras"}:
        return "Legacy" if "tf_keras" in roots else "Keras3"
    raise TypeError(f"Invalid `model` input. Expected a compiled keras.Model. Received {type(model).__name__}.")


def write_assets(model: Any, folder: str, generation: Generation, arguments: dict[str, Any]) -> None:
    """Write the model, the data and the callbacks to `folder`; raise for unsupported ones before writing anything."""
    import tensorflow as tf

    callbacks = list(arguments.pop("callbacks", None) or [])
    described_callbacks = [_described(each) for each in callbacks]
    arrays: dict[str, Any] = {}
    datasets: dict[str, Any] = {}
    encoded = {name: _written(name, value, arrays, datasets) for name, value in arguments.items()}
    if generation == "Keras3":
        _refuse_own_classes(model)
    ending = ".keras" if generation == "Keras3" else ""
    own = any("ModelCheckpoint" in (base.__name__ for base in type(each).__mro__) for each in callbacks)
    described = {
        "arguments": encoded,
        "arrays": bool(arrays),
        "datasets": bool(datasets),
        "callbacks": described_callbacks,
        "model": f"model{ending}",
        "saves": [f"{each}{ending}" for each in ("output", *(() if own else ("checkpoint",)))],
    }
    tf.io.gfile.makedirs(f"{folder}/{_ASSETS}")
    if arrays:
        import numpy as np

        buffer = io.BytesIO()
        np.savez(buffer, **arrays)
        _put(f"{folder}/{_ASSETS}/arrays.npz", buffer.getvalue())
    if datasets:
        tf.saved_model.save(_module(datasets), f"{folder}/{_ASSETS}/datasets", signatures={})
    _put(f"{folder}/{_ASSETS}/fit.json", json.dumps(described).encode())
    model.save(f"{folder}/model{ending}")


def _put(file: str, content: bytes) -> None:
    import tensorflow as tf

    with tf.io.gfile.GFile(file, "wb") as opened:
        opened.write(content)


def _module(datasets: Mapping[str, Any]) -> Any:
    """Return a module whose functions return the data sets; a SavedModel of it holds their graphs and tensors."""
    import tensorflow as tf

    def returning(dataset: Any) -> Any:
        return tf.function(lambda: dataset, input_signature=())

    module = tf.Module()
    for name, each in datasets.items():
        # The attribute tracks the data set; otherwise its tensors would not be saved.
        setattr(module, f"_{name}", each)
        setattr(module, name, returning(each))
    return module


def _written(name: str, value: Any, arrays: dict[str, Any], datasets: dict[str, Any]) -> list[Any]:
    """Encode a value as [kind, content] for JSON; add arrays and data sets to the mappings."""
    import numpy as np
    import tensorflow as tf

    if value is None or isinstance(value, (bool, int, float, str)):
        return ["value", value]
    if isinstance(value, tf.data.Dataset):
        datasets[f"dataset_{len(datasets)}"] = value
        return ["dataset", f"dataset_{len(datasets) - 1}"]
    if isinstance(value, Generator):
        raise NotImplementedError("Generators are not currently supported!")
    if isinstance(value, np.generic):
        return ["value", value.item()]
    if isinstance(value, np.ndarray) or tf.is_tensor(value):
        found = np.asarray(value)
        if found.dtype.hasobject:
            raise TypeError(f"Invalid `{name}` input. Expected numbers or texts in the array. Received objects.")
        arrays[f"array_{len(arrays)}"] = found
        return ["array", f"array_{len(arrays) - 1}"]
    if isinstance(value, (list, tuple)):
        kind = "list" if isinstance(value, list) else "tuple"
        return [kind, [_written(name, each, arrays, datasets) for each in value]]
    if isinstance(value, Mapping):
        pairs = [[_written(name, each, arrays, datasets) for each in (key, what)] for key, what in value.items()]
        return ["dict", pairs]
    expected = "arrays, tf.data.Dataset, numbers, and lists, tuples and dicts of them"
    raise TypeError(f"Invalid `{name}` input. Expected {expected}. Received {type(value).__name__}.")


def _described(callback: Any) -> dict[str, Any]:
    """Return class, required constructor arguments, and changed attributes of a built-in Keras callback.

    Raises InvalidProgram for any other callback.
    """
    kind = type(callback)
    if kind.__module__.partition(".")[0] not in ("keras", "tf_keras") or kind.__name__ not in CALLBACKS:
        step = "Write it into a script with the model, and call tfc.run(entry_point=…)."
        expected = f"one of Keras' own: {', '.join(CALLBACKS)}"
        raise InvalidProgram("callbacks", f"a {kind.__name__} cannot be sent", expected=expected, next_step=step)
    given = {name: getattr(callback, name) for name in CALLBACKS[kind.__name__]}
    fresh = vars(kind(**given))
    attributes: dict[str, Any] = {}
    for name, value in vars(callback).items():
        # Attributes of other types are created by the constructor or during training.
        found = value.item() if hasattr(value, "item") and not hasattr(value, "nin") else value
        if hasattr(value, "nin"):
            attributes[name] = {"numpy": value.__name__}
        elif (found is None or isinstance(found, (bool, int, float, str))) and found != fresh.get(name):
            attributes[name] = found
    return {"class": kind.__name__, "arguments": given, "attributes": attributes}


def _refuse_own_classes(model: Any) -> None:
    """Raise InvalidProgram for custom layers, losses and metrics, whose code a `.keras` file does not contain."""
    import keras

    own = sorted({*_own(keras.saving.serialize_keras_object(model)), *_own(model.get_compile_config() or {})})
    if own:
        step = (
            "Write the model into a script or a function, and call tfc.run(entry_point=…); or set "
            "TF_USE_LEGACY_KERAS=1 before TensorFlow is imported: tf_keras' SavedModel holds the code as a graph."
        )
        raise InvalidProgram(
            "model", f"{', '.join(own)}: code of your own, which Keras 3 does not save", next_step=step
        )


def _own(config: Any) -> Iterator[str]:
    if isinstance(config, Mapping):
        kind, module = config.get("class_name"), config.get("module")
        if kind in ("function", "__lambda__") and not str(module).startswith("keras"):
            yield str(config.get("config")) if kind == "function" else "a lambda"
        elif kind and config.get("registered_name") and not str(module).startswith("keras"):
            yield str(kind)
        for each in config.values():
            yield from _own(each)
    elif isinstance(config, (list, tuple)):
        for each in config:
            yield from _own(each)


def _policy(model: Any) -> str:
    """Return the mixed-precision policy of the model's layers, or else float32."""
    found = {getattr(getattr(each, "dtype_policy", None), "name", "float32") for each in model.layers}
    return next((name for name in ("mixed_float16", "mixed_bfloat16") if name in found), "float32")


def _remote(remote_dir: str, *, local: bool) -> str:
    if local:
        return absolute_path(str(remote_dir), Path.cwd()).rstrip("/")
    if "://" not in str(remote_dir):
        raise InvalidArgument(
            f"Invalid `remote_dir` input. Expected a folder in a bucket, gs://…, which the job's pods can read. "
            f"Received {remote_dir}."
        )
    return str(remote_dir).rstrip("/")


def _arguments(
    job_spec: Mapping[str, Any] | None, strategy: str, generation: Generation
) -> tuple[RunArguments, list[str]]:
    """Convert AI Platform's job_spec to arguments of `run`; default: two CPU machines, as in tensorflow-cloud."""
    training_input: Mapping[str, Any] = (job_spec or {}).get("trainingInput") or {}
    workers = int(training_input.get("workerCount", _DEFAULT_WORKERS))
    notes = []
    if strategy == "MirroredStrategy":
        workers = 0
    elif workers and generation == "Keras3":
        notes.append(
            f"a model of Keras 3 trains on one node, not on {workers + 1}: for several, set TF_USE_LEGACY_KERAS=1 "
            "before TensorFlow is imported, and run the notebook again"
        )
        workers = 0
    machine = _machine(training_input)
    arguments = check_arguments(
        entry_point=None,
        requirements_txt=None,
        docker_config="auto",
        distribution_strategy="auto",
        chief_config=machine,
        worker_config=machine,
        worker_count=workers,
        entry_point_args=None,
        stream_logs=False,
        job_labels=training_input.get("labels") or (job_spec or {}).get("labels"),
        service_account=None,
    )
    return arguments, notes


def _machine(training_input: Mapping[str, Any]) -> MachineConfig:
    """Convert masterType (such as `n1-standard-4`) and acceleratorConfig to a MachineConfig."""
    type_name = str(training_input.get("masterType", _DEFAULT_MACHINE))
    last = type_name.rpartition("-")[2]
    cores = int(last) if last.isdigit() else None
    memory = None if cores is None else cores * _MEMORY_GB_PER_CORE
    accelerator = (training_input.get("masterConfig") or {}).get("acceleratorConfig") or {}
    if not accelerator:
        return MachineConfig(cores, memory, AcceleratorType.NO_ACCELERATOR, 0)
    name = str(accelerator.get("type"))
    if name not in AcceleratorType.__members__:
        raise InvalidArgument(
            f"Invalid `job_spec` input. Expected one of {', '.join(AcceleratorType.__members__)}. Received {name}."
        )
    return MachineConfig(cores, memory, AcceleratorType[name], int(accelerator.get("count", 1)))
