"""Kind and place of a trained model, and the generation of Keras that it needs. Imports no TensorFlow."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from mptraining_api import run_folder
from mptraining_api.problems import InvalidData, InvalidSpec
from mptraining_api.resolved_job import ResolvedJob
from mptraining_api.spec import Program
from mptraining_storage import storage

ABOUT = "model.json"
Generation = Literal["Keras3", "Legacy"]


@dataclass(frozen=True)
class Location:
    """`export` is a `model/` that this trainer wrote, at `uri`; `run` is its run folder, None if it is elsewhere."""

    kind: Literal["export", "keras", "saved_model"]
    uri: str
    run: str | None = None

    @cached_property
    def about(self) -> Mapping[str, Any]:
        """The content of model.json; empty for a model without it. Raises InvalidData if it is damaged."""
        if self.kind != "export":
            return {}
        uri = storage.join(self.uri, ABOUT)
        try:
            document = json.loads(storage.read(uri))
        except ValueError:
            document = None
        if not isinstance(document, dict) or not isinstance(document.get("keras"), dict):
            raise InvalidData(uri, "cannot be read", expected="the file that an export wrote")
        return document

    @property
    def generation(self) -> Generation | None:
        """The generation of Keras that opens the model; None for a SavedModel, which needs none."""
        if self.kind == "export":
            return "Legacy" if self.about["keras"].get("generation") == "Legacy" else "Keras3"
        if self.kind == "keras":
            with storage.as_local_file(self.uri) as path:
                return _generation_of_file(path, self.uri)
        return None

    @property
    def identity(self) -> str:
        """A text that changes with the model's files."""
        if self.kind == "keras":
            return storage.stat(self.uri).version
        return " ".join(f"{file.uri.removeprefix(self.uri)}@{file.version}" for file in storage.list_objects(self.uri))

    def download(self, folder: Path) -> Path:
        """Return the local path of the model; one in a bucket is downloaded into `folder`."""
        if not storage.is_remote(self.uri):
            return storage.local_path(self.uri)
        if self.kind == "keras":
            storage.download(self.uri, folder / "model.keras")
            return folder / "model.keras"
        for stored in storage.list_objects(self.uri):
            path = folder / stored.uri.removeprefix(f"{self.uri}/")
            path.parent.mkdir(parents=True, exist_ok=True)
            storage.download(stored.uri, path)
        return folder

    def job(self) -> ResolvedJob | None:
        """Return the job of the run folder; None if there is none that can be read."""
        uri = storage.join(self.run, run_folder.JOB) if self.run is not None else None
        if uri is None or not storage.exists(uri):
            return None
        try:
            return ResolvedJob.read(storage.read(uri))
        except ValueError:
            return None


def locate(uri: str, field: str) -> Location:
    """Return the location of the model that `field` of the job names. Raises InvalidSpec if there is none."""
    base = uri.rstrip("/")
    if base.endswith(".keras"):
        if storage.exists(base):
            return Location("keras", base)
    else:
        if storage.exists(storage.join(base, run_folder.MODEL, ABOUT)):
            return Location("export", storage.join(base, run_folder.MODEL), base)
        if storage.exists(storage.join(base, ABOUT)):
            parent = base.rpartition("/")[0]
            inside = base.endswith(f"/{run_folder.MODEL}") and storage.exists(storage.join(parent, run_folder.JOB))
            return Location("export", base, parent if inside else None)
        if storage.exists(storage.join(base, "saved_model.pb")):
            return Location("saved_model", base)
        if storage.exists(storage.join(base, run_folder.JOB)):
            raise InvalidSpec(
                field, f"{uri!r} has no model", next_step="The run has not exported one yet; `mptj run` continues it."
            )
    raise InvalidSpec(
        field,
        f"there is no model at {uri!r}",
        expected="a run folder, its model/, a .keras file, or the folder of a SavedModel",
    )


def with_keras_of_models(job: ResolvedJob) -> ResolvedJob:
    """Return the job with the generation of Keras of its trained models; another job unchanged.

    Call it before Keras is imported. Raises InvalidSpec if a model is absent, or if the members of an ensemble differ.
    """
    generations = {field: locate(uri, field).generation for field, uri in trained_models(job.program).items()}
    first = next(iter(generations.values()), None)
    for field, generation in generations.items():
        if generation != first:
            raise InvalidSpec(
                field,
                f"a model of {generation}, and the first member is one of {first}",
                expected="members of one generation of Keras",
            )
    return job if first is None else job.model_copy(update={"keras": first})


def trained_models(program: Program) -> dict[str, str]:
    """Return the trained models that the program reads, by the field of each."""
    if program.prediction is not None:
        return {"spec.program.prediction.model": program.prediction.model}
    members = program.ensemble.members if program.ensemble is not None else ()
    return {f"spec.program.ensemble.members[{number}]": member for number, member in enumerate(members)}


def _generation_of_file(path: Path, uri: str) -> Generation:
    try:
        with zipfile.ZipFile(path) as archive:
            version = str(json.loads(archive.read("metadata.json"))["keras_version"])
    except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile):
        raise InvalidData(uri, "no model in Keras' format", expected="a file that model.save wrote") from None
    return "Legacy" if version.startswith("2.") else "Keras3"
