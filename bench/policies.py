"""Figure 4: float32 against mixed_bfloat16 on this machine's CPU, in the trainer's own loop."""

from __future__ import annotations

from typing import Any, Literal

from bench.figures import Figure, figure, progress
from bench.rounds import interleaved
from mptraining_trainer.host import native_bfloat16

TaskName = Literal["wide-mlp", "wide-resnet"]

FUSED = 8
# Where the processor computes in bfloat16.
_LEAST = {"wide-mlp": 1.5, "wide-resnet": 1.2}


def measure(task: TaskName, *, rounds: int, seconds: float) -> Figure:
    """Steps per second of the policy that this CPU is for, over those of the other one.

    Without bfloat16 in hardware float32 has to be the faster one: what `precision: Measure` must find out.
    """
    progress(f"{task}: float32 against mixed_bfloat16")
    common: dict[str, Any] = {"kind": "loop", "task": task, "strategy": "trainer", "fused": FUSED}
    policies = ("float32", "mixed_bfloat16")
    measured = interleaved(
        "step", {name: common | {"policy": name} for name in policies}, rounds=rounds, seconds=seconds
    )
    ours, theirs = reversed(policies) if native_bfloat16() else policies
    return figure(
        f"trainer.{task}.{ours}.steps_per_second",
        [each.speed for each in measured[ours]],
        [each.speed for each in measured[theirs]],
        unit="steps/s",
        against=theirs,
        least=_LEAST[task] if native_bfloat16() else 1.0,
        cpu=([1 / each.cpu_per_step for each in measured[ours]], [1 / each.cpu_per_step for each in measured[theirs]]),
    )
