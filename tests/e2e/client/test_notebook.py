"""Notebooks of jobs and functions that train here, run by a real Jupyter kernel."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

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


def execute(cells: Sequence[str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Execute the cells in a new kernel; return their outputs."""
    monkeypatch.setenv("IPYTHONDIR", str(folder / ".ipython"))
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "3")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in cells])
    place = {"metadata": {"path": str(folder)}}
    NotebookClient(notebook, timeout=600, startup_timeout=600, kernel_name="python3", resources=place).execute()
    return [output for cell in notebook.cells for output in cell.outputs]


def test_a_typed_job_trains_in_its_cell_and_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outputs = execute(TYPED, tmp_path, monkeypatch)
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


FUNCTION = (
    """import mptraining

class TooHigh(Exception):
    pass""",
    """def train(rate):
    import keras
    import numpy as np

    if rate > 1:
        raise TooHigh(f"{rate} > 1")
    x = np.ones((64, 3), "float32")
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(rate), "mse")
    return {"loss": model.fit(x, x[:, :1], epochs=2, verbose=0).history["loss"], "policy": model.dtype_policy.name}""",
    "job = mptraining.run_local(train, args=(0.1,), name='good', spec={'precision': {'policy': 'mixed_bfloat16'}})",
    "value = job.result()\nassert value['loss'][1] < value['loss'][0] and value['policy'] == 'mixed_bfloat16', value",
    "bad = mptraining.run_local(train, kwargs={'rate': 3}, name='bad')",
    """try:
    bad.result()
except TooHigh as error:
    assert str(error) == "3 > 1" and error.__notes__[0].endswith("TooHigh: 3 > 1"), error.__notes__
else:
    raise AssertionError""",
)
RESTARTED = (
    "import mptraining",
    "assert mptraining.LocalJob('good', 'runs/good').result()['policy'] == 'mixed_bfloat16'",
    """try:
    mptraining.LocalJob('bad', 'runs/bad').result()
except mptraining.FunctionFailed as error:
    assert str(error) == "notebook_program.TooHigh: 3 > 1", error
else:
    raise AssertionError""",
)


def test_a_function_of_a_cell_returns_its_value_and_raises_its_own_exception(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for cells in (FUNCTION, RESTARTED):
        execute(cells, tmp_path, monkeypatch)
