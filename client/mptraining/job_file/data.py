"""The data that a job names, looked at without TensorFlow: files, the manifest's features, and its classes.

A bucket is looked at only where Google credentials are present, for a few seconds at most; a network that does not
answer is no mistake of the job.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from mptraining.job_file.paths import absolute_path
from mptraining_api.problems import InvalidData, InvalidSpec, Problem, nearest
from mptraining_api.validation.messages import either
from mptraining_api.validation.mistakes import value_at

if TYPE_CHECKING:
    from mptraining_api.resolved_job import ResolvedJob
    from mptraining_records.tfrecord.manifest import Manifest

_SECTIONS = ("train", "validation", "predict")
_BUCKET_SECONDS = 5.0
# Other answers of a bucket, such as missing permission, may hold for this user only and not for the cluster's pods.
_ABSENT = ("nothing matches", "there is no bucket", "no such object")


@dataclass
class DataFindings:
    """Mistakes in `spec.data`, and notes on what could not be looked at."""

    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def check_data(spec: object, folder: Path, *, here: bool) -> DataFindings:
    """Look at the data of the job's `spec`; `folder` is the folder of the job file.

    With `here` the job will run on this machine; otherwise an absolute path may be one of the cluster's machines, and
    is looked at only if its folder exists here.
    """
    findings = DataFindings()
    for section in _SECTIONS:
        patterns = value_at(spec, ("data", section))
        if isinstance(patterns, list) and all(isinstance(pattern, str) for pattern in patterns):
            matching = [
                _look_at(pattern, f"spec.data.{section}[{index}]", folder, here, findings)
                for index, pattern in enumerate(patterns)
            ]
            if section == "train" and all(matching):
                findings.problems += _check_manifest(spec, list(filter(None, matching)))
    return findings


def absent_models(job: ResolvedJob, folder: Path, *, here: bool) -> list[Problem]:
    """Return the mistakes of the models on this machine that the job reads, as far as their files show them."""
    from mptraining_storage import model_location, storage

    problems: list[Problem] = []
    for where, uri in model_location.trained_models(job.program).items():
        if not storage.is_remote(uri) and (here or not PurePosixPath(uri).is_absolute()):
            try:
                _ = model_location.locate(absolute_path(uri, folder), where).generation
            except Problem as problem:
                problems.append(problem)
    return problems


def names_classes(pattern: str, folder: Path) -> bool:
    """Return whether a local manifest of the records that match `pattern` names classes."""
    split = _local_manifest([pattern], folder)
    return split is not None and bool(split.classes)


def _local_manifest(patterns: Sequence[str], folder: Path) -> Manifest | None:
    """Return the manifest of records on this machine; None without one, and for a bucket."""
    from mptraining_records.tfrecord import manifest

    if any("://" in pattern for pattern in patterns):
        return None
    try:
        return manifest.find([absolute_path(pattern, folder) for pattern in patterns])
    except Problem:
        return None


def zero_steps(job: ResolvedJob, folder: Path) -> list[Problem]:
    """Return the mistake of a batch size that the local records cannot fill once, if their manifests count them."""
    from mptraining_storage import storage

    data, training = job.data, job.training
    if data is None or training is None or job.global_batch_size is None or data.remainder != "Drop":
        return []
    split = _local_manifest(data.train, folder)
    if split is None or not split.records:
        return []
    files = {file.uri for pattern in data.train for file in storage.glob_or_empty(absolute_path(pattern, folder))}
    if len(split.files) < len(files):
        # Manifests say nothing about the shards that they do not name.
        return []
    examples = job.global_batch_size * training.gradient_accumulation_steps
    if examples <= split.records:
        return []
    step = "Lower the batch size, or set data.remainder: PadAndMask."
    amounts = f"{examples} examples a step, {split.records} in the training data: zero steps"
    return [InvalidSpec("spec.training.batchSize", amounts, next_step=step)]


def _look_at(pattern: str, where: str, folder: Path, here: bool, findings: DataFindings) -> str | None:
    """Return the absolute pattern if files match it; otherwise record why not."""
    from mptraining_storage import storage

    scheme = pattern.partition("://")[0] if "://" in pattern else "file"
    if scheme == "gs":
        return _look_into_bucket(pattern, where, findings)
    if scheme != "file":
        step = "Download it, and convert it with: mptj records convert"
        if scheme in ("s3", "az", "abfs", "hdfs"):
            step = "Copy it to Google Cloud Storage or to a volume of the job."
        unknown, expected = f"{pattern!r}: {scheme}:// is not supported", "gs://bucket/object or a path"
        findings.problems.append(InvalidSpec(where, unknown, expected=expected, next_step=step))
        return None
    absolute = absolute_path(pattern, folder)
    parent = Path(absolute.removeprefix("file://").partition("*")[0]).parent
    if not here and PurePosixPath(pattern).is_absolute() and not parent.is_dir():
        note = f"{where}: {pattern} is not on this machine; it must be in the image or a volume of the job"
        findings.notes.append(note)
        return None
    try:
        storage.glob(absolute)
    except InvalidData as problem:
        findings.problems.append(_nothing(pattern, problem, where))
        return None
    return absolute


def _nothing(pattern: str, problem: Problem, where: str) -> InvalidSpec:
    step = problem.next_step
    if not step and "://" not in pattern:
        step = "Relative paths begin at the job file's folder; `mptj records convert` writes records."
    return InvalidSpec(where, f"{pattern!r}: {problem.found}", expected=problem.expected, next_step=step)


def _look_into_bucket(pattern: str, where: str, findings: DataFindings) -> str | None:
    from mptraining_storage import storage

    if not _has_credentials(os.environ):
        return None
    answer = _within(lambda: storage.glob(pattern), _BUCKET_SECONDS)
    if isinstance(answer, InvalidData) and answer.found.startswith(_ABSENT):
        findings.problems.append(_nothing(pattern, answer, where))
    elif answer is None or isinstance(answer, Exception):
        why = f": {answer}" if isinstance(answer, Problem) else ""
        findings.notes.append(f"{where}: the bucket could not be looked at{why}")
    else:
        return pattern
    return None


def _has_credentials(environment: Mapping[str, str]) -> bool:
    """Return whether Google credentials, an emulator or anonymous access are set up; asks no server."""
    names = ("STORAGE_EMULATOR_HOST", "MPTRAINING_GCS_ANONYMOUS", "GOOGLE_APPLICATION_CREDENTIALS")
    if any(environment.get(name) for name in names):
        return True
    folder = environment.get("CLOUDSDK_CONFIG") or str(Path.home() / ".config" / "gcloud")
    return Path(folder, "application_default_credentials.json").is_file()


def _within(action: Callable[[], object], seconds: float) -> object:
    """Return the action's result, the exception that it raised, or None after `seconds`."""
    answers: list[object] = []

    def run() -> None:
        try:
            answers.append(action())
        except Exception as error:  # noqa: BLE001 - whatever it is, the job is not at fault
            answers.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    return answers[0] if answers else None


def _check_manifest(spec: object, patterns: Sequence[str]) -> list[Problem]:
    """Return what contradicts the manifest of the training data; nothing if there is no manifest."""
    from mptraining_records.tfrecord import manifest

    split = _within(lambda: manifest.find(patterns), _BUCKET_SECONDS)
    if isinstance(split, InvalidData):
        return [InvalidSpec("spec.data.train", str(split))]
    if not isinstance(split, manifest.Manifest):
        return []
    return [*_unknown_features(spec, split), *_wrong_classes(spec, split)]


def _unknown_features(spec: object, split: Manifest) -> Iterator[InvalidSpec]:
    known = [feature.name for feature in split.features]
    labels, features = value_at(spec, ("data", "labels")), value_at(spec, ("data", "features"))
    named = {f"spec.data.{field}": value_at(spec, ("data", field)) for field in ("label", "sampleWeight")}
    for index, label in enumerate(labels if isinstance(labels, list) else ()):
        named[f"spec.data.labels[{index}]"] = label
    for index, feature in enumerate(features if isinstance(features, list) else ()):
        named[f"spec.data.features[{index}].name"] = value_at(feature, ("name",))
    for where, name in named.items():
        if isinstance(name, str) and name not in known:
            expected, step = either(list(map(repr, known))), nearest(name, known)
            yield InvalidSpec(where, f"{name!r} is no feature of the records", expected=expected, next_step=step)


def _wrong_classes(spec: object, split: Manifest) -> Iterator[InvalidSpec]:
    application = value_at(spec, ("program", "application"))
    where, classes = "spec.program.application.classes", value_at(application, ("classes",))
    label = value_at(spec, ("data", "label")) or split.label
    if not isinstance(application, Mapping) or value_at(spec, ("data", "labels")) is not None:
        return
    known = split.classes if label == split.label else None
    if classes is None and not known:
        step = "Give the number of classes."
        yield InvalidSpec(where, "missing, and the data's manifest names no classes", next_step=step)
    elif isinstance(classes, int) and known and classes < len(known):
        names = ", ".join(known[:6]) + (", …" if len(known) > 6 else "")
        contradiction = f"{classes}, and the label {label!r} has {len(known)} classes: {names}"
        yield InvalidSpec(where, contradiction, expected=f"{len(known)}, or nothing: the manifest decides")
