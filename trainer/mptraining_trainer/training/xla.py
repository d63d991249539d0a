"""Whether forward and backward pass are compiled by XLA, and said aloud where they cannot be."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from mptraining_api.problems import InvalidProgram
from mptraining_api.resolved_job import ResolvedJob
from mptraining_trainer.keras_backend import Keras

_NO_KERNEL = re.compile(r"(\w+) \(No registered '\w+' OpKernel|\b(\w+) \([^()]*is not compilable")


def compiles(job: ResolvedJob, keras: Keras, model: Any, notice: Callable[[str, str], None]) -> bool:
    """Whether to compile. Raises InvalidProgram when the job says Always and the model has what XLA cannot take.

    Synchronized BatchNormalization talks to the other replicas in mid-pass, which a compiled function cannot.
    """
    if job.jit_compile == "Never":
        return False
    talking = [layer.name for layer in keras.layers(model) if getattr(layer, "synchronized", False)]
    if not talking or job.replicas == 1:
        return True
    layer = f"synchronized BatchNormalization ({talking[0]})"
    _refuse_always(
        job, f"{layer} on {job.replicas} replicas", "Set jitCompile: Auto, or BatchNormalization(synchronized=False)."
    )
    notice("NotCompiled", f"XLA is off: {layer} cannot be compiled")
    return False


def sums_over_replicas(job: ResolvedJob, notice: Callable[[str, str], None]) -> None:
    """Reports that a loss which counts over the replicas (a mask, a sum of weights) cannot be compiled.

    Raises InvalidProgram when the job says Always.
    """
    what = f"a loss that divides by a count over {job.replicas} replicas (a mask, or a sum of sample weights)"
    _refuse_always(job, what, "Set jitCompile: Auto.")
    notice("NotCompiled", f"XLA is off: {what} cannot be compiled")


def leave_out(job: ResolvedJob, said: str | None, notice: Callable[[str, str], None]) -> bool:
    """Whether XLA has to be left out for an operation of the model's that it has no kernel for.

    `said` is what XLA said against the step, None for nothing. What is not about operations is left to the first step,
    which meets it again. Raises InvalidProgram when the job says Always.
    """
    if said is None or "unsupported operations" not in said:
        return False
    found = sorted({name for match in _NO_KERNEL.findall(said) for name in match if name})
    operations = ", ".join(found) or said.partition("\n")[0][:200]
    _refuse_always(
        job,
        f"a model in which XLA has no kernel for: {operations}",
        "Set jitCompile: Auto, or move that part of the model into the map function of the data.",
    )
    notice("NotCompiled", f"XLA is off: it has no kernel for {operations}")
    return True


def _refuse_always(job: ResolvedJob, what: str, next_step: str) -> None:
    if job.jit_compile == "Always":
        raise InvalidProgram("spec.jitCompile", f"'Always' with {what}", next_step=next_step)
