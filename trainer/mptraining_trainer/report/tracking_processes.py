"""Processes that send the chief's Events to tracking servers: `mptj track` beside worker 0, one for each server.

They read the run folder, so that a server or a library that hangs, fails or is killed never reaches the training.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec

from mptraining_api.launch import TRACKING_PYTHON, WorkerIdentity
from mptraining_api.resolved_job import ResolvedJob
from mptraining_trainer.report.telemetry import Notify

_VERB = ("-m", "mptraining", "track")
# They give way to the training.
_NICENESS = 10
# Seconds that the end of the training waits for the last values.
CLOSE_SECONDS = 15.0
PREEMPTED_SECONDS = 2.0


class TrackingProcesses:
    """The processes of one launch; none on other workers, for other jobs and without the server's library."""

    def __init__(
        self, job: ResolvedJob, identity: WorkerIdentity, folder: str, notice: Notify, environment: Mapping[str, str]
    ) -> None:
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._notice = notice
        if not identity.is_chief:
            return
        python = environment.get(TRACKING_PYTHON)
        for server, options in _servers(job):
            if python is None and find_spec(server) is None:
                self._warn(
                    f"{server} is not installed here, so nothing is sent while the job trains; add it to "
                    f"source.requirements or to the image, or afterwards run: mptj track {folder} --to {server}"
                )
                continue
            arguments = [
                python or sys.executable,
                *_VERB,
                folder,
                "--to",
                server,
                *options,
                "--follow",
                identity.incarnation,
            ]
            try:
                # Its errors are lines of the worker's log.
                process = subprocess.Popen(  # noqa: S603 - the client's own command, no shell
                    arguments, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env=dict(environment)
                )
                os.setpriority(os.PRIO_PROCESS, process.pid, _NICENESS)
            except OSError as error:
                self._warn(f"{server}: {error.strerror or error}")
                continue
            self._processes[server] = process

    def close(self, seconds: float, now: Callable[[], float]) -> None:
        """Wait for the processes until `seconds` from `now` have passed, then kill those that still run."""
        end = now() + seconds
        for process in self._processes.values():
            try:
                process.wait(max(0.0, end - now()))
            except subprocess.TimeoutExpired:
                # SIGTERM is blocked in every child of a worker.
                process.kill()
                process.wait()

    def _warn(self, message: str) -> None:
        self._notice("NotTracked", message, level="Warning")


def _servers(job: ResolvedJob) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the libraries' names and the options of `mptj track`."""
    if job.tracking is None:
        return
    if (mlflow := job.tracking.mlflow) is not None:
        yield "mlflow", ("--uri", mlflow.uri, "--experiment", mlflow.experiment or job.name)
    if (wandb := job.tracking.wandb) is not None:
        yield "wandb", ("--project", wandb.project)
