"""What the numbers of a run depend on beside its data: code, versions, hardware, and the job's own settings.

It stands in every checkpoint, so that a resume can say what is not as it was. Nothing of it is refused: another batch
size or precision, a newer TensorFlow, a corrected line of code are good reasons to go on; only bit for bit it is not.
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

# How long training goes on, what is kept of it, where it runs: none of it changes a number.
_NO_MATTER = (
    "version",
    "name",
    "choices",
    "image",
    "placement",
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
# A source folder of a local run may be anybody's whole project.
_MOST_FILES = 2000
_OTHERS_CODE = frozenset({"site-packages", "node_modules", "__pycache__"})
_SHOWN = 60


class Origin(Model):
    """`code` is a digest of the program's Python files, "" where they are the image's; `job` the fields by path."""

    code: str = ""
    versions: dict[str, str]
    hardware: dict[str, str]
    job: dict[str, str]


def origin(job: ResolvedJob, source: str | None, *, versions: Mapping[str, str]) -> Origin:
    """Of this process. `source` is the folder with the program's code; `versions` what is not a distribution's."""
    return Origin(
        code=code(Path(source)) if source else "",
        versions={"mptraining": metadata.version("mptraining"), "python": platform.python_version(), **versions},
        hardware={"accelerator": job.accelerator.type, "processor": _processor()},
        job=settings(job.to_document()),
    )


def changes(before: Origin, now: Origin) -> list[str]:
    """What is another than before, each as `name: old, now new`."""
    changed = ["the program's code: another one"] if before.code != now.code else []
    for old, new in ((before.versions, now.versions), (before.hardware, now.hardware), (before.job, now.job)):
        for name in sorted(old.keys() | new.keys()):
            if old.get(name) != new.get(name):
                changed.append(f"{name}: {_short(old.get(name))}, now {_short(new.get(name))}")
    return changed


def settings(document: Mapping[str, Any]) -> dict[str, str]:
    """The fields of a job's document that the numbers depend on, each at its path, as text."""
    found: dict[str, str] = {}

    def walk(path: str, value: Any) -> None:
        if path in _NO_MATTER:
            return
        if isinstance(value, Mapping) and value:
            for name, each in value.items():
                walk(f"{path}.{name}" if path else str(name), each)
        else:
            found[path] = str(value)

    walk("", document)
    return found


def code(folder: Path) -> str:
    """A digest of the Python files below a folder: names and contents, in a fixed order."""
    digest = hashlib.sha256()
    left = _MOST_FILES
    for parent, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in _OTHERS_CODE)
        for name in sorted(name for name in files if name.endswith(".py")):
            if left == 0:
                return digest.hexdigest()
            left -= 1
            path = Path(parent, name)
            digest.update(f"{path.relative_to(folder).as_posix()}\0".encode())
            try:
                digest.update(path.read_bytes())
            except OSError:
                # A link to nowhere is part of the folder and has no content.
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
