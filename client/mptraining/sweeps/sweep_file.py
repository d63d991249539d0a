"""A sweep's file: every mistake in it at once, before a cluster or a folder is touched.

A sweep of a function program may have no parameters: the trainer's verb `hyperparameters` then calls `build(hp)`
without training, and reports what it asks KerasTuner for.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mptraining.job_file.checked_job import Settings, notes_of
from mptraining.job_file.data import check_data
from mptraining.job_file.paths import source_folder, with_absolute_paths
from mptraining_api import events, run_folder
from mptraining_api.events import Hyperparameter
from mptraining_api.launch import JOB_FILE, SOURCE_FOLDER
from mptraining_api.problems import InvalidProgram, InvalidSpec
from mptraining_api.resolve.resolve import ClusterSettings, resolve
from mptraining_api.spec import API_VERSION, KIND, MPTrainingJob
from mptraining_api.sweep.check import sweep_problems
from mptraining_api.sweep.spec import MOST_VALUES, SWEEP_KIND, MPTrainingSweep
from mptraining_api.validation.job_text import load_job_text
from mptraining_api.validation.mistakes import value_at
from mptraining_api.validation.yaml_text import YamlDocument

READER = (sys.executable, "-m", "mptraining_trainer", "hyperparameters")


@dataclass(frozen=True, slots=True)
class CheckedSweep:
    """A sweep without mistakes, and notes for its author."""

    sweep: MPTrainingSweep
    notes: tuple[str, ...]


def check_sweep_file(
    path: Path, *, settings: Settings, here: bool = False, document: Mapping[str, Any] | None = None
) -> CheckedSweep:
    """Check the sweep in the file at `path`; with `here` as one that will run on this machine.

    `document` is a sweep that is in no file; its relative paths begin in the folder of `path`. Raises InvalidJobFile
    with every mistake and its line, and InvalidSpec for a file that cannot be read.
    """
    text = load_job_text(path, kind=SWEEP_KIND) if document is None else YamlDocument("", document, {})
    folder = path.absolute().parent
    document, notes = with_parameters_of_program(text.content, folder)
    accelerator = str(value_at(document, ("spec", "job", "accelerator", "type")))
    checked = sweep_problems(_with_folder(document) if here else document, settings(accelerator))
    data = check_data(value_at(document, ("spec", "job")), folder, here=here)
    if checked.problems or data.problems:
        below_job = (problem.at(re.sub(r"^spec\.", "spec.job.", problem.where)) for problem in data.problems)
        raise text.located([*checked.problems, *below_job])
    about = (*notes, *notes_of(text, checked), *data.notes)
    return CheckedSweep(MPTrainingSweep.parse_document(document), about)


def _with_folder(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the document as it runs on this machine, where every sweep has a folder."""
    job = value_at(document, ("spec", "job"))
    if not isinstance(job, Mapping) or job.get("output") is not None:
        return document
    return {**document, "spec": {**document["spec"], "job": {**job, "output": {"uri": "runs"}}}}


def with_parameters_of_program(
    document: Mapping[str, Any], folder: Path, *, command: Sequence[str] = READER
) -> tuple[Mapping[str, Any], list[str]]:
    """Return the document of a sweep with the parameters of its program if it has none of its own, and notes.

    `folder` is that of the file, where the program is; `command` starts the trainer. A document whose program is no
    function stays as it is. Raises InvalidProgram if the function cannot be called.
    """
    spec = document.get("spec")
    function = value_at(spec, ("job", "program", "function"))
    entry_point, arguments = value_at(function, ("entryPoint",)), value_at(function, ("arguments",))
    if not isinstance(spec, Mapping) or spec.get("parameters") or not isinstance(entry_point, str):
        return document, []
    try:
        space = _read_space(spec["job"], folder, command)
    except InvalidSpec:
        # The check of the sweep reports what is wrong with its job, with the lines.
        return document, []
    given = arguments if isinstance(arguments, Mapping) else {}
    parameters, notes = parameters_of([searched for searched in space if searched.path.split(".")[-1] not in given])
    if not parameters:
        step = "Name the fields to search in spec.parameters."
        raise InvalidSpec("spec.parameters", f"missing, and {entry_point} asks for no hyperparameter", next_step=step)
    return {**document, "spec": {**spec, "parameters": parameters}}, notes


def parameters_of(space: Sequence[Hyperparameter]) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the parameters of a sweep for the hyperparameters of the trainer's report, and notes on what differs.

    A fixed hyperparameter needs no search.
    """
    parameters, notes = [], []
    for searched in space:
        if searched.kind == "fixed":
            continue
        parameter = {"path": searched.path, **_values(searched)}
        if searched.when:
            # The conditions of an inner scope contain those of the outer ones, which its own condition implies.
            parameter["when"] = {"path": searched.when[-1].path, "values": list(searched.when[-1].values)}
        parameters.append(parameter)
        sampling = searched.sampling or "linear"
        if searched.step is None and sampling != "linear" and "logUniform" not in parameter:
            notes.append(f"{searched.path}: sampled uniformly, and not by {sampling}")
    return parameters, notes


def _values(searched: Hyperparameter) -> dict[str, Any]:
    """Return the values of a parameter: a list, or the range with the scale that is nearest to KerasTuner's."""
    low, high, step = searched.low, searched.high, searched.step
    if low is None or high is None:
        return {"values": list(searched.values)}
    if step is not None and searched.sampling not in (None, "linear"):
        return {"values": _geometric(searched, low, high, step)}
    if searched.kind == "int":
        return {"int": {"low": low, "high": high, **({} if step is None else {"step": int(step)})}}
    if step is not None:
        count = min(MOST_VALUES, int((high - low) / step + 1e-9) + 1)
        return {"values": [low + at * step for at in range(count)]}
    return {"logUniform" if searched.sampling == "log" else "uniform": {"low": low, "high": high}}


def _geometric(searched: Hyperparameter, low: float, high: float, factor: float) -> list[float]:
    """Return low, low * factor, … up to high; under reverse_log the factors count from the upper end."""
    values: list[float] = []
    value = low
    while value <= high * (1 + 1e-9) and len(values) < MOST_VALUES:
        values.append(value if searched.sampling == "log" else high + low - value)
        value *= factor
    return list(map(round, values)) if searched.kind == "int" else values


def _read_space(spec: Mapping[str, Any], folder: Path, command: Sequence[str]) -> Sequence[Hyperparameter]:
    """Return the hyperparameters that the trainer reports. Raises InvalidProgram."""
    if tuple(command) == READER and importlib.util.find_spec("tensorflow") is None:
        step = "Name them, or install TensorFlow here: pip install 'mptraining[trainer-cpu]'"
        raise InvalidProgram("spec.parameters", "missing; the program is asked for them", next_step=step)
    document = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "search-space"}, "spec": dict(spec)}
    with tempfile.TemporaryDirectory(prefix="mptj-") as temporary:
        parsed = MPTrainingJob.parse(document, where="")
        job = resolve(with_absolute_paths(parsed, folder=folder, default_output=f"{temporary}/run"), ClusterSettings())
        job_file = Path(temporary) / run_folder.JOB
        job_file.write_text(job.to_json(), encoding="utf-8")
        environment = {"TF_CPP_MIN_LOG_LEVEL": "2", **os.environ, "CUDA_VISIBLE_DEVICES": "-1"}
        environment |= {JOB_FILE: str(job_file), SOURCE_FOLDER: str(source_folder(job, folder))}
        ended = subprocess.run(  # noqa: S603 - the trainer's command, no shell
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
    message = f"the trainer ended with exit code {ended.returncode} and without a search space"
    for line in ended.stdout.splitlines():
        match events.parse(line):
            case events.SearchSpace(hyperparameters=space) if ended.returncode == 0:
                return space
            case events.Finished(message=str(reported)) if reported:
                message = reported
    raise InvalidProgram("spec.parameters", f"missing, and the program tells none: {message}")
