"""A model that was trained under mixed_bfloat16 and exported, as a notebook fetches it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.jobs import resolved_job

INPUTS = np.linspace(0, 1, 8, dtype="float32").reshape(2, 4)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[float]]:
    """A model trained under mixed_bfloat16, and the results of its float32 copy."""
    from mptraining_trainer import keras_backend
    from mptraining_trainer.data.schema import ExampleSpec, TensorSpec
    from mptraining_trainer.export import export
    from mptraining_trainer.model.program import build

    keras = keras_backend.load("Keras3")
    example = ExampleSpec((TensorSpec("a", "float32", (4,)),), (TensorSpec("label", "int64", ()),), ("no", "yes"))
    job = resolved_job(
        "job",
        program={"application": {"name": "mlp"}},
        data={"train": ["x.tfrecord"], "label": "label"},
        training={"epochs": 1, "batchSize": {"global": 8}},
        precision={"policy": "mixed_bfloat16"},
    )
    keras.set_policy("mixed_bfloat16")
    try:
        program = build(job, keras, example, lambda topic, message: None)
        folder = tmp_path_factory.mktemp("run") / "model"
        snapshot = export.take_snapshot(program.model, keras, folder.parent, policy=keras.policy)
        export.export(program, keras, job, example, folder, 1, snapshot)
    finally:
        keras.set_policy("float32")
    return folder, np.asarray(export.load(folder)(INPUTS)).ravel().tolist()
