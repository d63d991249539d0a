"""Local run of one job (`mptj run FILE`) with the processes, environment and run folder of a run on a cluster.

The module makes paths absolute, resolves the job for this machine's accelerators, decides the attempt from the run
folder, and starts one process per worker.
"""

from __future__ import annotations

import importlib.util
import os
import random
import shlex
import signal
import socket
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from pydantic import ValidationError

from mptraining.display.choice import display_here
from mptraining.display.summary import RunSummary
from mptraining.display.text import Display, header, is_noise, show_waiting, wrapped
from mptraining.job_file.check import check_document, check_job_file
from mptraining.job_file.paths import absolute_path, source_folder, with_absolute_paths, with_output
from mptraining.local.outcome import STOP_BEFORE_TRAINING, Timeouts, final_text, verdict, with_missing_reports
from mptraining.local.processes import Stream, Worker, run_gang
from mptraining_api import events, run_folder
from mptraining_api.accelerators import catalogue
from mptraining_api.launch import (
    DEBUG,
    INCARNATION,
    INDEX,
    OUTPUT_KEPT,
    PROGRESS_SECONDS,
    SOURCE_FOLDER,
    STOPPED_BY_USER_FILE,
    Launch,
    launch,
)
from mptraining_api.model import Model
from mptraining_api.outcomes import SUCCEEDED
from mptraining_api.problems import ArgumentPlace, InvalidProgram, Place, ResumeRefused
from mptraining_api.resolve.attempt import for_attempt
from mptraining_api.resolve.resolve import ClusterSettings
from mptraining_api.resolved_job import ResolvedJob, ResolvedTraining
from mptraining_api.run_folder import Result, parse_events_name
from mptraining_api.spec import MPTrainingJob
from mptraining_api.status import format_time

if TYPE_CHECKING:
    from mptraining_storage.bounded_log import LogWriter

# CUDA's own variable.
VISIBLE_GPUS = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True, slots=True)
class Machine:
    """The accelerators of this machine."""

    gpu: bool
    tpu: bool

    def lacks(self, kind: Literal["cpu", "gpu", "tpu"]) -> bool:
        return (kind == "gpu" and not self.gpu) or (kind == "tpu" and not self.tpu)


def this_machine() -> Machine:
    """Detect accelerators from device files in /dev and /proc; loads no driver."""
    return Machine(
        gpu=Path("/proc/driver/nvidia/version").exists() or Path("/dev/nvidia0").exists(),
        tpu=any(Path("/dev").glob("accel*")) or any(Path("/dev/vfio").glob("[0-9]*")),
    )


def latest_attempt(names: list[str]) -> int:
    """Return the highest attempt number in the names of a run folder's events files; 0 if there is none."""
    return max((parsed.attempt for name in names if (parsed := parse_events_name(name))), default=0)


def already_finished(before: ResolvedJob, result: Result, attempt: int, now: ResolvedJob) -> bool:
    """Return whether `result` is of the folder's last attempt, and `now` does not ask for more training than that."""
    # If a later attempt did not end, the folder still has the result of an earlier one.
    if result.reason != SUCCEEDED.reason or result.attempt < attempt:
        return False
    if now.training is None or before.training is None:
        return now.training is before.training
    return now.training.resume != "Never" and _reached(before.training, result.step, now.training)


def _reached(before: ResolvedTraining, step: int | None, now: ResolvedTraining) -> bool:
    if now.total_steps is not None:
        return step is not None and step >= now.total_steps
    if before.epochs is None or now.epochs is None or before.steps_per_epoch != now.steps_per_epoch:
        return False
    return now.epochs <= before.epochs


def inherited_environment(job: ResolvedJob, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the part of this process's environment that the workers inherit."""
    kept = dict(environment)
    if job.keras == "Keras3":
        # The variable decides which Keras tf.keras is, which must come from the job.
        kept.pop("TF_USE_LEGACY_KERAS", None)
    if job.accelerator.kind == "cpu" and job.program.script is not None and job.replicas_per_worker > 1:
        # TensorFlow 2.21's oneDNN aborts in MklMaxPoolingGradOp ("int32 expected, got float") for tensorflow-cloud's
        # mnist example on two CPU devices, under plain MirroredStrategy too.
        kept.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
    return kept


def worker_environment(
    launch: Launch, index: int, *, inherited: dict[str, str], incarnation: str, folder: Path, gpus: int | None
) -> dict[str, str]:
    """Return the environment of worker `index`.

    `gpus` is the number of GPUs per worker if there are several workers, since workers on one machine must not share
    GPUs; None for one worker, or without GPUs. They are those that the inherited environment makes visible.
    """
    # A local run is watched: frequent progress moves the bar and gives a run of seconds enough points for its curves.
    environment = {PROGRESS_SECONDS: "0.5"} | inherited | launch.environment
    # `run_local` keeps the workers' output: it also reads that of C++ code, of child processes and of a crash.
    environment |= {INDEX: str(index), INCARNATION: incarnation, SOURCE_FOLDER: str(folder), OUTPUT_KEPT: "1"}
    if len(launch.hosts) > 1:
        # gRPC between two workers of one machine hangs if it goes through an HTTP proxy.
        environment["no_grpc_proxy"] = ",".join(filter(None, [inherited.get("no_grpc_proxy"), "127.0.0.1"]))
        environment["no_proxy"] = ",".join(filter(None, [inherited.get("no_proxy"), "127.0.0.1"]))
    if gpus is not None:
        given = inherited.get(VISIBLE_GPUS)
        visible = given.split(",") if given else [str(each) for each in range((index + 1) * gpus)]
        environment[VISIBLE_GPUS] = ",".join(visible[index * gpus : (index + 1) * gpus])
    return environment


M = TypeVar("M", bound=Model)

# The argument of `run_local` that names the run folder.
RUN_FOLDER = ArgumentPlace("output=…", "--run-folder DIR")
TRAINER = (sys.executable, "-m", "mptraining_trainer", "train")
# Above the well-known ports, and below Linux' ephemeral port range, which starts at 32768.
_PORTS = range(12_000, 30_000)


def run_local(
    path: str | Path,
    *,
    output: str | None = None,
    display: Display | None = None,
    command: Sequence[str] = TRAINER,
    timeouts: Timeouts | None = None,
    machine: Machine | None = None,
    incarnation: Callable[[], str] = lambda: str(uuid.uuid4()),
    now: Callable[[], float] = time.time,
    again: str | None = None,
    shown: Callable[[str], str] = str,
    document: Mapping[str, Any] | None = None,
    first_line: str | None = None,
    signals: list[int] | None = None,
    environment: Mapping[str, str] | None = None,
    error: Callable[[str], None] | None = None,
    named: Callable[[Place], str | Place] = lambda place: place,
) -> int:
    """Train the job in the file at `path` and return the exit code for a shell.

    With `document`, an MPTrainingJob as a mapping, that job is trained; of `path` only the folder counts, in which its
    relative paths begin.

    The exit code is 0 if the job is finished (also if it already was), a worker's own code if one failed, and 128 plus
    the signal number if the run was interrupted or a worker was killed. `output` overrides the job's run folder,
    `command` is the command of each worker, `incarnation` identifies this launch. `again` is the command that resumes
    the run, if it is not `mptj run` with this file; `shown` transforms lines of the workers before they are displayed;
    `first_line` is displayed first, once the job is known to have no mistakes. In a thread, `signals` gets the signals
    that the main thread receives (`run_gang`). `environment` is added to the workers' environment. `error` gets the
    line about a failure, which is otherwise printed on standard error; `named` is the user's name of a field in it.

    Raises Problem before any process starts: InvalidSpec, InvalidProgram if TensorFlow is not installed, ResumeRefused
    if the run folder belongs to another job.
    """
    display = display or display_here()
    resolved, notes = resolve_for_machine(
        Path(path), document=document, output=output, machine=machine or this_machine()
    )
    again = again or shlex.join(["mptj", "run", str(path), *(["--output", output] if output else [])])
    attempt = _attempt(resolved, display)
    if attempt is None:
        return 0
    if tuple(command) == TRAINER and importlib.util.find_spec("tensorflow") is None:
        step = "Install it with: pip install 'mptraining[trainer-cpu]'"
        raise InvalidProgram("", "TensorFlow is not installed here", next_step=step)

    folder = _relative_path(resolved.output or "", Path.cwd())
    first = [] if first_line is None else [first_line]
    for text in [*first, *(f"note: {note}" for note in notes), *header(resolved, folder=folder)]:
        display.say(text)
    summary = RunSummary()
    debug, launched = bool(os.environ.get(DEBUG)), incarnation()
    kept = _kept_output(resolved, attempt, launched, display)

    def on_line(worker: int, stream: Stream, text: str) -> None:
        text = shown(text)
        event = events.parse(text) if stream == "stdout" else None
        if event is None:
            kept[worker].add(f"{text}\n")
            if debug or not is_noise(stream, text, needs_gpu=resolved.accelerator.kind == "gpu"):
                display.line(worker, stream, text)
        else:
            summary.add(worker, event)
            display.event(worker, event)

    show_waiting(display, "starting TensorFlow…")
    stops: list[int] = []

    def on_stop(number: int) -> float | None:
        stops.append(number)
        if len(stops) > 1:
            return None
        name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
        if number == signal.SIGINT:
            stopped_by_user.touch()
        if not summary.started:
            display.say(f"{name}: stopping; training has not begun, and there is nothing to save")
            return STOP_BEFORE_TRAINING
        display.say(f"{name}: saving and stopping; a second signal stops it at once")
        return None

    with ExitStack() as stack:
        stack.enter_context(_before_workers(display, again))
        stack.callback(display.close)
        for log in kept:
            log.start()
            stack.callback(log.close)
        temporary = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mptj-")))
        stopped_by_user = temporary / "stopped-by-user"
        workers = _workers(
            resolved,
            Path(path),
            temporary / run_folder.JOB,
            attempt=attempt,
            command=command,
            incarnation=launched,
            created=format_time(now()),
            stopped_by_user=stopped_by_user,
            inherited=os.environ | (environment or {}),
        )
        end = run_gang(workers, on_line=on_line, on_stop=on_stop, timeouts=timeouts or Timeouts(), signals=signals)
    decided = verdict(with_missing_reports(end, summary.finished))
    final = final_text(summary, end, decided, command=again, folder=folder, named=named)
    for text in final.output:
        display.say(text)
    if final.error is not None:
        (error or _print_error)(final.error)
    return decided.exit_code


def _print_error(text: str) -> None:
    print(wrapped(f"mptj: {text}", sys.stderr), file=sys.stderr)


@contextmanager
def _before_workers(display: Display, again: str) -> Iterator[None]:
    """Report a Ctrl-C that arrives before the workers start, and exit; `run_gang` handles the later ones."""
    try:
        yield
    except KeyboardInterrupt:
        display.say(f"Stopped by you before training. `{again}` starts again.")
        sys.exit(128 + signal.SIGINT)


def machine_settings(machine: Machine) -> Callable[[str], ClusterSettings]:
    """Return the settings for a type of accelerator: one that the machine lacks falls back to the CPU."""

    def settings(type: str) -> ClusterSettings:
        accelerator = catalogue().get(type)
        return ClusterSettings(cpu_fallback=accelerator is not None and machine.lacks(accelerator.kind))

    return settings


def resolve_for_machine(
    path: Path, *, output: str | None, machine: Machine, document: Mapping[str, Any] | None = None
) -> tuple[ResolvedJob, list[str]]:
    """Return the job, resolved for this machine, and notes on settings detected in its program.

    It is the one in the file at `path`, or `document`, whose relative paths begin in the folder of `path`. Raises
    InvalidJobFile with every mistake.
    """

    settings, folder, here = machine_settings(machine), path.absolute().parent, Path.cwd()

    def complete(job: MPTrainingJob) -> MPTrainingJob:
        job = with_absolute_paths(job, folder=folder, output=str(here / "runs" / job.metadata.name))
        return job if output is None else with_output(job, absolute_path(output, here))

    if document is None:
        checked = check_job_file(path, here=True, settings=settings, complete=complete)
    else:
        checked = check_document(document, folder, here=True, settings=settings, complete=complete)
    # This machine is the only one.
    return for_attempt(checked.resolved), list(checked.notes)


def _kept_output(job: ResolvedJob, attempt: int, incarnation: str, display: Display) -> list[LogWriter]:
    """Return the writer of each worker's output into the run folder."""
    from mptraining_storage.bounded_log import LogWriter

    assert job.output is not None

    def warn(message: str) -> None:
        display.say(f"note: the program's output is not kept: {message}")

    return [
        LogWriter(job.output, partial(run_folder.log_file, attempt, incarnation, worker), on_failure=warn)
        for worker in range(job.workers)
    ]


def _attempt(job: ResolvedJob, display: Display) -> int | None:
    """Return the number of the attempt to start in the job's run folder; None if the job is already finished.

    Raises ResumeRefused if the folder belongs to another job.
    """
    from mptraining_storage import storage

    assert job.output is not None
    latest = latest_attempt([each.uri for each in storage.list_objects(storage.join(job.output, run_folder.EVENTS))])
    job_file = storage.join(job.output, run_folder.JOB)
    if not storage.exists(job_file):
        return latest + 1
    before = _stored(storage.read(job_file), ResolvedJob)
    if before is None:
        raise ResumeRefused(job_file, "cannot be read", next_step=("Choose another folder: ", RUN_FOLDER))
    difference = run_folder.difference(before, job)
    if difference is not None:
        step = (
            (run_folder.ANOTHER_SWEEP,)
            if job.sweep
            else ("Choose another folder, ", RUN_FOLDER, ", or delete this one")
        )
        raise ResumeRefused(job.output, f"the folder belongs to another job: {difference}", next_step=step)
    result_file = storage.join(job.output, run_folder.RESULT)
    # A damaged result counts as missing: training resumes from the checkpoints and writes it again.
    result = _stored(storage.read(result_file), Result) if storage.exists(result_file) else None
    if result is None or not already_finished(before, result, latest, job):
        return latest + 1
    at = "" if result.step is None else f" at step {result.step}"
    more = "" if job.training is None else " or raise spec.training.epochs (or totalSteps) to train on"
    display.say(f"already finished{at}: {job.output}; delete the folder{more}")
    return None


def _stored(content: bytes, kind: type[M]) -> M | None:
    try:
        return kind.read(content)
    except ValidationError:
        return None


def _workers(
    job: ResolvedJob,
    path: Path,
    job_file: Path,
    *,
    attempt: int,
    command: Sequence[str],
    incarnation: str,
    created: str,
    stopped_by_user: Path,
    inherited: Mapping[str, str],
) -> list[Worker]:
    hosts = [f"127.0.0.1:{port}" for port in _free_ports(job.workers)]
    launched = launch(job, hosts=hosts, job_path=str(job_file), attempt=attempt, command=command, job_created=created)
    job_file.write_text(launched.job_file, encoding="utf-8")
    shares_gpus = job.accelerator.kind == "gpu" and job.workers > 1
    return [
        Worker(
            index,
            launched.command,
            worker_environment(
                launched,
                index,
                inherited=inherited_environment(job, inherited),
                incarnation=incarnation,
                folder=source_folder(job, path.absolute().parent),
                gpus=job.accelerator.count_per_worker if shares_gpus else None,
            )
            | {STOPPED_BY_USER_FILE: str(stopped_by_user)},
        )
        for index in range(job.workers)
    ]


def _free_ports(count: int) -> list[int]:
    """Return free ports; all sockets stay bound until every port is chosen, so that the ports differ.

    The ports are outside the ephemeral range: the workers bind them seconds later, and until then the kernel could
    assign an ephemeral port to an outgoing connection of another worker.
    """
    draw = random.SystemRandom()
    found: list[int] = []
    with ExitStack() as stack:
        while len(found) < count:
            each = stack.enter_context(socket.socket())
            with suppress(OSError):
                each.bind(("127.0.0.1", draw.choice(_PORTS)))
                found.append(each.getsockname()[1])
    return found


def _relative_path(folder: str, here: Path) -> str:
    """Return `folder` relative to the current folder `here` if it is below it."""
    below = Path(folder).is_relative_to(here) and "://" not in folder
    return str(Path(folder).relative_to(here)) if below else folder
