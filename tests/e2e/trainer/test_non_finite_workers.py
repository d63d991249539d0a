"""Steps whose numbers are not finite among several workers, which decide alike."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mptraining_api import events
from mptraining_records.convert.convert import convert
from tests.testbed.attempts import TWO_WORKERS, Start


def poisoned(folder: Path, values: dict[int, float]) -> dict[str, Any]:
    """256 records in index order, of which some have one value in every column."""
    x = np.random.default_rng(0).normal(size=(256, 8)).astype(np.float32)
    labels = x[:, :3].argmax(axis=1)
    for row, value in values.items():
        x[row] = value
    np.savez(folder / "poisoned.npz", x=x, label=labels)
    convert(str(folder / "poisoned.npz"), str(folder / "records"), keep_order=True)
    return {"train": [f"{folder}/records/train-*.tfrecord"], "shuffle": {"bufferSize": 0}}


@pytest.mark.parametrize("worker_of_it", [0, 1])
def test_a_step_of_which_one_worker_has_a_bad_record_is_skipped_by_both(
    start: Start, tmp_path: Path, worker_of_it: int
) -> None:
    """In index order worker r of two takes the records that are r modulo 2: 65 is worker 1's, in the third step."""
    batch = 32
    bad = 2 * batch + worker_of_it
    spec = TWO_WORKERS | {
        "precision": {"policy": "mixed_float16", "lossScale": {"mode": "Dynamic", "value": 1024}},
        "program": {"application": {"name": "mlp", "classes": 3}},
        "checkpoint": {"everySteps": 1, "maxToKeep": 10},
    }
    gang = start(spec, data=poisoned(tmp_path, {bad: 1e38}), batchSize={"global": batch}, stepsPerExecution=1)
    assert gang.wait() == [0, 0], gang.errors()
    for worker in (0, 1):
        seen = [(one.step, one.loss_scale, one.skipped_steps) for one in gang.all(events.Progress, worker)]
        assert seen[:4] == [(1, 1024.0, 0), (2, 1024.0, 0), (3, 1024.0, 1), (4, 1024.0, 1)], (
            "the scale is not the cause"
        )
        (skipped, *_) = (one for one in gang.all(events.Notice, worker) if one.topic == "StepSkipped")
        assert skipped.message.startswith(
            f"step 3 is skipped: loss or moving statistics of replica {worker_of_it} are "
        )
        assert "(examples 64 to 95 of pass 1: records 64, 65, 66, " in skipped.message
        assert gang.finished(worker).metrics == gang.finished(0).metrics
    states = {step: gang.folder / "checkpoints" / f"step-{step:010d}" for step in (2, 3, 4)}
    model = {step: (folder / "model.safetensors").read_bytes() for step, folder in states.items()}
    assert model[2] == model[3] != model[4], "the third step moved nothing"
    state = json.loads((states[3] / "state.json").read_text())
    assert (state["lossScale"], state["skippedSteps"]) == (1024.0, 1)
    assert all(np.isfinite(array).all() for array in gang.weights())


def test_two_workers_recover_together(start: Start, tmp_path: Path) -> None:
    """The first bad step is step 3, the second step 7."""
    spec = TWO_WORKERS | {
        "precision": {"policy": "mixed_bfloat16"},
        "program": {"application": {"name": "mlp", "classes": 3}},
        "checkpoint": {"everySteps": 2},
    }
    gang = start(
        spec,
        data=poisoned(tmp_path, dict.fromkeys([*range(65, 85), *range(192, 212)], 3e38)),
        batchSize={"global": 32},
        stepsPerExecution=2,
    )
    assert gang.wait() == [0, 0], gang.errors()
    for worker in (0, 1):
        back = [(one.from_step, one.to_step, one.precision) for one in gang.all(events.Recovered, worker)]
        assert back == [(3, 2, "mixed_bfloat16")]
        assert gang.finished(worker).metrics == gang.metrics()
    result = json.loads((gang.folder / "result.json").read_text())
    assert (result["precision"], result["recoveries"], result["skippedSteps"]) == ("mixed_bfloat16", 1, 2)
    assert all(np.isfinite(array).all() for array in gang.weights())
