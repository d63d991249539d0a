"""Local run of one job with the processes, environment and run folder of a run on a cluster.

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
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from mptraining.display.choice import display_here
from mptraining.display.summary import RunSummary
from mptraining.display.text import Display, header, is_noise, show_waiting, wrapped
from mptraining.job_file.checked_job import check_job_file
from mptraining.job_file.paths import absolute_path, source_folder, typed_path, with_absolute_paths
from mptraining.local.local_job import LocalJob, failed
from mptraining.local.outcome import STOP_BEFORE_TRAINING, Timeouts, final_text, verdict, with_missing_reports
from mptraining.local.processes import Stream, Worker, run_gang
from mptraining.packaging.package import Package
from mptraining.packaging.program import function_arguments_named, function_job, refuse_unknown
from mptraining.runs.files import stored_document
from mptraining.training_job import TrainingJob, arguments_named, job_document
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
from mptraining_api.outcomes import SUCCEEDED
from mptraining_api.problems import ArgumentPlace, InvalidProgram, InvalidSpec, Place, ResumeRefused
from mptraining_api.resolve.attempt import for_attempt
from mptraining_api.resolve.resolve import ClusterSettings
from mptraining_api.resolved_job import ResolvedJob, ResolvedTraining
from mptraining_api.run_folder import Result, parse_events_name
from mptraining_api.spec import API_VERSION, KIND, MPTrainingJob
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


def this_machine(environment: Mapping[str, str] = os.environ) -> Machine:
    """Detect the accelerators that a process with that environment may use, from device files; loads no driver."""
    driver = Path("/proc/driver/nvidia/version").exists() or Path("/dev/nvidia0").exists()
    return Machine(
        gpu=driver and visible_gpus(environment) != [],
        tpu=any(Path("/dev").glob("accel*")) or any(Path("/dev/vfio").glob("[0-9]*")),
    )


def visible_gpus(environment: Mapping[str, str]) -> list[str] | None:
    """Return the ids of the NVIDIA GPUs that CUDA_VISIBLE_DEVICES permits, else of all, by the driver's files.

    None if neither tells them.
    """
    given = environment.get(VISIBLE_GPUS)
    if given is not None:
        # CUDA ignores what follows an invalid id.
        return list(takewhile(lambda gpu: gpu not in ("", "-1"), map(str.strip, given.split(","))))
    try:
        return [str(index) for index in range(len(os.listdir("/proc/driver/nvidia/gpus")))]  # noqa: PTH208 - names alone
    except OSError:
        return None


def gpus_of_workers(job: ResolvedJob, environment: Mapping[str, str]) -> list[str | None]:
    """Return CUDA_VISIBLE_DEVICES of each worker: workers on one machine must not share GPUs. None leaves it as it is.

    Raises InvalidSpec if the machine shows too few GPUs.
    """
    if job.accelerator.kind != "gpu" or job.workers == 1:
        return [None] * job.workers
    per_worker = job.accelerator.count_per_worker
    needed = job.workers * per_worker
    gpus = visible_gpus(environment)
    if gpus is not None and len(gpus) < needed:
        shortage = f"{job.workers} workers need {needed} GPUs, and this machine shows {len(gpus)}"
        variable = f" ({VISIBLE_GPUS}={environment[VISIBLE_GPUS]})" if VISIBLE_GPUS in environment else ""
        raise InvalidSpec("spec.workers", f"{shortage}{variable}", expected=f"at most {len(gpus) // per_worker}")
    ids = gpus or [str(index) for index in range(needed)]
    return [",".join(ids[index * per_worker : (index + 1) * per_worker]) for index in range(job.workers)]


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
    launch: Launch, index: int, *, inherited: dict[str, str], incarnation: str, folder: Path, gpus: str | None
) -> dict[str, str]:
    """Return the environment of worker `index`; `gpus` is its CUDA_VISIBLE_DEVICES, None for the inherited one."""
    # A local run is watched: frequent progress moves the bar and gives a run of seconds enough points for its curves.
    environment = {PROGRESS_SECONDS: "0.5"} | inherited | launch.environment
    # The local run keeps the workers' output: it also reads that of C++ code, of child processes and of a crash.
    environment |= {INDEX: str(index), INCARNATION: incarnation, SOURCE_FOLDER: str(folder), OUTPUT_KEPT: "1"}
    if len(launch.hosts) > 1:
        # gRPC between two workers of one machine hangs if it goes through an HTTP proxy.
        environment["no_grpc_proxy"] = ",".join(filter(None, [inherited.get("no_grpc_proxy"), "127.0.0.1"]))
        environment["no_proxy"] = ",".join(filter(None, [inherited.get("no_proxy"), "127.0.0.1"]))
    if gpus is not None:
        environment[VISIBLE_GPUS] = gpus
    return environment


# The argument of `run_local` that names the run folder.
RUN_FOLDER = ArgumentPlace("output=…", "--run-folder FOLDER")
TRAINER = (sys.executable, "-m", "mptraining_trainer", "train")
# Above the well-known ports, and below Linux' ephemeral port range, which starts at 32768.
_PORTS = range(12_000, 30_000)


def run_local(
    job: str | Path | TrainingJob | Mapping[str, Any] | Callable[..., Any],
    *,
    output: str | None = None,
    display: Display | None = None,
    **options: Any,
) -> LocalJob:
    """Train a job in processes of this machine, to its end.

    `job` is the file of a job, a TrainingJob, the mapping that a job file holds, or a function, which is called by the
    trainer as `mptraining.submit` describes; the `options` of a function are `args`, `kwargs`, `accelerator`,
    `workers`, `name`, `folder`, `requirements` and `spec`. Relative paths and the program of a job that is no file are
    below the current folder. `output` is the run folder (default: the job's own, else `runs/<name>`), `display` shows
    the run (default: the one of this notebook or terminal).

    Raises Problem before any process starts, and InvalidProgram if the training failed; what a function raised,
    `LocalJob.result` raises.
    """
    refuse_unknown("run_local", options, function_job)
    runner = LocalRunner(output=output)
    if callable(job):
        with function_arguments_named():
            document, package = function_job(job, **options)
            again = f"run_local({job.__name__}, name={document['metadata']['name']!r})"
            return replace(runner, again=again).run(document, display, package=package)
    if options:
        raise TypeError(f"run_local() takes {next(iter(options))!r} for a function alone")
    trained = runner.run(job, display)
    if trained.exit_code:
        raise failed(trained)
    return trained


@dataclass(frozen=True)
class LocalRunner:
    """Runner of jobs on this machine.

    `output` overrides the job's run folder. `folder` is that of the relative paths and the program of a mapping
    (default: the current one). `command` is the command of each worker, `machine` what this machine has
    (default: as it is detected), `incarnation` identifies a launch. `again` is the call or command that resumes the
    run; `first_line` is displayed first, once the job is known to have no mistakes. In a thread, `signals` gets the
    signals that the main thread receives (`run_gang`). `environment` is added to the workers' environment. `error` gets
    the line about a failure, which is otherwise printed on standard error; `named` is the user's name of a field in it.
    """

    output: str | None = None
    folder: Path | None = None
    command: Sequence[str] = TRAINER
    timeouts: Timeouts = field(default_factory=Timeouts)
    machine: Machine | None = None
    incarnation: Callable[[], str] = lambda: str(uuid.uuid4())
    clock: Callable[[], float] = time.time
    again: str | None = None
    first_line: str | None = None
    signals: list[int] | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    error: Callable[[str], None] = lambda text: print(wrapped(f"mptj: {text}", sys.stderr), file=sys.stderr)
    named: Callable[[Place], str | Place] = lambda location: location

    def run(
        self,
        job: str | Path | TrainingJob | Mapping[str, Any],
        display: Display | None = None,
        *,
        package: Package | None = None,
    ) -> LocalJob:
        """Train the job to its end.

        `package` is the source of a mapping's program. Raises Problem before any process starts: InvalidSpec,
        InvalidProgram if TensorFlow is not installed, ResumeRefused if the run folder belongs to another job.
        """
        display = display or display_here()
        if isinstance(job, str | Path):
            again = shlex.join(["mptj", "run", str(job), *(["--run-folder", self.output] if self.output else [])])
            return replace(self, again=self.again or again)._run(Path(job), None, display)
        document = {"apiVersion": API_VERSION, "kind": KIND, **job_document(job)}
        runner = replace(self, again=self.again or "the same call of run_local")
        with arguments_named(job):
            if package is None:
                return runner._run((self.folder or Path.cwd()) / "job.yaml", document, display)
            return runner._run_package(document, package, display)

    def _run_package(self, document: Mapping[str, Any], package: Package, display: Display) -> LocalJob:
        """Run the job with its package unpacked as in a pod; messages name the user's files, not the copies."""
        spec, name = document["spec"], str(document["metadata"]["name"])
        output = self.output or (spec.get("output") or {}).get("uri") or str(Path("runs", name))
        if package.requirements is not None:
            display.say(
                f"note: {package.requirements} is not installed here: the job takes this environment's packages"
            )
        with tempfile.TemporaryDirectory(prefix="mptraining-source-") as scratch:
            package.unpack(Path(scratch, "source"))
            body = {**document, "spec": {**spec, "source": package.source(config_map=name)}}
            runner = replace(self, output=absolute_path(output, Path.cwd()))
            return runner._run(Path(scratch, "job.yaml"), body, display, hidden=f"{scratch}/source/")

    def _run(self, path: Path, document: Mapping[str, Any] | None, display: Display, *, hidden: str = "") -> LocalJob:
        """Train the job in the file at `path`, or `document`, whose relative paths begin in the folder of `path`.

        `hidden` is removed from the workers' lines.
        """
        machine = self.machine or this_machine({**os.environ, **self.environment})
        resolved, notes = resolve_for_machine(path, document=document, output=self.output, machine=machine)
        code = self._train(resolved, notes, path.absolute().parent, display, hidden)
        assert resolved.output is not None
        return LocalJob(resolved.name, resolved.output, code)

    def _train(self, resolved: ResolvedJob, notes: list[str], origin: Path, display: Display, hidden: str) -> int:
        """Start the workers of the next attempt and return the exit code when they have ended."""
        attempt = _attempt(resolved, display)
        if attempt is None:
            return 0
        require_tensorflow(self.command)
        again, gpus = self.again or "", gpus_of_workers(resolved, {**os.environ, **self.environment})

        folder = typed_path(resolved.output or "", Path.cwd())
        for text in [
            *filter(None, [self.first_line]),
            *(f"note: {note}" for note in notes),
            *header(resolved, folder=folder),
        ]:
            display.say(text)
        summary = RunSummary()
        debug, incarnation = bool(os.environ.get(DEBUG)), self.incarnation()
        kept = _kept_output(resolved, attempt, incarnation, display)

        def on_line(worker: int, stream: Stream, text: str) -> None:
            text = text.replace(hidden, "") if hidden else text
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
            workers = self._workers(
                resolved, source_folder(resolved, origin), temporary / run_folder.JOB, attempt, incarnation, gpus
            )
            stop_file = {STOPPED_BY_USER_FILE: str(stopped_by_user)}
            workers = [replace(worker, environment={**worker.environment, **stop_file}) for worker in workers]
            end = run_gang(workers, on_line=on_line, on_stop=on_stop, timeouts=self.timeouts, signals=self.signals)
        decided = verdict(with_missing_reports(end, summary.finished))
        output, error = final_text(summary, end, decided, command=again, folder=folder, named=self.named)
        for text in output:
            display.say(text)
        if error is not None:
            self.error(error)
        return decided.exit_code

    def _workers(
        self,
        job: ResolvedJob,
        source: Path,
        job_file: Path,
        attempt: int,
        incarnation: str,
        gpus: Sequence[str | None],
    ) -> list[Worker]:
        """Write the job file of the attempt and return its workers."""
        launched = launch(
            job,
            hosts=[f"127.0.0.1:{port}" for port in _free_ports(job.workers)],
            job_path=str(job_file),
            attempt=attempt,
            command=self.command,
            job_created=format_time(self.clock()),
        )
        job_file.write_text(launched.job_file, encoding="utf-8")
        inherited = inherited_environment(job, {**os.environ, **self.environment})

        def environment(index: int) -> dict[str, str]:
            return worker_environment(
                launched, index, inherited=inherited, incarnation=incarnation, folder=source, gpus=gpus[index]
            )

        return [Worker(index, launched.command, environment(index)) for index in range(job.workers)]


def require_tensorflow(command: Sequence[str]) -> None:
    """Raise InvalidProgram if `command` is the trainer, and TensorFlow is not installed here."""
    if tuple(command) == TRAINER and importlib.util.find_spec("tensorflow") is None:
        step = "Install it with: pip install 'mptraining[trainer-cpu]'"
        raise InvalidProgram("", "TensorFlow is not installed here", next_step=step)


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

    def settings(name: str) -> ClusterSettings:
        accelerator = catalogue().get(name)
        return ClusterSettings(cpu_fallback=accelerator is not None and machine.lacks(accelerator.kind))

    return settings


def resolve_for_machine(
    path: Path, *, output: str | None, machine: Machine, document: Mapping[str, Any] | None = None
) -> tuple[ResolvedJob, list[str]]:
    """Return the job, resolved for this machine, and notes on settings detected in its program.

    It is the one in the file at `path`, or `document`, whose relative paths begin in the folder of `path`. Raises
    InvalidJobFile with every mistake.
    """
    folder, here = path.absolute().parent, Path.cwd()
    uri = None if output is None else absolute_path(output, here)

    def complete(job: MPTrainingJob) -> MPTrainingJob:
        default = str(here / "runs" / job.metadata.name)
        return with_absolute_paths(job, folder=folder, default_output=default, output=uri)

    settings = machine_settings(machine)
    checked = check_job_file(path, here=True, document=document, settings=settings, complete=complete)
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
    events_files = storage.list_objects(storage.join(job.output, run_folder.EVENTS))
    latest = latest_attempt([file.uri for file in events_files])
    job_file = storage.join(job.output, run_folder.JOB)
    if not storage.exists(job_file):
        return latest + 1
    before = stored_document(job.output, run_folder.JOB, ResolvedJob)
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
    # A damaged result counts as missing: training resumes from the checkpoints and writes it again.
    result = stored_document(job.output, run_folder.RESULT, Result)
    if result is None or not already_finished(before, result, latest, job):
        return latest + 1
    at = "" if result.step is None else f" at step {result.step}"
    more = "" if job.training is None else " or raise spec.training.epochs (or totalSteps) to train on"
    display.say(f"already finished{at}: {job.output}; delete the folder{more}")
    return None


def _free_ports(count: int) -> list[int]:
    """Return free ports; all sockets stay bound until every port is chosen, so that the ports differ.

    The ports are outside the ephemeral range: the workers bind them seconds later, and until then the kernel could
    assign an ephemeral port to an outgoing connection of another worker.
    """
    draw = random.SystemRandom()
    ports: list[int] = []
    with ExitStack() as stack:
        while len(ports) < count:
            listener = stack.enter_context(socket.socket())
            with suppress(OSError):
                listener.bind(("127.0.0.1", draw.choice(_PORTS)))
                ports.append(listener.getsockname()[1])
    return ports
