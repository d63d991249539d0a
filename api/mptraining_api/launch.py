"""From a resolved job to the processes that train it: one command, one environment, one job file for all.

Only `INDEX` differs between the processes, so that the whole fits an Indexed Job's one pod template; a local run sets
the same variables for its own child processes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Self

from mptraining_api.model import Model
from mptraining_api.problems import InvalidSpec
from mptraining_api.resolved_job import ResolvedJob

INDEX = "JOB_COMPLETION_INDEX"
JOB_FILE = "MPTRAINING_JOB_FILE"
HOSTS = "MPTRAINING_HOSTS"
ATTEMPT = "MPTRAINING_ATTEMPT"
INCARNATION = "MPTRAINING_INCARNATION"
SOURCE_FOLDER = "MPTRAINING_SOURCE_FOLDER"
# For the process that prepares the source: the files of its ConfigMap, and where its requirements are installed.
CONFIG_MAP_FOLDER = "MPTRAINING_CONFIG_MAP_FOLDER"
PACKAGES_FOLDER = "MPTRAINING_PACKAGES_FOLDER"
# Seconds between two Progress events; a terminal wants them oftener than a pod's log.
PROGRESS_SECONDS = "MPTRAINING_PROGRESS_SECONDS"
# Where worker 0 reports its progress (an https URL), the file of the token it shows, and the certificate it trusts
# (PEM). Absent: nobody is told.
PROGRESS_URL = "MPTRAINING_PROGRESS_URL"
PROGRESS_TOKEN_FILE = "MPTRAINING_PROGRESS_TOKEN_FILE"  # noqa: S105 - the name of a variable
PROGRESS_CERTIFICATE = "MPTRAINING_PROGRESS_CERTIFICATE"
# Bytes that the pod may write to its scratch space, where it has a limit.
EPHEMERAL_STORAGE = "MPTRAINING_EPHEMERAL_STORAGE_BYTES"
# The file that the last Event is written to, for whom no log is at hand.
TERMINATION_LOG = "MPTRAINING_TERMINATION_LOG"
# What comes from Secrets, so that no Event repeats it: names of variables, with commas between them and `*` at the end
# for all that begin so; files and folders, with colons.
SECRET_VARIABLES = "MPTRAINING_SECRET_VARIABLES"  # noqa: S105 - the name of a variable
SECRET_PATHS = "MPTRAINING_SECRET_PATHS"  # noqa: S105 - the name of a variable
# Seconds that worker 0 keeps a model which has no run folder, until somebody fetches it; the topic of its Notice.
MODEL_WAIT_SECONDS = "MPTRAINING_MODEL_WAIT_SECONDS"
MODEL_WAITS = "ModelWaits"
# Tracebacks of users' mistakes too.
DEBUG = "MPTRAINING_DEBUG"

TRAINER_PORT = 2222
COMMAND = ("python", "-m", "mptraining_trainer", "train")
SOURCE_COMMAND = ("python", "-m", "mptraining_trainer", "source")
# What a client runs in worker 0's pod: the kept model as a tar, and the word that it has arrived.
MODEL_COMMAND = ("python", "-m", "mptraining_trainer", "model")
MODEL_FETCHED_COMMAND = ("python", "-m", "mptraining_trainer", "model-fetched")


class Launch(Model):
    """What to start. `hosts` are host:port, one a process, in the order of their index."""

    command: tuple[str, ...]
    environment: dict[str, str]
    job_file: str
    hosts: tuple[str, ...]


def launch(
    job: ResolvedJob, *, hosts: Sequence[str], job_path: str, attempt: int, command: Sequence[str] = COMMAND
) -> Launch:
    """The processes of one attempt. `job_path` is where each process finds the job file."""
    if len(hosts) != job.processes:
        raise ValueError(f"{len(hosts)} hosts for {job.processes} processes")
    environment = {
        JOB_FILE: job_path,
        HOSTS: ",".join(hosts),
        ATTEMPT: str(attempt),
        # TensorFlow's C++ log is for its own developers; errors stay.
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "PYTHONUNBUFFERED": "1",
    }
    if job.keras == "Legacy":
        environment["TF_USE_LEGACY_KERAS"] = "1"
    if job.accelerator.kind == "cpu":
        # A GPU that happens to be there was not asked for.
        environment["CUDA_VISIBLE_DEVICES"] = "-1"
    return Launch(command=tuple(command), environment=environment, job_file=job.to_json(), hosts=tuple(hosts))


class WorkerIdentity(Model):
    """Which of the launched processes this one is."""

    index: int
    hosts: tuple[str, ...]
    attempt: int
    incarnation: str

    @property
    def is_chief(self) -> bool:
        return self.index == 0

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Self:
        """Reads `INDEX`, `HOSTS`, `ATTEMPT` and `INCARNATION`. Raises InvalidSpec naming the variable."""

        def number(name: str, default: str) -> int:
            value = environment.get(name, default)
            if not value.isdecimal():
                raise InvalidSpec(name, f"{value!r} is not a number", next_step="Set it as the launch does.")
            return int(value)

        hosts = tuple(host for host in environment.get(HOSTS, "").split(",") if host)
        index = number(INDEX, "0")
        if hosts and index >= len(hosts):
            raise InvalidSpec(INDEX, f"{index} with {len(hosts)} hosts", expected=f"at most {len(hosts) - 1}")
        return cls(
            index=index,
            hosts=hosts or ("localhost:0",),
            attempt=number(ATTEMPT, "1"),
            incarnation=environment.get(INCARNATION, "none"),
        )


def tf_config(identity: WorkerIdentity) -> str:
    """TF_CONFIG as MultiWorkerMirroredStrategy reads it: every process a worker, worker 0 the chief."""
    return json.dumps(
        {"cluster": {"worker": list(identity.hosts)}, "task": {"type": "worker", "index": identity.index}}
    )
