"""A local job: trained by processes of this machine, and read from its run folder."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, overload

from mptraining.display.text import Display
from mptraining.job_file.paths import absolute_path
from mptraining.local import run as local_run
from mptraining.runs import History, Run, load_run
from mptraining.training_job import TrainingJob, arguments_named, job_document
from mptraining_api.problems import InvalidProgram, Problem
from mptraining_api.spec import API_VERSION, KIND, MPTrainingJob


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

    def _repr_html_(self) -> str:
        return self.run()._repr_html_()

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


@overload
def run_local(job: str | Path, *, output: str | None = None, display: Display | None = None, **options: Any) -> int: ...


@overload
def run_local(
    job: TrainingJob | Mapping[str, Any], *, output: str | None = None, display: Display | None = None, **options: Any
) -> LocalJob: ...


def run_local(
    job: str | Path | TrainingJob | Mapping[str, Any],
    *,
    output: str | None = None,
    display: Display | None = None,
    **options: Any,
) -> int | LocalJob:
    """Train a job in processes of this machine, to its end.

    A job file gives an exit code for a shell: 0 if the job is finished, a worker's own code if one failed, and 128 plus
    the signal number after an interrupt. A TrainingJob, or the mapping that a job file holds, gives the finished job.
    Its relative paths and its program are below the current folder.

    `output` is the run folder (default: the job's own, else `runs/<name>`), `display` shows the run (default: the one
    of this notebook or terminal). `options` are further arguments of `mptraining.local.run.run_local`.

    Raises Problem before any process starts, and InvalidProgram if the training of an object failed.
    """
    if isinstance(job, str | Path):
        return local_run.run_local(job, output=output, display=display, **options)
    document = {"apiVersion": API_VERSION, "kind": KIND, **job_document(job)}
    here = Path.cwd()
    with arguments_named(job):
        code = local_run.run_local(
            here / "job.yaml",
            document=document,
            output=output,
            display=display,
            **{"again": "the same call of run_local", **options},
        )
    # It has no mistakes: it was trained.
    parsed = MPTrainingJob.parse(document)
    name = parsed.metadata.name
    given = output or (parsed.spec.output.uri if parsed.spec.output else str(Path("runs", name)))
    folder = absolute_path(given, here)
    if code:
        raise failed(name, folder, code)
    return LocalJob(name, folder)


def failed(name: str, folder: str, exit_code: int) -> Problem:
    """Return the problem of a local job that ended with an exit code other than 0."""
    if exit_code == 128 + signal.SIGINT:
        return InvalidProgram(name, "stopped by you", next_step="The same call resumes it from its last checkpoint.")
    return InvalidProgram(
        "the job", f"ended with exit code {exit_code}", next_step=f"See the lines above; its files are in {folder}."
    )
