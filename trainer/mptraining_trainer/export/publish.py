"""The exported model into the run folder: written whole in a scratch folder, then uploaded, model.json last."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mptraining_api import run_folder
from mptraining_records.storage import storage, transfers
from mptraining_trainer.data.example_spec import ExampleSpec
from mptraining_trainer.export import export
from mptraining_trainer.keras_backend import Keras
from mptraining_trainer.model.program import Program
from mptraining_trainer.worker import Worker


def publish(
    worker: Worker,
    program: Program,
    keras: Keras,
    example: ExampleSpec | None,
    step: int,
    metrics: Mapping[str, float],
    weights: Sequence[Any],
) -> str:
    """Exports the model with these weights (arrays as `model.get_weights` gives them); its path in the run folder.

    Raises Superseded, and writes nothing, when a newer attempt has the folder.
    """
    with tempfile.TemporaryDirectory(prefix="mptraining-") as scratch:
        folder = Path(scratch, run_folder.MODEL)
        export.export(program, keras, worker.job, example, folder, step, metrics=metrics, weights=weights)
        to = {
            path: storage.join(worker.folder, run_folder.MODEL, path.relative_to(folder).as_posix())
            for path in folder.rglob("*")
            if path.is_file()
        }
        last = folder / "model.json"
        if worker.fence is not None:
            worker.fence.check()
        transfers.upload({path: uri for path, uri in to.items() if path != last})
        storage.upload(last, to[last])
    return run_folder.MODEL
