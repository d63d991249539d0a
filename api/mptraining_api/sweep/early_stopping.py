"""Asynchronous successive halving (ASHA): the epochs of each rung, and the trials that continue in the next.

The rule is that of Li et al., "A System for Massively Parallel Hyperparameter Tuning" (MLSys 2020), algorithm 2: a
free place goes to a trial among the best 1/reduction of its rung that has not continued yet, the highest rung first;
only if there is none, to a new trial. A trial that was stopped can therefore continue later.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mptraining_api.sweep.defaults import MIN_EPOCHS, REDUCTION
from mptraining_api.sweep.spec import SweepSpec
from mptraining_api.sweep.status import Trial, TrialState


@dataclass(frozen=True, slots=True)
class Rungs:
    """`epochs` that a trial has trained for at the end of each rung, ascending; one of `reduction` trials continues."""

    epochs: tuple[int, ...]
    reduction: int
    maximize: bool

    @property
    def last(self) -> int:
        return len(self.epochs) - 1


def early_stopping(spec: SweepSpec) -> bool:
    """Return whether trials are stopped early: by `stop.earlyStopping`, or because the algorithm is Hyperband."""
    return spec.algorithm.name == "Hyperband" or (spec.stop is not None and spec.stop.early_stopping is not None)


def rungs(spec: SweepSpec) -> Rungs | None:
    """Return the rungs of a sweep; None without early stopping. Raises ValueError if the job has no epochs."""
    if not early_stopping(spec):
        return None
    written = spec.stop.early_stopping if spec.stop else None
    minimum = (written.min_epochs if written else None) or MIN_EPOCHS
    reduction = (written.reduction if written else None) or REDUCTION
    return Rungs(
        epochs=rung_epochs(minimum, job_epochs(spec.job), reduction),
        reduction=reduction,
        maximize=spec.objective.direction == "Maximize",
    )


def job_epochs(job: Mapping[str, Any]) -> int:
    """Return `training.epochs` of the job. Raises ValueError if it is missing."""
    training = job.get("training")
    epochs = training.get("epochs") if isinstance(training, Mapping) else None
    if not isinstance(epochs, int) or isinstance(epochs, bool) or epochs < 1:
        raise ValueError("spec.job.training.epochs is missing")
    return epochs


def rung_epochs(minimum: int, maximum: int, reduction: int) -> tuple[int, ...]:
    """Return minimum, minimum * reduction, … below `maximum`, and `maximum`: 1, 3, 9, 10 for a maximum of 10."""
    epochs = []
    rung = minimum
    while rung < maximum:
        epochs.append(rung)
        rung *= reduction
    return (*epochs, maximum)


def promotable(trials: Sequence[Trial], rungs: Rungs, *, at_least: int = 0) -> Trial | None:
    """Return the trial that continues next, or None: of the highest rung that has one, the best; of equal ones, the
    first.

    `at_least`: the number of trials that continue from each rung even if it has fewer than `reduction` trials.
    """
    for rung in range(rungs.last - 1, -1, -1):
        ended = ended_in(trials, rung, rungs)
        best = ended[: max(len(ended) // rungs.reduction, at_least)]
        waiting = (trial for trial in best if (trial.rung or 0) == rung and trial.state == TrialState.STOPPED)
        first = next(waiting, None)
        if first is not None:
            return first
    return None


def ended_in(trials: Iterable[Trial], rung: int, rungs: Rungs) -> list[Trial]:
    """Return the trials that have trained to the end of that rung, the best first."""
    measured = [(value, trial) for trial in trials if (value := value_of(trial, rungs.epochs[rung])) is not None]
    return [
        trial
        for _, trial in sorted(measured, key=lambda pair: (-pair[0] if rungs.maximize else pair[0], pair[1].number))
    ]


def value_of(trial: Trial, epoch: int) -> float | None:
    """Return the objective at the end of the rung with that many epochs."""
    return next((measured.value for measured in trial.values or () if measured.epoch == epoch), None)
