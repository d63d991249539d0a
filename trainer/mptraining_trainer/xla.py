"""Whether forward and backward pass are compiled by XLA, and said aloud where they cannot be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mptraining_api.problems import InvalidProgram
from mptraining_api.resolved import ResolvedJob
from mptraining_trainer.keras_generation import Keras


def compiles(job: ResolvedJob, keras: Keras, model: Any, notice: Callable[[str, str], None]) -> bool:
    """Whether to compile. Raises InvalidProgram when the job says Always and the model has what XLA cannot take.

    Synchronized BatchNormalization talks to the other replicas in mid-pass, which a compiled function cannot.
    """
    if job.jit_compile == "Never":
        return False
    talking = [layer.name for layer in keras.layers(model) if getattr(layer, "synchronized", False)]
    if not talking or job.replicas == 1:
        return True
    if job.jit_compile == "Always":
        raise InvalidProgram(
            "spec.jitCompile",
            f"'Always' with synchronized BatchNormalization ({talking[0]}) on {job.replicas} replicas",
            next_step="Set jitCompile: Auto, or BatchNormalization(synchronized=False).",
        )
    notice("NotCompiled", f"XLA is off: synchronized BatchNormalization ({talking[0]}) cannot be compiled")
    return False
