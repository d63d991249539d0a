"""`python -m hack.bench.trainer.saving_child ROUNDS TASK`: seconds to save, to restore and to copy a large state.

Prints one JSON object of lists in seconds, an entry a round.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np

from hack.bench.trainer import tasks
from hack.bench.trainer.contenders import make_loop, make_strategy
from hack.bench.trainer.jobs import SEAT
from mptraining_trainer.checkpoints.checkpoint import Checkpointer, Contents
from mptraining_trainer.checkpoints.state import CheckpointState, checkpoints
from mptraining_trainer.keras_backend import load
from mptraining_trainer.reporting.telemetry import Telemetry


def main(rounds: int, name: tasks.TaskName) -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    keras, strategy = load("Keras3"), make_strategy("trainer", 1)
    loop, model, optimizer, iterator = make_loop(keras, strategy, tasks.TASKS[name])
    contents = Contents(keras, model, optimizer, loop.metrics)
    found: dict[str, list[float]] = {"copy": [], "save": [], "step": [], "read": [], "restore": []}
    with tempfile.TemporaryDirectory(prefix="mptraining-bench-") as folder:
        checkpointer = Checkpointer(
            folder, contents, max_to_keep=2, chief=True, telemetry=Telemetry(SEAT, None), strategy=strategy
        )
        loop.execute(iterator, 2)
        arrays = [variable.numpy() for group in contents.variables().values() for variable in group]
        found["bytes"] = [float(sum(array.nbytes for array in arrays))]
        for number in range(rounds + 1):
            found["step"].append(_seconds(lambda: loop.execute(iterator, 4)) / 4)
            found["copy"].append(_seconds(lambda: [np.array(array, copy=True) for array in arrays]))
            state = _state(number + 1)
            found["save"].append(_seconds(partial(checkpointer.save, state)))
            checkpointer.wait()
            newest = Path(checkpoints(folder)[-1])
            found["read"].append(_seconds(partial(_read, newest)))
            found["restore"].append(_seconds(checkpointer.restore))
    # The first round compiles and touches memory for the first time.
    warm = {name: values if name == "bytes" else values[1:] for name, values in found.items()}
    print(json.dumps(warm), file=answers, flush=True)


def _seconds(done: Callable[[], Any]) -> float:
    began = time.perf_counter()
    kept = done()
    took = time.perf_counter() - began
    del kept
    return took


def _read(folder: Path) -> None:
    """Read every byte and compute its checksum: the least that a restore with verification needs."""
    for path in folder.iterdir():
        google_crc32c.value(path.read_bytes())


def _state(step: int) -> CheckpointState:
    return CheckpointState(
        step=step,
        attempt=1,
        incarnation="bench",
        seed=0,
        epoch=0,
        examples=0,
        fingerprint="",
        policy="float32",
        replicas=1,
    )


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])  # type: ignore[arg-type]
