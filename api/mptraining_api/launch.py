"""Worker processes of a resolved job: command, environment variables and job file; the identity of each process.

Only `INDEX` differs between the processes, so that the one pod template of an Indexed Job fits all of them; a local
run sets the same variables for its child processes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Self

from mptraining_api.model import Model
from mptraining_api.problems import InvalidSpec
from mptraining_api.resolve.attempt import for_attempt
from mptraining_api.resolved_job import ResolvedJob

INDEX = "JOB_COMPLETION_INDEX"
JOB_FILE = "MPTRAINING_JOB_FILE"
# The SHA-256 of the job file, which a worker checks; absent in a local run.
JOB_DIGEST = "MPTRAINING_JOB_DIGEST"
HOSTS = "MPTRAINING_HOSTS"
ATTEMPT = "MPTRAINING_ATTEMPT"
# The machine and the number of workers of the attempt, as for `resolve.attempt.for_attempt`. Absent: the first choice,
# and the job's number of workers. The job file is the same for all attempts.
MACHINE = "MPTRAINING_MACHINE"
WORKERS = "MPTRAINING_WORKERS"
INCARNATION = "MPTRAINING_INCARNATION"
# The uid of the MPTrainingJob (empty in a local run) and the time of its creation, as metav1.Time: attempts are
# numbered within one job, and a job that is deleted and created again is another one.
JOB_UID = "MPTRAINING_JOB_UID"
JOB_CREATED = "MPTRAINING_JOB_CREATED"
SOURCE_FOLDER = "MPTRAINING_SOURCE_FOLDER"
# Folders for the process that prepares the source: the files of its ConfigMap, and the installed requirements.
CONFIG_MAP_FOLDER = "MPTRAINING_CONFIG_MAP_FOLDER"
PACKAGES_FOLDER = "MPTRAINING_PACKAGES_FOLDER"
# Seconds between two Progress events; a local run shows them more often than a pod logs them.
PROGRESS_SECONDS = "MPTRAINING_PROGRESS_SECONDS"
# The https URL to which worker 0 reports its progress, the file of its token, and the certificate that it trusts (PEM).
# Absent: it sends no reports.
PROGRESS_URL = "MPTRAINING_PROGRESS_URL"
PROGRESS_TOKEN_FILE = "MPTRAINING_PROGRESS_TOKEN_FILE"  # noqa: S105 - the name of a variable
PROGRESS_CERTIFICATE = "MPTRAINING_PROGRESS_CERTIFICATE"
# The pod's limit of ephemeral storage in bytes, if it has one.
EPHEMERAL_STORAGE = "MPTRAINING_EPHEMERAL_STORAGE_BYTES"
# The file to which the last Event is written, for readers without the log.
TERMINATION_LOG = "MPTRAINING_TERMINATION_LOG"
# Variables and paths whose values come from Secrets, so that no Event contains them: names of variables, separated by
# commas, with a `*` at the end for a prefix; files and folders, separated by colons.
SECRET_VARIABLES = "MPTRAINING_SECRET_VARIABLES"  # noqa: S105 - the name of a variable
SECRET_PATHS = "MPTRAINING_SECRET_PATHS"  # noqa: S105 - the name of a variable
# Set where the parent process keeps the output of its workers in the run folder: a worker then does not.
OUTPUT_KEPT = "MPTRAINING_OUTPUT_KEPT"
# Python interpreter of the processes that send metrics to tracking servers; absent: the trainer's. With it, MLflow and
# W&B can have an environment of their own, with versions that TensorFlow does not work with.
TRACKING_PYTHON = "MPTRAINING_TRACKING_PYTHON"
# Seconds that worker 0 waits for a client to fetch a model without a run folder, and the topic of its Notice.
MODEL_WAIT_SECONDS = "MPTRAINING_MODEL_WAIT_SECONDS"
MODEL_WAITS = "ModelWaits"
# A file that a local run creates before it stops its workers because its user pressed Ctrl-C.
STOPPED_BY_USER_FILE = "MPTRAINING_STOPPED_BY_USER_FILE"
# checkpoint.maxToKeep as it was when the attempt was created, if it is another than in the job file, which all attempts
# share.
MAX_TO_KEEP = "MPTRAINING_MAX_TO_KEEP"
# When set, errors in the user's job are reported with their traceback, too.
DEBUG = "MPTRAINING_DEBUG"

TRAINER_PORT = 2222
COMMAND = ("python", "-m", "mptraining_trainer", "train")
SOURCE_COMMAND = ("python", "-m", "mptraining_trainer", "source")
# Commands that a client runs in a pod. The first two take a folder, relative to the kept one: list its files as JSON
# lines, and write them as a tar. The third confirms that they have arrived.
FILES_COMMAND = ("python", "-m", "mptraining_trainer", "files")
SEND_COMMAND = ("python", "-m", "mptraining_trainer", "send")
FETCHED_COMMAND = ("python", "-m", "mptraining_trainer", "fetched")
# The main process of a pod that serves a folder: with the folder and the seconds after which it ends by itself.
KEEP_COMMAND = ("python", "-m", "mptraining_trainer", "keep")


class Launch(Model):
    """The processes of one attempt. `hosts` are host:port, one per worker, in the order of their index."""

    command: tuple[str, ...]
    environment: dict[str, str]
    job_file: str
    hosts: tuple[str, ...]


def launch(
    job: ResolvedJob,
    *,
    hosts: Sequence[str],
    job_path: str,
    attempt: int,
    command: Sequence[str] = COMMAND,
    job_uid: str = "",
    job_created: str = "",
    machine: int = 0,
    workers: int | None = None,
) -> Launch:
    """Return the processes of one attempt. `job_path` is the path of the job file in each process.

    `job` is that of the attempt. `machine` and `workers` are those of the attempt if the job file is the frozen job.
    """
    if len(hosts) != job.workers:
        raise ValueError(f"{len(hosts)} hosts for {job.workers} workers")
    environment = {
        JOB_FILE: job_path,
        HOSTS: ",".join(hosts),
        ATTEMPT: str(attempt),
        JOB_UID: job_uid,
        JOB_CREATED: job_created,
        # Level 2 hides the info and warning lines of TensorFlow's C++ log; errors stay.
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "PYTHONUNBUFFERED": "1",
    }
    if machine:
        environment[MACHINE] = str(machine)
    if workers is not None:
        environment[WORKERS] = str(workers)
    if job.keras == "Legacy":
        environment["TF_USE_LEGACY_KERAS"] = "1"
    if job.accelerator.kind == "cpu":
        # The job must not use a GPU that the machine happens to have.
        environment["CUDA_VISIBLE_DEVICES"] = "-1"
    return Launch(command=tuple(command), environment=environment, job_file=job.to_json(), hosts=tuple(hosts))


def with_current_fields(job: ResolvedJob, environment: Mapping[str, str]) -> ResolvedJob:
    """Return the job as a worker uses it and writes it to the run folder. Raises InvalidSpec.

    With the fields that were changed after its first attempt; without the pod template, which is the operator's and may
    have private values, and without the scheduling.
    """
    job = job.model_copy(update={"pod_template": None, "scheduling": None})
    kept = environment.get(MAX_TO_KEEP)
    if kept is None:
        return job
    if not kept.isdecimal() or int(kept) < 1:
        raise InvalidSpec(MAX_TO_KEEP, f"{kept!r} is not a number above 0", next_step="Set it as the operator does.")
    return job.model_copy(update={"checkpoint": job.checkpoint.model_copy(update={"max_to_keep": int(kept)})})


def attempt_job(job: ResolvedJob, environment: Mapping[str, str]) -> ResolvedJob:
    """Return the job of this process's attempt, from the job file. Raises ValueError for one that it cannot have."""
    workers = environment.get(WORKERS)
    machine = int(environment.get(MACHINE, "0"))
    return for_attempt(job, machine=machine, workers=None if workers is None else int(workers))


class WorkerIdentity(Model):
    """Identity of one launched process (TensorFlow: task)."""

    index: int
    hosts: tuple[str, ...]
    attempt: int
    incarnation: str
    # Empty in a local run, and where the operator is older than these variables.
    job_uid: str = ""
    job_created: str = ""

    @property
    def is_chief(self) -> bool:
        return self.index == 0

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Self:
        """Read the variables of the launch. Raises InvalidSpec for an index or attempt that is invalid."""

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
            job_uid=environment.get(JOB_UID, ""),
            job_created=environment.get(JOB_CREATED, ""),
        )


def tf_config(identity: WorkerIdentity) -> str:
    """Return TF_CONFIG for MultiWorkerMirroredStrategy: every process is a worker, worker 0 is the chief."""
    return json.dumps(
        {"cluster": {"worker": list(identity.hosts)}, "task": {"type": "worker", "index": identity.index}}
    )
