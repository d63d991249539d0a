"""A notebook of typed jobs that train here, run by a real Jupyter kernel."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


def execute(folder: Path, *sources: str) -> subprocess.CompletedProcess[str]:
    cells = [
        {
            "cell_type": "code",
            "source": source,
            "metadata": {},
            "outputs": [],
            "execution_count": None,
            "id": f"c{number}",
        }
        for number, source in enumerate(sources)
    ]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    notebook = {"cells": cells, "nbformat": 4, "nbformat_minor": 5, "metadata": kernel}
    (folder / "a.ipynb").write_text(json.dumps(notebook))
    environment: dict[str, Any] = {**os.environ, "IPYTHONDIR": str(folder / ".ipython"), "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [
        sys.executable,
        "-m",
        "jupyter",
        "execute",
        "--inplace",
        "--kernel_name=python3",
        "--startup_timeout=600",
    ]
    command.append("a.ipynb")
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, check=False, text=True, timeout=600
    )


def output(folder: Path) -> str:
    cells = json.loads((folder / "a.ipynb").read_text())["cells"]
    return "".join("".join(each.get("text", [])) for cell in cells for each in cell["outputs"])


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
    "mptraining.Accelerator(type='cpu', countPerNode=3)",
)


def outputs(folder: Path, kind: str) -> list[str]:
    """Return the outputs of that MIME type, of all cells."""
    cells = json.loads((folder / "a.ipynb").read_text())["cells"]
    return ["".join(each["data"][kind]) for cell in cells for each in cell["outputs"] if kind in each.get("data", {})]


def test_a_typed_job_trains_in_its_cell_and_is_seen(tmp_path: Path) -> None:
    done = execute(tmp_path, *TYPED[:-1])
    assert done.returncode == 0, done.stderr + output(tmp_path)
    pictures = outputs(tmp_path, "text/html")
    live = pictures[0]
    assert "Succeeded: " in live
    assert "<svg" in live, "the curve stays after the end"
    assert "FellBackToCPU" not in live
    assert "sums-1: Succeeded, attempt 1" in pictures[2], "the job, drawn"
    assert "gradient_norm" in pictures[4], "the plot, without matplotlib"
    assert "Comparison of 3 runs" in pictures[5]
    assert all("<script" not in each for each in pictures)
    told = output(tmp_path)
    assert (
        "sums-1: Succeeded, attempt 1\n  why         Succeeded: trained to the last step\n  progress    step " in told
    )
    assert "oneDNN" not in told
    assert "absl" not in told
    assert "(1, 2)" in outputs(tmp_path, "text/plain")
    assert max(len(each) for each in outputs(tmp_path, "text/plain")) < 400, "one line for each value"
