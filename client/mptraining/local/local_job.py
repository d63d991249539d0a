"""A local job: trained by processes of this machine, and read from its run folder."""

from __future__ import annotations

import shlex
import signal
import tempfile
from pathlib import Path
from typing import Any

from mptraining.display.transfer import Transfer
from mptraining.job_file.paths import typed_path
from mptraining.packaging import function_result
from mptraining.runs import History, Run, load_run
from mptraining_api import run_folder
from mptraining_api.problems import InvalidData, InvalidProgram, Problem
from mptraining_storage import storage


class LocalJob:
    """A local job that has ended, also in another process: `LocalJob(name, run_folder)`.

    It has the methods of the cluster's `Job` that programs use.

    `exit_code` is 0 if the job is finished (also if it already was), a worker's own code if one failed, and 128 plus
    the signal number if the run was interrupted or a worker was killed.
    """

    def __init__(self, name: str, folder: str, exit_code: int = 0) -> None:
        self.name = name
        self.run_folder = folder
        self.exit_code = exit_code

    def __repr__(self) -> str:
        failed = f", exit code {self.exit_code}" if self.exit_code else ""
        return f"<LocalJob {self.name} in {self.run_folder}{failed}>"

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
        """Load the trained keras.Model in float32. Raises InvalidData if there is none, InvalidProgram."""
        from mptraining.cluster.fetch import FetchRequest, fetch_stored
        from mptraining.cluster.trained_model import load_model

        folder = storage.join(self.run_folder, run_folder.MODEL)
        if not storage.list_objects(folder):
            logs = shlex.join(["mptj", "logs", typed_path(self.run_folder, Path.cwd())])
            raise InvalidData(self.run_folder, "there is no model in it", next_step=f"See why: {logs}")
        if not storage.is_remote(folder):
            return load_model(storage.local_path(folder))
        with tempfile.TemporaryDirectory(prefix="mptraining-") as scratch:
            request = FetchRequest(self.name, "", Path(scratch, "model"), part=run_folder.MODEL, overwrite=False)
            return load_model(fetch_stored(self.run_folder, request, Transfer(print)))

    def result(self, timeout: float | None = None) -> Any:
        """Return the value of the job's function, or raise the exception that the function raised.

        It is unpickled, which runs code that the run folder names: use it for run folders that you trust. Raises
        InvalidProgram if the job failed otherwise, and InvalidData if its program is no function.
        """
        del timeout
        stored = function_result.read(storage.join(self.run_folder, run_folder.FUNCTION))
        if stored is not None and (stored.raised or not self.exit_code):
            return function_result.value_of(stored)
        if self.exit_code:
            raise failed(self)
        self.run()  # It raises for a folder without a run.
        raise InvalidData(self.name, "its program is no function, and returns no value")


def failed(job: LocalJob) -> Problem:
    """Return the problem of a local job that ended with an exit code other than 0."""
    if job.exit_code == 128 + signal.SIGINT:
        return InvalidProgram(
            job.name, "stopped by you", next_step="The same call resumes it from its last checkpoint."
        )
    step = f"See the lines above; its files are in {job.run_folder}."
    return InvalidProgram("the job", f"ended with exit code {job.exit_code}", next_step=step)
