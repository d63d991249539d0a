"""Parameters from the program: the hyperparameters that `build(hp)` of a function program asks KerasTuner for.

The trainer's verb `hyperparameters` calls the function without training and reports its search space as an event. This
module is the one place where a sweep asks for it.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mptraining.job_file.paths import source_folder, with_absolute_paths
from mptraining_api import events, run_folder
from mptraining_api.launch import JOB_FILE, SOURCE_FOLDER
from mptraining_api.problems import InvalidProgram, InvalidSpec
from mptraining_api.resolve.resolve import ClusterSettings, resolve
from mptraining_api.spec import API_VERSION, KIND, MPTrainingJob
from mptraining_api.sweep.spec import MOST_VALUES
from mptraining_api.validation.mistakes import value_at

READER = (sys.executable, "-m", "mptraining_trainer", "hyperparameters")
_EVENT = "SearchSpace"


def with_parameters_of_program(
    document: Mapping[str, Any], folder: Path, *, command: Sequence[str] = READER
) -> tuple[Mapping[str, Any], list[str]]:
    """Return the document of a sweep with the parameters of its program if it has none of its own, and notes.

    `folder` is that of the file, where the program is; `command` starts the trainer. A document whose program is no
    function stays as it is. Raises InvalidProgram if the function cannot be called.
    """
    spec = document.get("spec")
    function = value_at(spec, ("job", "program", "function", "entryPoint"))
    if not isinstance(spec, Mapping) or spec.get("parameters") or not isinstance(function, str):
        return document, []
    try:
        space = _read_space(spec["job"], folder, command)
    except InvalidSpec:
        # The check of the sweep reports what is wrong with its job, with the lines.
        return document, []
    given = value_at(spec, ("job", "program", "function", "arguments"))
    searched = [each for each in space if _name(each) not in (given if isinstance(given, Mapping) else {})]
    parameters, notes = parameters_of(searched)
    if not parameters:
        step = "Name the fields to search in spec.parameters."
        raise InvalidSpec("spec.parameters", f"missing, and {function} asks for no hyperparameter", next_step=step)
    return {**document, "spec": {**spec, "parameters": parameters}}, notes


def parameters_of(space: Sequence[Mapping[str, Any]]) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the parameters of a sweep for the hyperparameters of the trainer's report, and notes on what differs.

    A fixed hyperparameter needs no search.
    """
    parameters, notes = [], []
    for each in space:
        if each["kind"] == "fixed":
            continue
        values, note = _values(each)
        # The conditions of an inner scope contain those of the outer ones, which its own condition implies.
        when = {"when": {key: each["when"][-1][key] for key in ("path", "values")}} if each.get("when") else {}
        parameters.append({"path": each["path"], **values, **when})
        if note:
            notes.append(f"{each['path']}: {note}")
    return parameters, notes


def _values(each: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """Return the values of a parameter, and a note if the search differs from that of KerasTuner."""
    if each["kind"] in ("choice", "boolean"):
        return {"values": list(each["values"])}, ""
    low, high, step, sampling = each["low"], each["high"], each.get("step"), each.get("sampling") or "linear"
    if step is not None and sampling != "linear":
        return {"values": _geometric(low, high, step, whole=each["kind"] == "int", reverse=sampling != "log")}, ""
    if each["kind"] == "int":
        note = "" if sampling == "linear" else f"sampled uniformly, and not by {sampling}"
        return {"int": {"low": low, "high": high, **({} if step is None else {"step": int(step)})}}, note
    if step is not None:
        count = min(MOST_VALUES, int((high - low) / step + 1e-9) + 1)
        return {"values": [low + at * step for at in range(count)]}, ""
    if sampling == "log":
        return {"logUniform": {"low": low, "high": high}}, ""
    return {"uniform": {"low": low, "high": high}}, "" if sampling == "linear" else "sampled uniformly, not reverse_log"


def _geometric(low: float, high: float, factor: float, *, whole: bool, reverse: bool) -> list[float]:
    """Return low, low * factor, … up to high; with `reverse` the factors count from the upper end."""
    found: list[float] = []
    value = low
    while value <= high * (1 + 1e-9) and len(found) < MOST_VALUES:
        found.append(high + low - value if reverse else value)
        value *= factor
    return [round(each) for each in found] if whole else found


def _name(each: Mapping[str, Any]) -> str:
    return str(each["path"]).rpartition(".")[2]


def _read_space(spec: Mapping[str, Any], folder: Path, command: Sequence[str]) -> list[dict[str, Any]]:
    """Return the hyperparameters that the trainer reports. Raises InvalidProgram."""
    if tuple(command) == READER and importlib.util.find_spec("tensorflow") is None:
        step = "Name them, or install TensorFlow here: pip install 'mptraining[trainer-cpu]'"
        raise InvalidProgram("spec.parameters", "missing; the program is asked for them", next_step=step)
    document = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "search-space"}, "spec": dict(spec)}
    with tempfile.TemporaryDirectory(prefix="mptj-") as temporary:
        parsed = MPTrainingJob.parse(document, where="")
        job = resolve(with_absolute_paths(parsed, folder=folder, output=f"{temporary}/run"), ClusterSettings())
        job_file = Path(temporary) / run_folder.JOB
        job_file.write_text(job.to_json(), encoding="utf-8")
        environment = {"TF_CPP_MIN_LOG_LEVEL": "2", **os.environ, "CUDA_VISIBLE_DEVICES": "-1"}
        environment |= {JOB_FILE: str(job_file), SOURCE_FOLDER: str(source_folder(job, folder))}
        ended = subprocess.run(  # noqa: S603 - the trainer's command, no shell
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
    return _reported(ended.stdout, ended.returncode)


def _reported(output: str, exit_code: int) -> list[dict[str, Any]]:
    message = ""
    for line in output.splitlines():
        event = events.parse(line)
        if isinstance(event, events.Finished):
            message = event.message
        if f'"{_EVENT}"' in line and line.startswith("{"):
            found = json.loads(line)
            if found.get("kind") == _EVENT and exit_code == 0:
                return list(found["hyperparameters"])
    found_text = message or f"the trainer ended with exit code {exit_code} and without a search space"
    raise InvalidProgram("spec.parameters", f"missing, and the program tells none: {found_text}")
