"""Short forms that people write first, each with the exact line that a job file needs instead."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from mptraining_api import accelerators
from mptraining_api.problems import InvalidSpec
from mptraining_api.validation import keras_names
from mptraining_api.validation.mistakes import FieldPath

# Names of precision policies elsewhere.
POLICIES = {
    **dict.fromkeys(("fp16", "float16", "half", "amp", "mixed", "mixed_fp16", "16", "16-mixed"), "mixed_float16"),
    **dict.fromkeys(("bf16", "bfloat16", "mixed_bf16", "bf16-mixed"), "mixed_bfloat16"),
    **dict.fromkeys(("fp32", "float", "32", "none", "full"), "float32"),
}


def for_value(path: FieldPath, value: object) -> str:
    """Return the line to write instead of `value` at `path`; empty if the value is no known short form."""
    names = [part for part in path if isinstance(part, str)]
    in_list = bool(path) and isinstance(path[-1], int)
    name = names[-1] if names else ""
    if step := _elsewhere(names, value):
        return step
    if isinstance(value, (dict, list)) or value is None:
        return ""
    if name in ("train", "validation") and not in_list:
        return f"Write {name}: [{json.dumps(str(value))}]"
    line = _LINES.get(".".join(names[-2:])) or _LINES.get(name)
    written = line(value) if line else ""
    return f"Write {'- ' if in_list else f'{name}: '}{written}" if written else ""


def _elsewhere(names: list[str], value: object) -> str:
    """Return the sentence about a value that belongs in another field; empty if it is not known."""
    match names:
        case [*_, "workers"] if range_ := _range(value):
            return f"Write elastic: {range_} in spec, without workers."
        case ["runtimes" | "defaultRuntimes", *_] if value == "None":
            return "None is reserved: runtime: None in a job means no runtime. Choose another name."
    return ""


def for_unknown_field(name: str, value: object) -> str:
    """Return the line to write instead of a field that other tools have; empty if it is not known."""
    step = _UNKNOWN.get(name.lower().replace("_", "").replace("-", ""))
    return step(value) if step else ""


def _rate(value: object) -> str:
    rate = value if isinstance(value, (int, float)) else 0.001
    return f"The optimizer has it: optimizer: {{className: Adam, config: {{learning_rate: {rate}}}}}"


def _gpus(value: object) -> str:
    return f"Write accelerator: {{type: t4, countPerWorker: {value if isinstance(value, int) else 1}}}"


def _mixed(value: object) -> str:
    policy = POLICIES.get(str(value).lower(), "mixed_bfloat16" if "b" in str(value).lower() else "mixed_float16")
    return f"Write precision: {{policy: {policy}}} in spec."


_SIDECARS = "Write initContainers; a container with restartPolicy: Always is a sidecar."

# By the field's name in small letters, without separators.
_UNKNOWN: dict[str, Callable[[object], str]] = {
    **dict.fromkeys(("learningrate", "lr"), _rate),
    **dict.fromkeys(("gpu", "gpus", "gpucount", "numgpus"), _gpus),
    **dict.fromkeys(("mixedprecision", "fp16", "amp", "dtype", "policy", "dtypepolicy"), _mixed),
    **dict.fromkeys(
        ("workers", "replicas", "numworkers"),
        lambda value: f"Write workers: {value if isinstance(value, int) else 2} in spec.",
    ),
    "model": lambda value: (
        f"Write program: {{application: {{name: {value if isinstance(value, str) else 'ResNet50'}}}}}"
    ),
    **dict.fromkeys(("sidecars", "sidecar", "containers"), lambda _: _SIDECARS),
}


def _accelerator(value: object) -> str:
    try:
        return f"{{type: {accelerators.canonical_name(str(value))}}}"
    except InvalidSpec:
        return "{type: cpu}"


def _policy(value: object) -> str:
    word = str(value)
    return POLICIES.get(word.lower(), word if word in ("Auto", "Measure", "float32", *POLICIES.values()) else "Auto")


def _batch_size(value: object) -> str:
    return f"{{global: {value}}}" if isinstance(value, int) and not isinstance(value, bool) else "{global: 64}"


def _program(value: object) -> str:
    text = str(value)
    if text.endswith(".py"):
        return f"{{script: {{path: {text}}}}}"
    if re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", text):
        return f"{{function: {{entryPoint: {json.dumps(text)}}}}}"
    return f"{{application: {{name: {keras_names.nearest_name('applications', text) or text}}}}}"


def _object(kind: keras_names.Kind) -> Callable[[object], str]:
    return lambda value: f"{{className: {keras_names.nearest_name(kind, str(value)) or value}}}"


def _metric(value: object) -> str:
    """Return the metric; `accuracy` is that of integer labels, which most data has."""
    named = "SparseCategoricalAccuracy" if str(value).lower() in ("accuracy", "acc") else None
    return f"{{className: {named or keras_names.nearest_name('metrics', str(value)) or value}}}"


def _shuffle(value: object) -> str:
    if isinstance(value, bool):
        return "{mode: Full}" if value else "{mode: None}"
    return f"{{bufferSize: {value}}}" if isinstance(value, int) else f"{{mode: {value}}}"


def _range(value: object) -> str:
    """Return the range of workers that {min: 2, max: 8} or text such as 2-8 means; empty for other values."""
    if isinstance(value, dict):
        return f"{{min: {value.get('min', 1)}, max: {value.get('max', 2)}}}"
    bounds = re.fullmatch(r"\s*(\d+)\s*(?:-|:|,|\.\.|to)\s*(\d+)\s*", value) if isinstance(value, str) else None
    return f"{{min: {bounds[1]}, max: {bounds[2]}}}" if bounds else ""


def _elastic(value: object) -> str:
    most = value if isinstance(value, int) and not isinstance(value, bool) else 8
    return _range(value) or f"{{min: 1, max: {most}}}"


# By the field's name, or by the names of its section and the field where the name alone is not unique.
_LINES: dict[str, Callable[[object], str]] = {
    "batchSize": _batch_size,
    "optimizer": _object("optimizers"),
    "loss": _object("losses"),
    "metrics": lambda value: f"[{_metric(value)}]",
    "precision": lambda value: f"{{policy: {_policy(value)}}}",
    "precision.policy": lambda value: POLICIES.get(str(value).lower(), ""),
    "accelerator": _accelerator,
    "elastic": _elastic,
    "program": _program,
    "application": lambda value: f"{{name: {keras_names.nearest_name('applications', str(value)) or value}}}",
    "function": lambda value: f"{{entryPoint: {json.dumps(str(value))}}}",
    "script": lambda value: f"{{path: {value}}}",
    "spec.data": lambda value: f"{{train: [{json.dumps(str(value))}]}}",
    "output": lambda value: f"{{uri: {json.dumps(str(value))}}}",
    "shuffle": _shuffle,
}
