"""Mistakes of early stopping: a rung must end with a value of the objective, and its trial must be able to continue.

A trial's rungs are jobs with ever more epochs in one run folder. Nothing in the trainer depends on the number of
epochs (schedules and warm-up count steps), so that they are bit for bit one longer training; what would differ is
refused here.
"""

from __future__ import annotations

from collections.abc import Iterator

from mptraining_api.problems import InvalidSpec
from mptraining_api.sweep.early_stopping import early_stopping, job_epochs, rungs
from mptraining_api.sweep.spec import SweepSpec
from mptraining_api.validation.mistakes import FieldPath, field_text, value_at

# Parameters that would give the trials other rungs.
_OF_RUNGS = ("training", "training.epochs", "training.totalSteps", "training.validationFreq")


def rung_problems(spec: SweepSpec) -> Iterator[InvalidSpec]:
    """Yield every mistake of early stopping; none without it."""
    if not early_stopping(spec):
        return
    if value_at(spec.job, ("program", "script")) is not None:
        found = "a script decides itself how long it trains"
        yield InvalidSpec("spec.job.program.script", found, next_step="Remove stop.earlyStopping, or use a function.")
        return
    if value_at(spec.job, ("output", "uri")) is None:
        found = "missing: a trial continues from its checkpoint in the run folder"
        yield InvalidSpec("spec.job.output.uri", found, next_step="Add a folder; trials get folders below it.")
    for path, why in _CONFLICTS.items():
        value = value_at(spec.job, path)
        if value is not None and (path[-1] != "resume" or value == "Never"):
            where = field_text(path, "spec.job")
            yield InvalidSpec(where, f"{value!r} with early stopping", next_step=why)
    for number, each in enumerate(spec.parameters):
        if each.path in _OF_RUNGS:
            found = f"{each.path!r} decides the rungs of early stopping, which all trials share"
            yield InvalidSpec(f"spec.parameters[{number}].path", found, next_step="Set it in spec.job.")
    try:
        epochs = job_epochs(spec.job)
    except ValueError:
        found = "missing: early stopping counts epochs"
        yield InvalidSpec("spec.job.training.epochs", found, next_step="Add the epochs of a trial that is not stopped.")
        return
    yield from _epoch_problems(spec, epochs)


_CONFLICTS: dict[FieldPath, str] = {
    ("training", "totalSteps"): "Give training.epochs instead: rungs count epochs.",
    ("training", "initialEpoch"): "Remove it: rungs count all epochs.",
    ("training", "resume"): "Remove it: a trial continues in its next rung.",
}


def _epoch_problems(spec: SweepSpec, epochs: int) -> Iterator[InvalidSpec]:
    written = spec.stop.early_stopping if spec.stop else None
    minimum = written.min_epochs if written else None
    if minimum is not None and minimum > epochs:
        found = f"{minimum}, and the job trains for {epochs}"
        yield InvalidSpec("spec.stop.earlyStopping.minEpochs", found, expected=f"at most {epochs}")
        return
    every = value_at(spec.job, ("training", "validationFreq"))
    found_rungs = rungs(spec)
    if not isinstance(every, int) or found_rungs is None or not spec.objective.metric.startswith("val_"):
        return
    without = [epoch for epoch in found_rungs.epochs if epoch % every]
    if without:
        found = f"{every}: no validation after epoch {without[0]}, where trials are compared"
        yield InvalidSpec("spec.job.training.validationFreq", found, next_step="Remove it, or change minEpochs.")
