"""Provenance of a run's numbers, apart from its data: code, versions, hardware, and the job's settings.

Every checkpoint records it, so that a resume can report the differences. No difference is refused: another batch size
or precision, a newer TensorFlow or a corrected line of code are good reasons to continue, although the result is then
not bit for bit the same.
"""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from mptraining_api.model import Model
from mptraining_api.resolved_job import ResolvedJob

# Settings of duration, output and placement, which do not change a computed number.
_IGNORED_SETTINGS = (
    "version",
    "name",
    "choices",
    "image",
    "placement",
    "alternatives",
    "workersRange",
    "output",
    "export",
    "profile",
    "checkpoint",
    "source",
    "data.cache",
    "data.validation",
    "data.onChange",
    "data.maxSkipped",
    "training.epochs",
    "training.totalSteps",
    "training.stepsPerExecution",
    "training.validationEverySteps",
    "training.resume",
    "training.onNonFinite",
    "accelerator.provisioning",
    "accelerator.title",
)
# The source folder of a local run may be a large project.
_MOST_FILES = 2000
_IGNORED_FOLDERS = frozenset({"site-packages", "node_modules", "__pycache__"})
_SHOWN = 60


class Origin(Model):
    """`code` is a digest of the program's Python files, "" if they are in the image; `job` has the fields by path."""

    code: str = ""
    versions: dict[str, str]
    hardware: dict[str, str]
    job: dict[str, str]


def origin(job: ResolvedJob, source: str | None, *, versions: Mapping[str, str]) -> Origin:
    """Return the origin of this process. `source` is the folder of the program's code; `versions` adds others."""
    return Origin(
        code=code_digest(Path(source)) if source else "",
        versions={"mptraining": metadata.version("mptraining"), "python": platform.python_version(), **versions},
        hardware={"accelerator": job.accelerator.type, "processor": _processor()},
        job=settings(job.to_document()),
    )


def changes(before: Origin, now: Origin) -> list[str]:
    """Return the differences, each as `name: old, now new`."""
    changed = ["the program's code: another one"] if before.code != now.code else []
    for old, new in ((before.versions, now.versions), (before.hardware, now.hardware), (before.job, now.job)):
        for name in sorted(old.keys() | new.keys()):
            if old.get(name) != new.get(name):
                changed.append(f"{name}: {_short(old.get(name))}, now {_short(new.get(name))}")
    return changed


def settings(document: Mapping[str, Any]) -> dict[str, str]:
    """Return the fields of a job's document that affect the numbers, by path, as text."""
    values: dict[str, str] = {}

    def walk(path: str, value: Any) -> None:
        if path in _IGNORED_SETTINGS:
            return
        if isinstance(value, Mapping) and value:
            for name, child in value.items():
                walk(f"{path}.{name}" if path else str(name), child)
        else:
            values[path] = str(value)

    walk("", document)
    return values


def code_digest(folder: Path) -> str:
    """Return a SHA-256 of the names and contents of at most 2000 Python files below a folder, in a fixed order."""
    digest = hashlib.sha256()
    remaining = _MOST_FILES
    for parent, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in _IGNORED_FOLDERS)
        for name in sorted(name for name in files if name.endswith(".py")):
            if remaining == 0:
                return digest.hexdigest()
            remaining -= 1
            path = Path(parent, name)
            digest.update(f"{path.relative_to(folder).as_posix()}\0".encode())
            try:
                digest.update(path.read_bytes())
            except OSError:
                # Only the name of a broken link counts.
                continue
    return digest.hexdigest()


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.machine()
    named = next((line for line in lines if line.startswith("model name")), "")
    return named.partition(":")[2].strip() or platform.machine()


def _short(value: str | None) -> str:
    text = "nothing" if value is None else value
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
