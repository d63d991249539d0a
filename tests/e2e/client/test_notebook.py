"""A notebook of typed jobs that train here, run by a real Jupyter kernel."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

TYPED = (
    """%%writefile sums.py
import keras

def build(units=8):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(units, "relu"), keras.layers.Dense(2)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss, metrics=["accuracy"])
    return model
""",
    """import sys
import numpy as np
import mptraining
x = np.random.default_rng(1).normal(size=(512, 4)).astype("float32")
np.savez("points.npz", x=x, y=(x.sum(axis=1) > 0).astype("int64"))
!{sys.executable} -m mptraining records convert points.npz records --validation-fraction 0.2""",
    """def job(seed):
    return mptraining.TrainingJob(
        name=f"sums-{seed}",
        accelerator=mptraining.Accelerator(type="cpu"),
        program=mptraining.Program(function=mptraining.Function(entry_point="sums:build")),
        data=mptraining.Data(train=["records/train-*.tfrecord"], validation=["records/validation-*.tfrecord"]),
        training=mptraining.Training(epochs=6, batch_size=mptraining.BatchSize(global_=32), seed=seed),
    )
first = mptraining.run_local(job(1))""",
    "second = mptraining.run_local(job(2))",
    "first",
    "print(first.status())",
    "first.history",
    "first.history.plot('accuracy', 'val_accuracy', 'gradient_norm')",
    "assert len(first.history['loss']) == 6, first.history['loss']",
    "mptraining.compare([first, second.run(), 'runs/sums-1'])",
    "model = first.model()\nmodel.predict(np.ones((1, 4), 'float32'), verbose=0).shape",
)


def test_a_typed_job_trains_in_its_cell_and_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / ".ipython"))
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "3")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in TYPED])
    place = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=600, startup_timeout=600, kernel_name="python3", resources=place).execute()
    outputs = [output for cell in notebook.cells for output in cell.outputs]
    pictures, texts = (
        [output.data[kind] for output in outputs if kind in output.get("data", {})]
        for kind in ("text/html", "text/plain")
    )
    live = pictures[0]
    assert "Succeeded: " in live
    assert "<svg" in live, "the curve stays after the end"
    assert "FellBackToCPU" not in live
    assert "sums-1: Succeeded, attempt 1" in pictures[2], "the job, drawn"
    assert "gradient_norm" in pictures[4], "the plot, without matplotlib"
    assert "Comparison of 3 runs" in pictures[5]
    assert all("<script" not in picture for picture in pictures)
    told = "".join(output.get("text", "") for output in outputs)
    assert (
        "sums-1: Succeeded, attempt 1\n  why         Succeeded: trained to the last step\n  progress    step " in told
    )
    assert "oneDNN" not in told
    assert "absl" not in told
    assert "(1, 2)" in texts
    assert max(map(len, texts)) < 400, "one line for each value"
