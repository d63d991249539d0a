"""A script's model as a function program: the module whose function returns it, and its training records.

The function runs the script up to its first `fit` and returns the model that this `fit` would have trained, compiled as
the script compiles it. The records are the data of the same `fit` in the script's plain run.
"""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tests.soak.keras_io.capture import DATA, FACTS

MODULE = "keras_io_model"
EPOCHS = 2
_BATCH = 16
_SOURCE = '''"""Made by tests/soak/keras_io: the model of a script's first fit."""

from tests.soak.keras_io.functions import model_of


def build():
    return model_of({script!r})
'''


class NoFunction(ValueError):
    """The script's first fit has no data that records can hold, or there was no fit."""


class _ReachedFit(BaseException):
    """Leaves the script at its first fit; it is a BaseException, so that no `except Exception` of the script catches
    it.
    """

    def __init__(self, model: Any) -> None:
        self.model = model


def program(folder: Path, script: str) -> dict[str, Any]:
    """Write the module into `folder`; return the job's program."""
    (folder / f"{MODULE}.py").write_text(_SOURCE.format(script=script))
    return {"function": {"entryPoint": f"{MODULE}:build"}}


def sections(data: Path, folder: Path) -> dict[str, Any]:
    """Write the records into `folder`; return the job's sections data and training. Raises NoFunction."""
    if not (data / FACTS).exists():
        raise NoFunction("the script calls no fit")
    facts = json.loads((data / FACTS).read_text())
    if "refused" in facts:
        raise NoFunction(f"its data fit in no records: {facts['refused']}")
    with np.load(data / DATA) as arrays:
        columns = {name: arrays[name] for name in (*facts["x"], *facts["y"], *facts["weight"])}
    _write(folder / "train-00000-of-00001.tfrecord", columns)
    section: dict[str, Any] = {
        "train": ["train-*.tfrecord"],
        "features": [_feature(name, value) for name, value in columns.items()],
    }
    if len(facts["y"]) == 1:
        section["label"] = facts["y"][0]
    else:
        section["labels"] = facts["y"]
    if facts["weight"]:
        section["sampleWeight"] = facts["weight"][0]
    training = {"epochs": EPOCHS, "batchSize": {"global": _BATCH}, "seed": 7}
    return {"data": section, "training": training}


def model_of(script: str) -> Any:
    """Return the model that the first `fit` of `script` trains, not trained yet.

    The trainer may call this more than once: the script writes into a folder that is new each time.
    """
    here = Path.cwd()
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for each in here.iterdir():
            Path(each.name).symlink_to(each)
        try:
            with _fit_is_the_end():
                runpy.run_path(script, run_name="__main__")
        except _ReachedFit as reached:
            return reached.model
    raise NoFunction(f"{script} ended without a fit")


@contextlib.contextmanager
def _fit_is_the_end() -> Iterator[None]:
    import keras
    import tf_keras

    owners = [keras.Model, tf_keras.Model] if os.environ.get("TF_USE_LEGACY_KERAS") == "1" else [keras.Model]
    before = [owner.fit for owner in owners]

    def fit(self: Any, *_: Any, **__: Any) -> Any:
        raise _ReachedFit(self)

    for owner in owners:
        owner.fit = fit
    try:
        yield
    finally:
        for owner, original in zip(owners, before, strict=True):
            owner.fit = original


def _write(path: Path, columns: dict[str, np.ndarray[Any, Any]]) -> None:
    from mptraining_records.tfrecord import example, framing

    rows = len(next(iter(columns.values())))
    with path.open("wb") as file:
        for row in range(rows):
            record = example.encode({name: _value(value[row]) for name, value in columns.items()})
            file.write(framing.encode(record))


def _value(cell: np.ndarray[Any, Any]) -> Any:
    flat = np.atleast_1d(cell).ravel()
    if flat.dtype.kind in "SUO":
        return [each if isinstance(each, bytes) else str(each).encode() for each in flat]
    return flat.astype("float32" if flat.dtype.kind == "f" else "int64")


def _feature(name: str, value: np.ndarray[Any, Any]) -> dict[str, Any]:
    kind = "string" if value.dtype.kind in "SUO" else "float32" if value.dtype.kind == "f" else "int64"
    return {"name": name, "dtype": kind, "shape": list(value.shape[1:])}
