"""Decisions whether XLA compiles a training step, and the reasons why it cannot."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from mptraining_api.problems import InvalidProgram
from mptraining_api.resolved_job import ResolvedJob
from mptraining_trainer.keras_backend import Keras

_NO_KERNEL = re.compile(r"(\w+) \(No registered '\w+' OpKernel|\b(\w+) \([^()]*is not compilable")


def can_compile(job: ResolvedJob, keras: Keras, model: Any, notice: Callable[[str, str], None]) -> bool:
    """Return whether XLA compiles the step. Raise InvalidProgram if the job says Always and XLA cannot.

    Synchronized BatchNormalization communicates with the other replicas during the forward pass, which a compiled
    function cannot do.
    """
    if job.jit_compile == "Never":
        return False
    synchronized = [layer.name for layer in keras.layers(model) if getattr(layer, "synchronized", False)]
    if not synchronized or job.replicas == 1:
        return True
    layer = f"synchronized BatchNormalization ({synchronized[0]})"
    _refuse_always(
        job, f"{layer} on {job.replicas} replicas", "Set jitCompile: Auto, or BatchNormalization(synchronized=False)."
    )
    notice("NotCompiled", f"XLA is off: {layer} cannot be compiled")
    return False


def report_replica_sums(job: ResolvedJob, notice: Callable[[str, str], None]) -> None:
    """Report that a loss with a count over the replicas (a mask, a sum of weights) cannot be compiled.

    Raise InvalidProgram if the job says Always.
    """
    what = f"a loss that divides by a count over {job.replicas} replicas (a mask, or a sum of sample weights)"
    _refuse_always(job, what, "Set jitCompile: Auto.")
    notice("NotCompiled", f"XLA is off: {what} cannot be compiled")


def must_disable_xla(job: ResolvedJob, xla_error: str | None, notice: Callable[[str, str], None]) -> bool:
    """Return whether XLA must be disabled because it has no kernel for an operation of the model.

    `xla_error` is XLA's error message for the step, None if there is none. Errors that are not about operations are
    ignored here: the first step raises them again. Raise InvalidProgram if the job says Always.
    """
    if xla_error is None or "unsupported operations" not in xla_error:
        return False
    names = sorted({name for match in _NO_KERNEL.findall(xla_error) for name in match if name})
    operations = ", ".join(names) or xla_error.partition("\n")[0][:200]
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
