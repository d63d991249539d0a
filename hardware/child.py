"""`python -m hardware.child`: measurements in one process; requests on standard input, answers on standard output,
one JSON document a line.

A job is resolved and run as a worker of `mptj run` does it, in this process, so that TF32 can be switched and the
peak of the device's memory be read.
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

import numpy as np

from hardware.cells import Cell, Scale
from hardware.jobs import OVERFLOW_STEPS, SEED, job, local_accelerator, steps
from hardware.machine import Machine

# The beginning of a message names the field, `memory` if it ran out; XLA appends its table of buffers.
_MESSAGE = 400


def main() -> None:
    """Answer requests until the input ends; exit with 1 if one raises."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    code = 1
    try:
        for line in sys.stdin:
            answers.write(json.dumps(_answer(json.loads(line))) + "\n")
        code = 0
    except Exception:  # noqa: BLE001 - the parent reads the traceback
        traceback.print_exc()
    sys.stderr.flush()
    # Without the end of the interpreter, in which TensorFlow's threads may wait.
    os._exit(code)


def _answer(asked: dict[str, Any]) -> dict[str, Any]:
    machine, cell = Machine(**asked["machine"]), Cell(**asked["cell"])
    # TensorFlow reads it when it is imported; tf.distribute on TPUs needs the older Keras.
    if machine.kind == "tpu":
        os.environ["TF_USE_LEGACY_KERAS"] = "1"
    if asked["contender"] == "keras":
        return _keras_fit(asked["train"])
    values = _train(machine, cell, asked["scale"], asked["train"], asked["output"], asked["steps"])
    if cell.shares_process:
        import tensorflow as tf

        # The next measurement of this process shall find the device's memory free.
        tf.keras.backend.clear_session()
        gc.collect()
    return values


def _train(
    machine: Machine, cell: Cell, scale: Scale, train: str, output: str, total_steps: int | None
) -> dict[str, Any]:
    import tensorflow as tf

    from mptraining_api.launch import WorkerIdentity
    from mptraining_api.resolve.resolve import ClusterSettings, resolve
    from mptraining_api.run_folder import MODEL, RESULT, Result
    from mptraining_api.spec import MPTrainingJob
    from mptraining_trainer.distribution.preemption import Preemption
    from mptraining_trainer.run import run

    tf.config.experimental.enable_tensor_float_32_execution(cell.policy != "float32")
    written = job(
        cell,
        scale,
        local_accelerator(machine, cell.devices),
        train=train,
        output=output,
        total_steps=total_steps or steps(cell, scale),
    )
    resolved = resolve(MPTrainingJob.parse(written), ClusterSettings())
    identity = WorkerIdentity(index=0, hosts=("localhost:0",), attempt=1, incarnation=f"hardware-{os.getpid()}")
    outcome = run(resolved, identity, output, Preemption(lambda: None), {"MPTRAINING_PROGRESS_SECONDS": "60"})
    if outcome.exit_code:
        return {"failed": failure(Path(output), outcome.reason)}
    result = Result.read(Path(output, RESULT).read_bytes())
    if result.replicas_in_sync != cell.devices and machine.kind != "tpu":
        return {"failed": f"{cell.devices} devices were asked for and {result.replicas_in_sync} trained"}
    memory = None
    if cell.section == "memory":
        device = tf.config.list_logical_devices("GPU")
        memory = tf.config.experimental.get_memory_info("GPU:0")["peak"] if device else result.peak_memory_bytes
    return {
        "examples_per_second": result.examples_per_second,
        "step_seconds": result.step_seconds,
        "input_bound_percent": result.input_bound_percent,
        "memory_bytes": memory,
        "skipped_steps": result.skipped_steps,
        "loss_scale": result.loss_scale,
        "step": result.step,
        "seconds": result.seconds,
        "replicas": result.replicas_in_sync,
        "weights": digest(Path(output, MODEL, "weights.npz")),
    }


def digest(weights: Path) -> str:
    """Return a hash of the arrays' bytes; that of the file would hold its times."""
    total = hashlib.sha256()
    with np.load(weights) as arrays:
        for name in arrays.files:
            total.update(arrays[name].tobytes())
    return total.hexdigest()[:16]


def failure(output: Path, reason: str) -> str:
    """Return the last Event's message, or the reason if there is none."""
    for file in sorted(output.glob("events/*.jsonl"), reverse=True):
        for line in reversed(file.read_text().splitlines()):
            event = json.loads(line)
            if event.get("message") and event.get("exitCode"):
                return str(event["message"])[:_MESSAGE]
    return reason


def _keras_fit(train: str) -> dict[str, Any]:
    """Return the skipped steps and the last scale of Keras' LossScaleOptimizer over the same records and steps.

    The model's gradients overflow; `fit` runs under mixed_float16, as Keras' guide shows it.
    """
    import keras
    import tensorflow as tf

    from hardware.models import overflowing

    for gpu in tf.config.list_physical_devices("GPU"):
        tf.config.experimental.set_memory_growth(gpu, True)
    keras.utils.set_random_seed(SEED)
    keras.mixed_precision.set_dtype_policy("mixed_float16")
    shape = {"vector": tf.io.FixedLenFeature([32], tf.float32), "label": tf.io.FixedLenFeature([1], tf.int64)}

    def parse(record: Any) -> Any:
        read = tf.io.parse_single_example(record, shape)
        return read["vector"], read["label"]

    files = tf.data.Dataset.list_files(train, shuffle=False)
    batches = tf.data.TFRecordDataset(files).map(parse).batch(8, drop_remainder=True).repeat()
    made = overflowing()
    model = made.pop("model")
    model.compile(**made)
    model.fit(batches, steps_per_epoch=OVERFLOW_STEPS, epochs=1, verbose=0)
    applied = int(model.optimizer.inner_optimizer.iterations.numpy())
    return {"skipped_steps": OVERFLOW_STEPS - applied, "loss_scale": float(model.optimizer.dynamic_scale.numpy())}


if __name__ == "__main__":
    main()
