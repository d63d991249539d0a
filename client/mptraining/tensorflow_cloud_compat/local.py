"""Local backend of `tfc.run(..., backend="local")`: trains the same package and document in local processes.

The package is unpacked as in a pod and run by `mptraining.local.run`; the run folder is the job's output, else
`runs/<name>` in the current folder.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mptraining.job_file.paths import absolute_path
from mptraining.local.run import run_local
from mptraining.packaging.package import Package
from mptraining.runs import History, Run, load_run
from mptraining_api.problems import InvalidProgram, Problem
from mptraining_api.validation.mistakes import InvalidJobFile


class LocalJob(dict[str, str | None]):
    """A finished local job: its run folder, and the dict that tensorflow-cloud returns.

    It has the methods of the cluster's `Job` that programs use.
    """

    def __init__(self, name: str, folder: str) -> None:
        super().__init__(job_id=name, docker_image=None)
        self.name = name
        self.run_folder = folder

    def __repr__(self) -> str:
        return f"<LocalJob {self.name} in {self.run_folder}>"

    def run(self) -> Run:
        """Read the run folder."""
        return load_run(self.run_folder)

    # The status of a finished local job is its run.
    status = run

    def wait(self, timeout: float | None = None) -> Run:
        """Return the run without waiting, since the job has ended."""
        del timeout
        return self.run()

    def logs(self, follow: bool = False, worker: int | None = None) -> None:
        """Print the program's output; `worker` is an index, None for all. Raises InvalidData if there is none."""
        from mptraining.run_logs import log_lines

        # The job has ended: there is nothing to follow.
        del follow
        for line in log_lines(self.run_folder, worker=worker):
            print(line)

    def cancel(self) -> None:
        """Do nothing, since the job has ended."""

    @property
    def history(self) -> History:
        """Return the training curves: metrics by step, over all attempts."""
        return self.run().history

    def model(self) -> Any:
        """Load the trained keras.Model in float32. Raises ClusterProblem if there is none, InvalidProgram."""
        from mptraining.cluster.fetch import Quiet, Wanted, fetch_stored
        from mptraining.cluster.trained_model import load_model

        with tempfile.TemporaryDirectory(prefix="mptraining-") as scratch:
            wanted = Wanted(self.name, "", Path(scratch, "model"), model_only=True, overwrite=False)
            return load_model(fetch_stored(self.run_folder, wanted, Quiet(print)))


def train_locally(document: Mapping[str, Any], package: Package, *, command: Sequence[str] | None = None) -> LocalJob:
    """Train the job to its end and return it. `command` replaces the trainer's command in each worker.

    Raises Problem before any process starts, and if training failed, after the output was shown.
    """
    again = f"run(…, name={document['metadata']['name']!r})"
    name = document["metadata"]["name"]
    given = (document["spec"].get("output") or {}).get("uri")
    folder = absolute_path(given, Path.cwd()) if given else str(Path.cwd() / "runs" / name)
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
        job_file.write_text(json.dumps(body), encoding="utf-8")

        def shown(text: str) -> str:
            # Messages name the user's files, not the temporary copy.
            return text.replace(f"{scratch}/source/", "")

        options: dict[str, Any] = {} if command is None else {"command": command}
        try:
            exit_code = run_local(job_file, output=folder, again=again, shown=shown, **options)
        except InvalidJobFile as problem:
            # The user wrote arguments and no file.
            raise problem.without_file() from None
    if exit_code:
        raise _failed(folder, exit_code)
    return LocalJob(name, folder)


def _failed(folder: str, exit_code: int) -> Problem:
    return InvalidProgram(
        "the job",
        f"ended with exit code {exit_code}",
        next_step=f"See the lines above; its files are in {folder}.",
    )
