"""`tfc.run(..., backend="local")`: the same package and document, trained by processes of this machine.

The package is unpacked as the pod would have it, and `mptraining.local` does the rest; the run folder is the job's
output, else `runs/<name>` in the current folder.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from mptraining.local import run_local
from mptraining.local_job import absolute
from mptraining.package import Package
from mptraining.runs import Run, load_run
from mptraining_api.problems import InvalidProgram, Problem


class LocalJob(dict[str, str | None]):
    """A job that was trained here: its run folder, and the dict that tensorflow-cloud returns."""

    def __init__(self, name: str, folder: str, exit_code: int) -> None:
        super().__init__(job_id=name, docker_image=None)
        self.name = name
        self.folder = folder
        self.exit_code = exit_code

    def __repr__(self) -> str:
        return f"<LocalJob {self.name} in {self.folder}>"

    def status(self) -> Run:
        """The run folder as it is now."""
        return load_run(self.folder)

    def wait(self) -> int:
        """The exit code: it has ended."""
        return self.exit_code

    @property
    def history(self) -> dict[str, list[float]]:
        """The training curves, as Keras' History has them: each metric's values, in the order of steps."""
        curves: dict[str, list[float]] = {}
        for point in self.status().history.points:
            for name, value in point.metrics.items():
                curves.setdefault(name, []).append(value)
        return curves


def train_here(document: Mapping[str, Any], package: Package, *, command: Sequence[str] | None = None) -> LocalJob:
    """Trains to the end and returns the job. `command` is what each worker runs instead of the trainer.

    Raises Problem before any process starts, and when training failed; what happened was shown then.
    """
    name = document["metadata"]["name"]
    given = (document["spec"].get("output") or {}).get("uri")
    folder = absolute(given, Path.cwd()) if given else str(Path.cwd() / "runs" / name)
    body = {**document, "spec": {**document["spec"], "source": package.source(config_map=name)}}
    if package.requirements is not None:
        print(f"note: {package.requirements} is not installed here: the job takes this environment's packages")
    with tempfile.TemporaryDirectory(prefix="mptraining-source-") as scratch:
        for file in package.files:
            place = Path(scratch, "source", file.path)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(file.content)
            place.chmod(0o755 if file.executable else 0o644)
        job_file = Path(scratch, "job.yaml")
        job_file.write_text(yaml.safe_dump(body), encoding="utf-8")
        options = {} if command is None else {"command": command}
        exit_code = run_local(job_file, output=folder, **options)  # type: ignore[arg-type]
    if exit_code:
        raise _failed(folder, exit_code)
    return LocalJob(name, folder, exit_code)


def _failed(folder: str, exit_code: int) -> Problem:
    return InvalidProgram(
        "the job",
        f"ended with exit code {exit_code}",
        next_step=f"The lines above say why; what it left is in {folder}.",
    )
