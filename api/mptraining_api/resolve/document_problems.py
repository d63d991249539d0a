"""Every mistake in a job's document at once: fields, rules, what `resolve` refuses, names that Keras does not know."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mptraining_api import accelerators
from mptraining_api.problems import InvalidSpec
from mptraining_api.resolve import alternatives
from mptraining_api.resolve.batch_size import global_batch_size
from mptraining_api.resolve.devices import requested_devices, strategy
from mptraining_api.resolve.precision import keras_generation, precision
from mptraining_api.resolve.resolve import ClusterSettings, resolve
from mptraining_api.rules.check import violations
from mptraining_api.spec import JobSpec, MPTrainingJob
from mptraining_api.validation.keras_names import Generation, unknown_names
from mptraining_api.validation.messages import InvalidField
from mptraining_api.validation.mistakes import FieldPath, field_text, value_at


@dataclass(frozen=True, slots=True)
class DocumentProblems:
    """`problems` that the job can never work with; `doubts` about names that the user's own code may define."""

    problems: tuple[InvalidSpec, ...]
    doubts: tuple[InvalidSpec, ...] = ()


def document_problems(
    document: Mapping[str, Any], settings: ClusterSettings, *, other_keras: bool = False
) -> DocumentProblems:
    """Return every mistake that can be found in the document of a job without its files.

    `other_keras`: the job will run with another Keras than the table of names was made from, so that an unknown name
    is a doubt.
    """
    job, invalid = MPTrainingJob.validate_document(document)
    problems = [field.problem for field in invalid]
    if job is None:
        job, _ = MPTrainingJob.validate_document(_without(document, invalid))
    unknown = list(_unknown_accelerators(document))
    unnamed = {problem.where.removesuffix(".type") for problem in unknown}
    if job is not None:
        hidden = {field_text(field.path[:-1]) for field in invalid}
        broken = violations(job)
        others = [*broken]
        _add(others, _problems_of_machines(job, settings, broken))
        if not unknown and not broken:
            _add(others, _resolve_problems(job, settings, complete=not others))
        others = [problem for problem in others if not _is_of_kind(problem.where, unnamed)]
        problems += [problem for problem in others if not _is_hidden(problem.where, hidden)]
    problems = [*unknown, *problems, *_rates_in_quotes(document)]
    names = list(unknown_names(document.get("spec"), _generation(job)))
    if other_keras or _may_define_names(document):
        return DocumentProblems(tuple(problems), tuple(names))
    return DocumentProblems((*problems, *names))


def _without(document: Mapping[str, Any], invalid: Sequence[InvalidField]) -> dict[str, Any]:
    """Return the document without its invalid fields, so that the rules can look at the others."""
    copied = copy.deepcopy(dict(document))
    for field in invalid:
        parent = value_at(copied, field.path[:-1])
        if isinstance(parent, dict) and field.path:
            parent.pop(str(field.path[-1]), None)
    return copied


def _unknown_accelerators(document: Mapping[str, Any]) -> Iterator[InvalidSpec]:
    """Yield the problem of every machine whose type is not in the catalogue."""
    first: FieldPath = ("spec", "accelerator")
    others = value_at(document, (*first, "alternatives"))
    paths = [
        first,
        *((*first, "alternatives", index) for index in range(len(others) if isinstance(others, list) else 0)),
    ]
    for path in paths:
        name = value_at(document, (*path, "type"))
        try:
            if isinstance(name, str) and name:
                accelerators.lookup(name)
        except InvalidSpec as problem:
            yield InvalidSpec(field_text((*path, "type")), problem.found, next_step=problem.next_step)


def _is_of_kind(field: str, machines: set[str]) -> bool:
    """Return whether a rule on the kind of one of the machines has this field: an unknown type has no kind."""
    machine, _, name = field.rpartition(".")
    return machine in machines and name in ("partition", "topology")


def _add(problems: list[InvalidSpec], others: Iterable[InvalidSpec]) -> None:
    """Append those of `others` whose field has no problem yet."""
    for problem in others:
        if problem.where not in {known.where for known in problems}:
            problems.append(problem)


def _is_hidden(field: str, sections: set[str]) -> bool:
    """Return whether one of the sections with an invalid field is around `field`.

    A machine has no problem because another field of the spec is absent.
    """
    around = sections - {"spec"} if field.startswith("spec.accelerator.") else sections
    return any(field.startswith(section) for section in around)


def _problems_of_machines(
    job: MPTrainingJob, settings: ClusterSettings, broken: Sequence[InvalidSpec]
) -> Iterator[InvalidSpec]:
    """Yield the problems of each machine by itself, without those of the job's `broken` rules."""
    yield from _problems_of_machine(job.spec, settings)
    known = {problem.where for problem in broken}
    for alternative in alternatives.jobs(job, None):
        problems = [problem for problem in violations(alternative.job) if problem.where not in known]
        for problem in (*problems, *_problems_of_machine(alternative.job.spec, settings)):
            yield alternatives.relocated(alternative, problem)


def _problems_of_machine(spec: JobSpec, settings: ClusterSettings) -> Iterator[InvalidSpec]:
    if spec.accelerator.type not in accelerators.catalogue():
        return
    try:
        devices = requested_devices(spec, settings.node_labels)
    except InvalidSpec as problem:
        yield problem
        return
    yield from _refusals(
        lambda: strategy(spec, devices), lambda: precision(spec, devices, devices, keras_generation(spec, devices)[0])
    )


def _refusals(*decisions: Callable[[], object]) -> Iterator[InvalidSpec]:
    for decision in decisions:
        try:
            decision()
        except InvalidSpec as problem:
            yield problem


def _resolve_problems(job: MPTrainingJob, settings: ClusterSettings, *, complete: bool) -> Iterator[InvalidSpec]:
    """Yield what `resolve` refuses of a job that keeps the rules.

    `complete`: whether every machine by itself is right, so that the job can be resolved.
    """
    if complete:
        yield from _refusals(lambda: resolve(job, settings))
    elif job.spec.program.is_trained_here:
        yield from _refusals(lambda: global_batch_size(job.spec, requested_devices(job.spec, settings.node_labels)))


def _rates_in_quotes(document: Mapping[str, Any]) -> list[InvalidSpec]:
    """Return the problem of a learning rate that is text, which Keras would refuse after TensorFlow has started."""
    path: FieldPath = ("spec", "training", "optimizer", "config", "learning_rate")
    rate = value_at(document, path)
    if not isinstance(rate, str):
        return []
    return [InvalidSpec(field_text(path), f"{rate!r} is text", expected="a number", next_step="Remove the quotes.")]


def _generation(job: MPTrainingJob | None) -> Generation:
    if job is None or job.spec.keras == "Legacy":
        return "Legacy" if job else "Keras3"
    try:
        return keras_generation(job.spec, requested_devices(job.spec))[0]
    except InvalidSpec:
        return "Keras3"


def _may_define_names(document: Mapping[str, Any]) -> bool:
    """Return whether code of the user, or another image's Keras, may know more names than the table."""
    preprocess = value_at(document, ("spec", "data", "preprocess"))
    paths: tuple[FieldPath, ...] = (("spec", "program", "function"), ("spec", "podTemplate", "image"))
    return ":" in str(preprocess or "") or any(value_at(document, path) is not None for path in paths)
