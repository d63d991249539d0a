"""Defaults of a sweep, and the texts that `kubectl explain` and the reference give for them."""

from __future__ import annotations

from mptraining_api.sweep.spec import SweepSpec

MIN_EPOCHS = 1
REDUCTION = 3
TRIALS = 50
PARALLEL = 1
MAX_FAILED = 5
SEED = 0

# By the field's path below `spec`.
DEFAULT_TEXTS = {
    "algorithm.seed": str(SEED),
    "algorithm.reproducible": "false",
    "parameters[].int.step": "1",
    "parameters[].when": "always",
    "trials.max": f"{TRIALS}; with Grid, every combination",
    "trials.parallel": str(PARALLEL),
    "trials.maxFailed": str(MAX_FAILED),
    "stop.earlyStopping": "none; with Hyperband, minEpochs and reduction by default",
    "stop.earlyStopping.minEpochs": str(MIN_EPOCHS),
    "stop.earlyStopping.reduction": str(REDUCTION),
    "runPolicy.suspend": "false",
    "runPolicy.ttlSecondsAfterFinished": "never",
}


def parallel(spec: SweepSpec) -> int:
    """Return the number of trials at a time."""
    return (spec.trials.parallel if spec.trials else None) or PARALLEL


def max_failed(spec: SweepSpec) -> int:
    written = spec.trials.max_failed if spec.trials else None
    return MAX_FAILED if written is None else written


def seed(spec: SweepSpec) -> int:
    return spec.algorithm.seed or SEED
