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
from typing import TYPE_CHECKING, Any

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
    found = DataFindings()
    for section in _SECTIONS:
        patterns = value_at(spec, ("data", section))
        if isinstance(patterns, list) and all(isinstance(each, str) for each in patterns):
            looked_at = [_look_at(each, f"spec.data.{section}[{index}]", folder, here, found)
                         for index, each in enumerate(patterns)]  # fmt: skip
            if all(looked_at) and section == "train":
                found.problems += _check_manifest(spec, [each for each in looked_at if each])
    return found


def names_classes(pattern: str, folder: Path) -> bool:
    """Return whether a local manifest of the records that match `pattern` names classes."""
    from mptraining_records.tfrecord import manifest

    if "://" in pattern:
        return False
    try:
        found = manifest.find([absolute_path(pattern, folder)])
    except Problem:
        return False
    return found is not None and bool(found.classes)


def zero_steps(job: ResolvedJob, folder: Path) -> list[Problem]:
    """Return the mistake of a batch size that the local records cannot fill once, if their manifests count them."""
    from mptraining_records.tfrecord import manifest
    from mptraining_storage import storage

    data, training = job.data, job.training
    if data is None or training is None or job.global_batch_size is None or data.remainder != "Drop":
        return []
    patterns = [absolute_path(each, folder) for each in data.train]
    if any("://" in each for each in patterns):
        return []
    try:
        found = manifest.find(patterns)
    except InvalidData:
        return []
    files = {each.uri for pattern in patterns for each in storage.glob_or_empty(pattern)}
    # Manifests say nothing about the shards that they do not name.
    if found is None or not found.records or len(found.files) < len(files):
        return []
    examples = job.global_batch_size * training.gradient_accumulation_steps
    if examples <= found.records:
        return []
    return [
        InvalidSpec(
            "spec.training.batchSize",
            f"{examples} examples a step, {found.records} in the training data: zero steps",
            next_step="Lower the batch size, or set data.remainder: PadAndMask.",
        )
    ]


def _look_at(pattern: str, where: str, folder: Path, here: bool, found: DataFindings) -> str | None:
    """Return the absolute pattern if files match it; otherwise record why not."""
    from mptraining_storage import storage

    scheme = pattern.partition("://")[0] if "://" in pattern else "file"
    if scheme not in ("gs", "file"):
        found.problems.append(_unknown_scheme(pattern, scheme, where))
        return None
    if scheme == "gs":
        return _look_into_bucket(pattern, where, found)
    absolute = absolute_path(pattern, folder)
    parent = Path(absolute.removeprefix("file://").partition("*")[0]).parent
    if not here and PurePosixPath(pattern).is_absolute() and not parent.is_dir():
        found.notes.append(f"{where}: {pattern} is not on this machine; it must be in the image or a volume of the job")
        return None
    try:
        storage.glob(absolute)
    except InvalidData as problem:
        found.problems.append(_nothing(pattern, problem, where))
        return None
    return absolute


def _unknown_scheme(pattern: str, scheme: str, where: str) -> InvalidSpec:
    step = "Download it, and convert it with: mptj records convert"
    if scheme in ("s3", "az", "abfs", "hdfs"):
        step = "Copy it to Google Cloud Storage or to a volume of the job."
    return InvalidSpec(
        where, f"{pattern!r}: {scheme}:// is not supported", expected="gs://bucket/object or a path", next_step=step
    )


def _nothing(pattern: str, problem: Problem, where: str) -> InvalidSpec:
    step = problem.next_step
    if not step and "://" not in pattern:
        step = "Relative paths begin at the job file's folder; `mptj records convert` writes records."
    return InvalidSpec(where, f"{pattern!r}: {problem.found}", expected=problem.expected, next_step=step)


def _look_into_bucket(pattern: str, where: str, found: DataFindings) -> str | None:
    from mptraining_storage import storage

    if not _has_credentials(os.environ):
        return None
    ended = _within(lambda: storage.glob(pattern), _BUCKET_SECONDS)
    if isinstance(ended, InvalidData) and ended.found.startswith(_ABSENT):
        found.problems.append(_nothing(pattern, ended, where))
    elif ended is None or isinstance(ended, Exception):
        why = f": {ended}" if isinstance(ended, Problem) else ""
        found.notes.append(f"{where}: the bucket could not be looked at{why}")
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
    ended: list[object] = []

    def run() -> None:
        try:
            ended.append(action())
        except Exception as error:  # noqa: BLE001 - whatever it is, the job is not at fault
            ended.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    return ended[0] if ended else None


def _check_manifest(spec: object, patterns: Sequence[str]) -> list[Problem]:
    """Return what contradicts the manifest of the training data; nothing if there is no manifest."""
    from mptraining_records.tfrecord import manifest

    found = _within(lambda: manifest.find(patterns), _BUCKET_SECONDS)
    if isinstance(found, InvalidData):
        return [InvalidSpec("spec.data.train", str(found))]
    if not isinstance(found, manifest.Manifest):
        return []
    return [*_unknown_features(spec, found), *_wrong_classes(spec, found)]


def _unknown_features(spec: object, found: Manifest) -> Iterator[InvalidSpec]:
    names = [feature.name for feature in found.features]
    labels, features = value_at(spec, ("data", "labels")), value_at(spec, ("data", "features"))
    given: list[tuple[str, Any]] = [
        ("spec.data.label", value_at(spec, ("data", "label"))),
        ("spec.data.sampleWeight", value_at(spec, ("data", "sampleWeight"))),
        *(
            (f"spec.data.labels[{index}]", each)
            for index, each in enumerate(labels if isinstance(labels, list) else ())
        ),
        *(
            (f"spec.data.features[{index}].name", value_at(each, ("name",)))
            for index, each in enumerate(features if isinstance(features, list) else ())
        ),
    ]
    for where, name in given:
        if isinstance(name, str) and name not in names:
            yield InvalidSpec(
                where,
                f"{name!r} is no feature of the records",
                expected=either(list(map(repr, names))),
                next_step=nearest(name, names),
            )


def _wrong_classes(spec: object, found: Manifest) -> Iterator[InvalidSpec]:
    application = value_at(spec, ("program", "application"))
    where, classes = "spec.program.application.classes", value_at(application, ("classes",))
    label = value_at(spec, ("data", "label")) or found.label
    if not isinstance(application, Mapping) or value_at(spec, ("data", "labels")) is not None:
        return
    known = found.classes if label == found.label else None
    if classes is None and not known:
        step = "Give the number of classes."
        yield InvalidSpec(where, "missing, and the data's manifest names no classes", next_step=step)
    elif isinstance(classes, int) and known and classes < len(known):
        yield InvalidSpec(
            where,
            f"{classes}, and the label {label!r} has {len(known)} classes: {', '.join(known[:6])}"
            f"{', …' if len(known) > 6 else ''}",
            expected=f"{len(known)}, or nothing: the manifest decides",
        )
