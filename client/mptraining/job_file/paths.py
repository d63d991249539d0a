"""Paths of a job file, which are relative to its folder, and as the user types them."""

from __future__ import annotations

import os
import re
from pathlib import Path

from mptraining_api.outputs.fields import Output
from mptraining_api.resolved_job import ResolvedJob
from mptraining_api.spec import JobSpec, MPTrainingJob

_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)


def absolute_path(path: str, folder: Path) -> str:
    """Return `path` relative to `folder` as an absolute path; URIs and absolute paths are unchanged."""
    return path if _SCHEME.match(path) else os.path.normpath(folder / path)


def with_absolute_paths(
    job: MPTrainingJob, *, folder: Path, default_output: str, output: str | None = None
) -> MPTrainingJob:
    """Return the job with absolute paths.

    `folder` is the folder of the job file. The run folder is `output`, else the job's, else `default_output`. All three
    are absolute.
    """

    def absolute(path: str) -> str:
        return absolute_path(path, folder)

    spec, data, program = job.spec, job.spec.data, job.spec.program
    if data is not None:
        sections = {"train": data.train, "validation": data.validation, "predict": data.predict}
        data = data.model_copy(update={name: uris and list(map(absolute, uris)) for name, uris in sections.items()})
    update: dict[str, object] = {}
    if program.application is not None and program.application.weights not in (None, "none", "imagenet"):
        weights = absolute(program.application.weights or "")
        update = {"application": program.application.model_copy(update={"weights": weights})}
    elif (prediction := program.prediction) is not None:
        paths = {"model": absolute(prediction.model), "to": prediction.to and absolute(prediction.to)}
        update = {"prediction": prediction.model_copy(update=paths)}
    elif (ensemble := program.ensemble) is not None:
        update = {"ensemble": ensemble.model_copy(update={"members": list(map(absolute, ensemble.members))})}
    uri = output or (absolute(spec.output.uri) if spec.output else default_output)
    changed = {"data": data, "program": program.model_copy(update=update), "output": Output(uri=uri)}
    return job.model_copy(update={"spec": spec.model_copy(update=changed)})


def source_folder(job: ResolvedJob | JobSpec, folder: Path) -> Path:
    """Return the folder of the program's code; `folder` is the folder of the job file.

    It is `source/` in the same folder for a job with `spec.source`, if that exists: the files of its ConfigMap or
    archive. In all other cases it is the folder of the job file itself.
    """
    below = folder / "source"
    return below if job.source is not None and below.is_dir() else folder


def typed_path(folder: str, here: Path) -> str:
    """Return `folder` as the user may type it: relative to the current folder `here` if it is below.

    It has a slash, because `mptj` takes a word without one for the name of a job.
    """
    below = Path(folder).is_relative_to(here) and "://" not in folder
    path = str(Path(folder).relative_to(here)) if below else folder
    return path if "/" in path else f"./{path}"
