"""This process: logical CPU devices, one strategy of each kind, and the code and data of a program."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from hack.parity.programs.program import LABEL, SECOND, Program
from hack.parity.programs.source import VALIDATION_ROWS, source
from mptraining_records.convert.convert import convert

Arrays = dict[str, Any]


@dataclass(frozen=True)
class Numbers:
    """The result of a training: the weights, and the reported metrics of each epoch.

    `skipped` says that loss scaling skipped steps. `refused` is the sentence of a refusal before the first step,
    `failed` that of any other end.
    """

    weights: tuple[Any, ...] = ()
    epochs: tuple[dict[str, float], ...] = ()
    skipped: bool = False
    seconds: float = 0.0
    refused: str | None = None
    failed: str | None = None


@contextmanager
def module_of(program: Program, folder: Path) -> Iterator[ModuleType]:
    """Import the program's source as a module in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    name = f"parity_{program.key}"
    file = folder / f"{name}.py"
    file.write_text(source(program), encoding="utf-8")
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
        yield module
    finally:
        sys.modules.pop(name, None)


def arrays_of(program: Program, module: ModuleType) -> tuple[Arrays, Arrays | None]:
    """Return training and validation arrays by feature."""
    validation = module.arrays(VALIDATION_ROWS, 2) if program.validation != "none" else None
    return module.arrays(program.rows, 1), validation


def records_of(arrays: Arrays, folder: Path) -> str:
    """Return a pattern of TFRecords with these arrays, written once for equal arrays."""
    digest = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.dtype} {array.shape}".encode() + array.tobytes())
    name = digest.hexdigest()[:16]
    if not (folder / f"{name}-manifest.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        np.savez(folder / f"{name}.npz", **arrays)
        convert(
            str(folder / f"{name}.npz"),
            str(folder),
            name=name,
            label=LABEL if LABEL in arrays else None,
            keep_order=True,
        )
    return str(folder / f"{name}-*.tfrecord")


def features_of(arrays: Arrays) -> list[dict[str, Any]]:
    """Return `data.features` with each array's own dtype."""
    return [
        {"name": name, "dtype": str(array.dtype), "shape": list(array.shape[1:])}
        | ({"decode": "raw"} if array.dtype == np.uint8 and array.ndim > 1 else {})
        for name, array in sorted(arrays.items())
    ]


def labels_of(arrays: Arrays) -> list[str]:
    """Return the names of the features that are labels, in the order of the outputs."""
    return [name for name in (LABEL, SECOND) if name in arrays]


def one_line(error: Exception) -> str:
    """Return an error's message without line breaks and of a readable length."""
    text = " ".join(str(error).split())
    # A traceback of a graph begins with locations and ends with the error.
    return text if len(text) <= 500 else f"{text[:120]} ... {text[-360:]}"
