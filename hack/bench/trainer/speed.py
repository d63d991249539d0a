"""Figures 1 and 4: steps per second of this loop against `fit` of both generations and against a bare tf.function;
float32 against mixed_bfloat16 in this loop.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any, Literal

from hack.bench.figures import Figure, figure, progress
from hack.bench.trainer.rounds import Measured, interleaved
from mptraining_trainer.host import native_bfloat16

TaskName = Literal["mlp", "resnet"]

FUSED = 32
# This loop may cost as much over the tf.function that an expert writes.
_OVER_BARE = 0.95
_FUSED_WIDE = 8
# For a processor that computes in bfloat16.
_LEAST = 1.5


def contenders(task: TaskName, replicas: int) -> dict[str, dict[str, Any]]:
    """Return settings of `bench.trainer.contenders` by their names in a figure.

    With several replicas Keras 3 cannot fuse steps (facts: keras#19246) and its XLA step fails, so `fit` is
    configured not to compile.
    """
    several = replicas > 1
    common = {"task": task, "replicas": replicas}
    fit = {"kind": "fit", **common}
    settings: dict[str, dict[str, Any]] = {
        "loop": {"kind": "loop", **common, "fused": FUSED},
        "bare tf.function": {"kind": "bare", **common, "fused": FUSED},
        "loop, auto": {"kind": "loop", **common},
        # On the other generation of Keras: its layers are other graphs, also under plain Keras.
        "loop, tf_keras": {"kind": "loop", **common, "fused": FUSED, "keras": "Legacy"},
        "fit": {**fit, "jit": False if several else None},
        "tf_keras fit": {**fit, "keras": "Legacy"},
        f"tf_keras fit x{FUSED}": {**fit, "keras": "Legacy", "fused": FUSED},
    }
    if not several:
        settings[f"fit x{FUSED}"] = {**fit, "fused": FUSED}
        settings[f"fit x{FUSED}, no XLA"] = {**fit, "fused": FUSED, "jit": False}
    return settings


def measure(task: TaskName, replicas: int, *, rounds: int, seconds: float) -> list[Figure]:
    """Measure one task: over `fit`'s default, over the best `fit` (of all, and on the same generation of Keras),
    beside the bare tf.function.
    """
    progress(f"{task}, {replicas} replica(s): steps per second")
    measured = interleaved(contenders(task, replicas), rounds=rounds, seconds=seconds)
    _table(measured)
    speeds = {name: [run.speed for run in runs] for name, runs in measured.items()}
    cpu = {name: [run.cpu_per_step for run in runs] for name, runs in measured.items()}

    def best(generation: str) -> str:
        """Return the fastest `fit` among those whose name has this prefix."""
        fits = [name for name in speeds if "fit" in name and name.startswith(generation)]
        return max(fits, key=lambda name: statistics.median(speeds[name]))

    suffix = "" if replicas == 1 else f".{replicas}_replicas"
    name = f"trainer.{task}{suffix}.steps_per_second"
    goals = [
        ("loop", "fit", 3.0 if (task, replicas) == ("mlp", 1) else 1.0),
        ("loop", best(""), 1.0),
        ("loop", "bare tf.function", _OVER_BARE),
        ("loop, auto", best(""), 1.0),
        ("loop", best("fit"), 1.0),
        ("loop, tf_keras", best("tf_keras"), 1.0),
    ]
    return [
        figure(
            name + ours.removeprefix("loop").replace(", ", "."),
            speeds[ours],
            speeds[theirs],
            unit="steps/s",
            against=theirs,
            least=least,
            cpu=(cpu[ours], cpu[theirs]),
        )
        for ours, theirs, least in dict.fromkeys(goals)
    ]


def _table(measured: Mapping[str, list[Measured]]) -> None:
    for name, rounds in measured.items():
        speeds = [run.speed for run in rounds]
        microseconds = statistics.median(run.cpu_per_step for run in rounds) * 1e6
        progress(
            f"  {name:22} {statistics.median(speeds):9.1f} steps/s ({min(speeds):.1f} - {max(speeds):.1f}), "
            f"{microseconds:.0f} us of CPU a step"
        )


def measure_policies(*, rounds: int, seconds: float) -> Figure:
    """Measure steps per second of this CPU's best policy over those of the other one.

    Without bfloat16 in hardware float32 must be the faster one: `precision: Measure` must select it.
    """
    progress("wide-mlp: float32 against mixed_bfloat16")
    common: dict[str, Any] = {"kind": "loop", "task": "wide-mlp", "fused": _FUSED_WIDE}
    policies = ("float32", "mixed_bfloat16")
    measured = interleaved({name: common | {"policy": name} for name in policies}, rounds=rounds, seconds=seconds)
    ours, theirs = reversed(policies) if native_bfloat16() else policies
    return figure(
        f"trainer.wide-mlp.{ours}.steps_per_second",
        [run.speed for run in measured[ours]],
        [run.speed for run in measured[theirs]],
        unit="steps/s",
        against=theirs,
        least=_LEAST if native_bfloat16() else 1.0,
        cpu=([1 / run.cpu_per_step for run in measured[ours]], [1 / run.cpu_per_step for run in measured[theirs]]),
    )
