"""The job of a sweep's best trial, to train it once more or on a cluster."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mptraining.display.text import number
from mptraining.job_file.yaml_writer import to_yaml
from mptraining.sweeps.view import SweepView
from mptraining_api.problems import InvalidSpec
from mptraining_api.spec import GROUP
from mptraining_api.sweep.status import Trial
from mptraining_api.sweep.trial_job import job_document

# The annotation of a sweep on this machine: its file; relative paths begin in the folder of it.
SWEEP_FILE = f"{GROUP}/sweep-file"


def chosen_trial(view: SweepView, number: int | None = None) -> Trial:
    """Return a trial, by default the best. Raises InvalidSpec for one that does not exist, or if none has ended."""
    if number is not None:
        return view.trial(number)
    if view.status.best is None:
        raise InvalidSpec(view.name, "no trial has ended yet", next_step=f"mptj sweep status {view.where}")
    return view.trial(view.status.best.number)


def trial_job(view: SweepView, trial: int | None = None) -> dict[str, Any]:
    """Return the MPTrainingJob of a trial, by default the best one, with all its epochs and a run folder of its own.

    Raises InvalidSpec for a trial that does not exist.
    """
    document = job_document(view.sweep, chosen_trial(view, trial))
    # The job NAME-3 is the trial's own: on its cluster that name is taken.
    suffix = "best" if trial is None else f"trial-{trial}"
    document["metadata"] = {"name": f"{view.name}-{suffix}"}
    output = view.sweep.spec.job.get("output")
    if isinstance(output, Mapping) and output.get("uri"):
        document["spec"]["output"] = {"uri": f"{str(output['uri']).rstrip('/')}/{suffix}"}
    return document


def with_relative_output(document: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return the job with a run folder relative to `folder`, that of its file, if it is below."""
    spec = dict(document["spec"])
    uri = str((spec.get("output") or {}).get("uri") or "")
    if uri and "://" not in uri and Path(uri).is_relative_to(folder):
        spec["output"] = {"uri": os.path.relpath(uri, folder)}
    return {**document, "spec": spec}


def text(view: SweepView, document: Mapping[str, Any], trial: int | None = None) -> str:
    """Return the job file, which says in its first line where it comes from."""
    source = chosen_trial(view, trial)
    reached = "" if source.objective is None else f": {view.metric} {number(source.objective)}"
    return f"# Trial {source.number} of the sweep {view.name}{reached}.\n{to_yaml(document)}"


def default_file(view: SweepView, document: Mapping[str, Any], here: Path) -> Path:
    """Return the file to write, in the folder of the sweep's file: its relative paths and its program are there."""
    origin = (view.sweep.metadata.annotations or {}).get(SWEEP_FILE)
    folder = Path(origin).parent if origin and Path(origin).parent.is_dir() else here
    return folder / f"{document['metadata']['name']}.yaml"
