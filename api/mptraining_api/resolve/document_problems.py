"""Every mistake in a job's document at once: fields, rules, what `resolve` refuses, names that Keras does not know."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mptraining_api import accelerators
from mptraining_api.problems import InvalidSpec
from mptraining_api.resolve.batch_size import global_batch_size
from mptraining_api.resolve.devices import requested_devices, strategy
from mptraining_api.resolve.precision import keras_generation, precision
from mptraining_api.resolve.resolve import ClusterSettings, resolve
from mptraining_api.rules.check import violations
from mptraining_api.spec import MPTrainingJob
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
    problems = [each.problem for each in invalid]
    if job is None:
        job, _ = MPTrainingJob.validate_document(_without(document, invalid))
    accelerator = _unknown_accelerator(document)
    if job is not None:
        hidden = {field_text(each.path[:-1]) for each in invalid}
        found = violations(job) or ([] if accelerator else _resolve_problems(job, settings))
        problems += [each for each in found if not any(each.where.startswith(section) for section in hidden)]
    problems += [*accelerator, *_rates_in_quotes(document)]
    names = list(unknown_names(document.get("spec"), _generation(job)))
    if other_keras or _may_define_names(document):
        return DocumentProblems(tuple(problems), tuple(names))
    return DocumentProblems((*problems, *names))


def _without(document: Mapping[str, Any], invalid: Sequence[InvalidField]) -> dict[str, Any]:
    """Return the document without its invalid fields, so that the rules can look at the others."""
    copied = copy.deepcopy(dict(document))
    for each in invalid:
        parent = value_at(copied, each.path[:-1])
        if isinstance(parent, dict) and each.path:
            parent.pop(str(each.path[-1]), None)
    return copied


def _unknown_accelerator(document: Mapping[str, Any]) -> list[InvalidSpec]:
    name = value_at(document, ("spec", "accelerator", "type"))
    if not isinstance(name, str) or not name:
        return []
    try:
        accelerators.lookup(name)
    except InvalidSpec as problem:
        return [problem]
    return []


def _resolve_problems(job: MPTrainingJob, settings: ClusterSettings) -> list[InvalidSpec]:
    """Return what `resolve` refuses: each independent decision is tried, where `resolve` stops at the first."""
    spec, found = job.spec, list[InvalidSpec]()

    def tried(decision: Callable[[], object]) -> None:
        try:
            decision()
        except InvalidSpec as problem:
            if str(problem) not in map(str, found):
                found.append(problem)

    try:
        wanted = requested_devices(spec, multi_host_tpu=settings.experimental_multi_host_tpu or settings.cpu_fallback)
    except InvalidSpec as problem:
        return [problem]
    if spec.program.is_trained_here:
        tried(lambda: global_batch_size(spec, wanted))
    tried(lambda: strategy(spec, wanted))
    tried(lambda: precision(spec, wanted, wanted, keras_generation(spec, wanted)[0]))
    tried(lambda: resolve(job, settings))
    return found


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
        return keras_generation(job.spec, requested_devices(job.spec, multi_host_tpu=True))[0]
    except InvalidSpec:
        return "Keras3"


def _may_define_names(document: Mapping[str, Any]) -> bool:
    """Return whether code of the user, or another image's Keras, may know more names than the table."""
    preprocess = value_at(document, ("spec", "data", "preprocess"))
    paths: tuple[FieldPath, ...] = (("spec", "program", "function"), ("spec", "podTemplate", "image"))
    return ":" in str(preprocess or "") or any(value_at(document, path) is not None for path in paths)
