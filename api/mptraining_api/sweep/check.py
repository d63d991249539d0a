"""Every mistake in a sweep's document at once, with the field of each: the search, its limits, and its trials' jobs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from mptraining_api.problems import InvalidSpec, nearest
from mptraining_api.resolve.defaults import METRICS
from mptraining_api.resolve.document_problems import DocumentProblems, document_problems
from mptraining_api.resolve.resolve import ClusterSettings
from mptraining_api.spec import API_VERSION, KIND
from mptraining_api.sweep.defaults import parallel
from mptraining_api.sweep.early_stopping import early_stopping, job_epochs, rungs
from mptraining_api.sweep.parameters import parameter_problems
from mptraining_api.sweep.search_space import integers, is_active, max_trials, trial_spec
from mptraining_api.sweep.spec import MOST_TRIALS, SWEEP_KIND, SWEEP_NAME, MPTrainingSweep, Parameter, SweepSpec
from mptraining_api.validation.api_versions import is_served
from mptraining_api.validation.mistakes import FieldPath, field_path, field_text, value_at

# Parameters that would give the trials other rungs.
_OF_RUNGS = ("training", "training.epochs", "training.totalSteps", "training.validationFreq")


def rung_problems(spec: SweepSpec) -> Iterator[InvalidSpec]:
    """Yield every mistake of early stopping; none without it."""
    if not early_stopping(spec):
        return
    if value_at(spec.job, ("program", "script")) is not None:
        mistake = "a script decides itself how long it trains"
        yield InvalidSpec("spec.job.program.script", mistake, next_step="Remove stop.earlyStopping, or use a function.")
        return
    if value_at(spec.job, ("output", "uri")) is None:
        mistake = "missing: a trial continues from its checkpoint in the run folder"
        yield InvalidSpec("spec.job.output.uri", mistake, next_step="Add a folder; trials get folders below it.")
    for path, why in _CONFLICTS.items():
        value = value_at(spec.job, path)
        if value is not None and (path[-1] != "resume" or value == "Never"):
            where = field_text(path, "spec.job")
            yield InvalidSpec(where, f"{value!r} with early stopping", next_step=why)
    for number, parameter in enumerate(spec.parameters):
        if parameter.path in _OF_RUNGS:
            mistake = f"{parameter.path!r} decides the rungs of early stopping, which all trials share"
            yield InvalidSpec(f"spec.parameters[{number}].path", mistake, next_step="Set it in spec.job.")
    try:
        epochs = job_epochs(spec.job)
    except ValueError:
        mistake = "missing: early stopping counts epochs"
        yield InvalidSpec(
            "spec.job.training.epochs", mistake, next_step="Add the epochs of a trial that is not stopped."
        )
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
        mistake = f"{minimum}, and the job trains for {epochs}"
        yield InvalidSpec("spec.stop.earlyStopping.minEpochs", mistake, expected=f"at most {epochs}")
        return
    every = value_at(spec.job, ("training", "validationFreq"))
    schedule = rungs(spec)
    if not isinstance(every, int) or schedule is None or not spec.objective.metric.startswith("val_"):
        return
    without = [epoch for epoch in schedule.epochs if epoch % every]
    if without:
        mistake = f"{every}: no validation after epoch {without[0]}, where trials are compared"
        yield InvalidSpec("spec.job.training.validationFreq", mistake, next_step="Remove it, or change minEpochs.")


def _application_metrics(job: Mapping[str, Any]) -> list[str]:
    """Return the names of the metrics that a job of an application reports."""
    written = value_at(dict(job), ("training", "metrics"))
    if isinstance(written, Sequence) and not isinstance(written, str):
        names = [_name(metric) for metric in written if isinstance(metric, Mapping)]
    else:
        names = [_name({"className": metric.class_name, "config": metric.config}) for metric in METRICS]
    trained = ["loss", *names]
    return [*trained, *(f"val_{name}" for name in trained if _has_validation(job))]


def _has_validation(job: Mapping[str, Any]) -> bool:
    """Return whether the job has validation data."""
    return bool(value_at(dict(job), ("data", "validation")))


def _name(metric: Mapping[str, Any]) -> str:
    """Return the name under which Keras reports the metric."""
    config = metric.get("config")
    if isinstance(config, Mapping) and isinstance(config.get("name"), str):
        return str(config["name"])
    name = str(metric.get("className", ""))
    # As keras.src.utils.naming.to_snake_case.
    name = re.sub(r"(.)([A-Z][a-z]+)", r"\1_\2", re.sub(r"\W+", "", name))
    return re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower()


# A part of 1 MiB; the rest is for the spec, the conditions and Kubernetes' own fields.
_MOST_STATUS_BYTES = 900_000
# A trial without its parameters: numbers, names, times, messages and the values of four rungs.
_TRIAL_BYTES = 450
# More mistakes of one parameter's values tell nothing new.
_MOST_VALUE_PROBLEMS = 3


def sweep_problems(document: Mapping[str, Any], settings: ClusterSettings) -> DocumentProblems:
    """Return every mistake of a sweep that can be found in its document. `settings` are those of its jobs' cluster.

    A job is checked for each value of each parameter and both ends of each range, the others at their first value.
    """
    kind = (document.get("apiVersion"), document.get("kind"))
    if not is_served(kind[0]) or kind[1] != SWEEP_KIND:
        mistake = f"apiVersion and kind are {kind[0]!r}, {kind[1]!r}"
        field = "kind" if is_served(kind[0]) else "apiVersion"
        return DocumentProblems((InvalidSpec(field, mistake, expected=f"{API_VERSION!r}, {SWEEP_KIND!r}"),))
    written = {key: value for key, value in document.items() if key != "status"}
    sweep, invalid = MPTrainingSweep.validate_document(written)
    if sweep is None:
        return DocumentProblems(tuple(field.problem for field in invalid))
    spec = sweep.spec
    problems = [
        *_name_problems(sweep.metadata.name),
        *parameter_problems(spec),
        *_limit_problems(spec),
        *rung_problems(spec),
        *_metric_problems(spec),
    ]
    doubts: tuple[InvalidSpec, ...] = ()
    # The jobs of a search that cannot be enumerated would be other jobs than the user means.
    if not problems:
        jobs = _job_problems(sweep, settings)
        problems += jobs.problems
        doubts = jobs.doubts
    return DocumentProblems(tuple(problems), doubts)


def _name_problems(name: str) -> list[InvalidSpec]:
    if SWEEP_NAME.fullmatch(name):
        return []
    expected = "at most 37 characters of a-z, 0-9 and -, beginning with a letter: trials add their number"
    return [InvalidSpec("metadata.name", repr(name), expected=expected)]


def _limit_problems(spec: SweepSpec) -> Iterator[InvalidSpec]:
    trials = max_trials(spec)
    size = _TRIAL_BYTES + sum(_longest_value(parameter) for parameter in spec.parameters)
    if trials * size > _MOST_STATUS_BYTES:
        yield InvalidSpec(
            "spec.trials.max",
            f"{trials} trials of {len(spec.parameters)} parameters make a status of about {trials * size // 1000} kB",
            expected=f"at most {_MOST_STATUS_BYTES // size} trials",
            next_step="Search fewer parameters, or shorter values.",
        )
    if spec.algorithm.reproducible and early_stopping(spec) and parallel(spec) > 1:
        yield InvalidSpec(
            "spec.algorithm.reproducible",
            "early stopping compares trials in the order in which they end",
            expected="trials.parallel: 1, or no early stopping",
        )
    if spec.algorithm.name == "CMA-ES" and early_stopping(spec):
        yield InvalidSpec(
            "spec.algorithm.name",
            "CMA-ES learns from trials that trained to the end alone",
            expected="TPE, Random or Hyperband with early stopping",
        )
    if spec.algorithm.name == "Grid" and max_trials(spec) == MOST_TRIALS and not (spec.trials and spec.trials.max):
        yield InvalidSpec(
            "spec.parameters",
            f"the grid has {MOST_TRIALS} combinations or more",
            expected="fewer, or trials.max",
            next_step="Use larger steps, or an algorithm that samples.",
        )


def _longest_value(parameter: Parameter) -> int:
    """Return the bytes of the parameter in a trial's status."""
    values = [len(json.dumps(choice)) for choice in parameter.values or ()]
    return len(parameter.path) + max(values, default=22) + 4


def _metric_problems(spec: SweepSpec) -> list[InvalidSpec]:
    """Return what is wrong with the objective's metric; nothing about metrics that the code of the program decides."""
    where, metric, program = "spec.objective.metric", spec.objective.metric, value_at(spec.job, ("program",))
    script = value_at(program, ("script",)) is not None
    if script or any(parameter.path.startswith("training.metrics") for parameter in spec.parameters):
        return []
    if metric.startswith("val_") and not _has_validation(spec.job):
        mistake = f"{metric!r}, and the job has no validation data"
        step = f"Add spec.job.data.validation, or use {metric.removeprefix('val_')}."
        return [InvalidSpec(where, mistake, next_step=step)]
    known = _application_metrics(spec.job)
    if metric in known or value_at(program, ("application",)) is None:
        return []
    mistake = f"the job reports no {metric!r}"
    return [InvalidSpec(where, mistake, expected=" or ".join(known), next_step=nearest(metric, known))]


def _job_problems(sweep: MPTrainingSweep, settings: ClusterSettings) -> DocumentProblems:
    """Return what is wrong with the jobs of trials, at the value of a parameter if only that value is wrong."""
    parameters = sweep.spec.parameters
    first = first_values(parameters, {})
    base = _problems_of(sweep, first, settings)
    problems = [_moved(problem, first, parameters, sweep.spec.job) for problem in base.problems]
    doubts = [_moved(doubt, first, parameters, sweep.spec.job) for doubt in base.doubts]
    known = set(map(str, base.problems))
    for number, parameter in enumerate(parameters):
        new: list[InvalidSpec] = []
        for field, value in _checked_values(parameter):
            values = first_values(parameters, {parameter.path: value})
            if parameter.path not in values:
                values = first_values(parameters, _activating(parameter, parameters) | {parameter.path: value})
            refused = (
                problem for problem in _problems_of(sweep, values, settings).problems if str(problem) not in known
            )
            new += [_at_value(problem, f"spec.parameters[{number}].{field}", parameter, value) for problem in refused]
        problems += new[:_MOST_VALUE_PROBLEMS]
        if len(new) > _MOST_VALUE_PROBLEMS:
            count = len(new) - _MOST_VALUE_PROBLEMS
            problems.append(InvalidSpec(f"spec.parameters[{number}]", f"{count} more mistakes of its values"))
    return DocumentProblems(tuple(problems), tuple(doubts))


def _problems_of(sweep: MPTrainingSweep, values: Mapping[str, Any], settings: ClusterSettings) -> DocumentProblems:
    try:
        spec = trial_spec(sweep.spec.job, values)
    except KeyError as error:
        mistake = f"has no section {error.args[0]!r}, which a parameter's path goes through"
        return DocumentProblems((InvalidSpec("spec", mistake, expected="a mapping there, or nothing"),))
    metadata = {"name": sweep.metadata.name}
    return document_problems({"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec}, settings)


def first_values(parameters: Sequence[Parameter], chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Return the chosen values, and the first value of every other parameter that is active."""
    values: dict[str, Any] = {}
    for other in parameters:
        if is_active(other, values):
            values[other.path] = chosen[other.path] if other.path in chosen else next(_checked_values(other))[1]
    return values


def _activating(parameter: Parameter, parameters: Sequence[Parameter]) -> dict[str, Any]:
    """Return values of other parameters with which this one is active."""
    if parameter.when is None:
        return {}
    other = next(earlier for earlier in parameters if earlier.path == parameter.when.path)
    return {other.path: parameter.when.values[0]} | _activating(other, parameters)


def _checked_values(parameter: Parameter) -> Iterator[tuple[str, Any]]:
    """Yield the field below the parameter, and its value: every one of a list, both ends of a range."""
    if parameter.values is not None:
        for index, value in enumerate(parameter.values):
            yield f"values[{index}]", value
    elif parameter.int_ is not None:
        numbers = integers(parameter.int_)
        yield "int.low", numbers[0]
        yield "int.high", numbers[-1]
    else:
        bounds = parameter.log_uniform or parameter.uniform
        name = "logUniform" if parameter.log_uniform else "uniform"
        assert bounds is not None
        yield f"{name}.low", bounds.low
        yield f"{name}.high", bounds.high


def _moved(
    problem: InvalidSpec, values: Mapping[str, Any], parameters: Iterable[Parameter], job: dict[str, Any]
) -> InvalidSpec:
    """Return the problem of a job at its field of the sweep."""
    field = problem.where.removeprefix("spec.")
    section, _, last = field.rpartition(".")
    for number, parameter in enumerate(parameters):
        if parameter.path not in values:
            continue
        # A section that is not in the job is there because of the parameter.
        created = "." in section and parameter.path.startswith(f"{section}.") and _absent(job, section)
        if problem.found == "missing" and created:
            mistake = f"this parameter sets {section}, so the job must name it: spec.job.{field} is missing"
            step = f"Add {section.rpartition('.')[2]}: {{{last}: …}} to spec.job.{section.rpartition('.')[0]}."
            return InvalidSpec(f"spec.parameters[{number}].path", mistake, next_step=step)
        above = parameter.path.startswith(f"{field}.") and _absent(job, field)
        if above or field == parameter.path or field.startswith((f"{parameter.path}.", f"{parameter.path}[")):
            part, value = next(_checked_values(parameter))
            return _at_value(problem, f"spec.parameters[{number}].{part}", parameter, value)
    where = f"spec.job.{field}" if problem.where.startswith("spec.") else "spec.job" if field == "spec" else field
    return problem.at(where)


def _absent(job: dict[str, Any], field: str) -> bool:
    return value_at(job, field_path(field)) is None


def _at_value(problem: InvalidSpec, where: str, parameter: Parameter, value: object) -> InvalidSpec:
    mistake = f"with {parameter.path}: {json.dumps(value)} a trial's job is refused: {problem.where}: {problem.found}"
    return InvalidSpec(where, mistake, expected=problem.expected, next_step=problem.next_step)
