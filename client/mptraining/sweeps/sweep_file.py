"""A sweep's file: every mistake in it at once, before TensorFlow, a cluster or a folder is touched."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mptraining.job_file.data import check_data
from mptraining.sweeps.program_space import with_parameters_of_program
from mptraining_api.problems import Problem
from mptraining_api.resolve.resolve import ClusterSettings
from mptraining_api.sweep.check import sweep_problems
from mptraining_api.sweep.spec import SWEEP_KIND, MPTrainingSweep
from mptraining_api.validation.job_text import load_job_text
from mptraining_api.validation.mistakes import value_at
from mptraining_api.validation.yaml_text import YamlDocument

# The settings for a type of accelerator.
Settings = Callable[[str], ClusterSettings]


@dataclass(frozen=True, slots=True)
class CheckedSweep:
    """A sweep without mistakes, and notes for its author."""

    sweep: MPTrainingSweep
    notes: tuple[str, ...]


def check_sweep_file(
    path: Path, *, here: bool = False, settings: Settings = lambda _: ClusterSettings()
) -> CheckedSweep:
    """Check the sweep in the file at `path`; with `here` as one that will run on this machine.

    Raises InvalidJobFile with every mistake and its line, and InvalidSpec for a file that cannot be read.
    """
    return _check(load_job_text(path, kind=SWEEP_KIND), path.absolute().parent, here=here, settings=settings)


def check_sweep_document(
    document: Mapping[str, Any], folder: Path, *, here: bool = False, settings: Settings = lambda _: ClusterSettings()
) -> CheckedSweep:
    """Check a sweep that was not written as a file; its relative paths begin in `folder`."""
    return _check(YamlDocument("", document, {}), folder, here=here, settings=settings)


def _check(text: YamlDocument, folder: Path, *, here: bool, settings: Settings) -> CheckedSweep:
    document, notes = with_parameters_of_program(text.content, folder)
    type = str(value_at(document, ("spec", "job", "accelerator", "type")))
    found = sweep_problems(_with_folder(document) if here else document, settings(type))
    data = check_data(value_at(document, ("spec", "job")), folder, here=here)
    if found.problems or data.problems:
        raise text.located([*found.problems, *(_below_job(each) for each in data.problems)])
    about = [f"line {line}: {each}" for line, each in text.ambiguous]
    about += [f"{each.where}: {each.found}, unless the program registers it. {each.next_step}" for each in found.doubts]
    return CheckedSweep(MPTrainingSweep.parse_document(document), (*notes, *about, *data.notes))


def _with_folder(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the document as it runs on this machine, where every sweep has a folder."""
    job = value_at(document, ("spec", "job"))
    if not isinstance(job, Mapping) or job.get("output") is not None:
        return document
    return {**document, "spec": {**document["spec"], "job": {**job, "output": {"uri": "runs"}}}}


def _below_job(problem: Problem) -> Problem:
    """Return a problem of the job's spec with its place in the sweep."""
    return problem.at(re.sub(r"^spec\.", "spec.job.", problem.where))
