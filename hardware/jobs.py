"""The MPTrainingJob of a cell, as a user would write it. Pure."""

from __future__ import annotations

from typing import Any

from hardware.cells import SIZES, Cell, Scale
from hardware.machine import Machine
from mptraining_api.spec import API_VERSION

# Steps of one call of the device.
_FUSED: dict[Scale, int] = {"full": 10, "small": 4}
# Calls of a cell that decides a goal, and of the others; the first compiles and does not count.
_CALLS: dict[Scale, tuple[int, int]] = {"full": (5, 4), "small": (6, 6)}
# Memory is at its peak after some steps, and a step of a large batch is long.
_MEMORY_FUSED, _MEMORY_CALLS = 2, 2
OVERFLOW_STEPS = 24
_TOPOLOGIES = {1: "1x1", 4: "2x2", 8: "2x4"}
SEED = 7


def steps(cell: Cell, scale: Scale) -> int:
    """Return the steps of a cell's run."""
    if cell.section == "overflow":
        return OVERFLOW_STEPS
    calls = _CALLS[scale][0 if cell.decides_goal else 1]
    return steps_of_call(cell, scale) * (_MEMORY_CALLS if cell.section == "memory" else calls)


def steps_of_call(cell: Cell, scale: Scale) -> int:
    """Return the steps that the device does in one call."""
    if cell.section == "overflow":
        return 1
    return _MEMORY_FUSED if cell.section == "memory" else _FUSED[scale]


def job(
    cell: Cell, scale: Scale, accelerator: dict[str, Any], *, train: str, output: str, total_steps: int
) -> dict[str, Any]:
    """Return the resource. `train` is the pattern of the records, `output` the run folder."""
    program: dict[str, Any] = {"entryPoint": "hardware.models:overflowing"}
    if cell.section != "overflow":
        shape = list(SIZES[scale][cell.model].shape)
        arguments = {"model": cell.model, "scale": scale, "shape": shape}
        program = {"entryPoint": "hardware.models:build", "arguments": arguments}
    return {
        "apiVersion": API_VERSION,
        "kind": "MPTrainingJob",
        "metadata": {"name": "hardware"},
        "spec": {
            "accelerator": accelerator,
            # TF32 is float32 in a job's eyes: TensorFlow multiplies so on Ampere GPUs unless it is switched off.
            "precision": {"policy": "float32" if cell.policy == "tf32" else cell.policy},
            "jitCompile": "Always" if cell.xla else "Never",
            "program": {"function": program},
            "data": {"train": [train], "cache": "None" if cell.source == "streamed" else "Memory"},
            "training": {
                "totalSteps": total_steps,
                "batchSize": {"perReplica": cell.batch},
                "stepsPerExecution": steps_of_call(cell, scale),
                "seed": SEED,
                "deterministic": "Always" if cell.deterministic else "Never",
            },
            # Only the last step is saved: a save in between would be measured.
            "checkpoint": {"everySteps": 1_000_000},
            "output": {"uri": output},
        },
    }


def local_accelerator(machine: Machine, count: int) -> dict[str, Any]:
    """Return the section of so many devices of this machine."""
    if machine.kind == "tpu":
        topology = _TOPOLOGIES.get(machine.count)
        if topology is None:
            raise ValueError(f"TensorFlow lists {machine.count} TPU chips: expected 1, 4 or 8, those of one machine")
        return {"type": machine.accelerator, "topology": topology}
    return {"type": machine.accelerator, "countPerNode": count}
