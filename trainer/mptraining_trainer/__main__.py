"""`python -m mptraining_trainer VERB`: one worker of a launch, from its environment to its exit code.

`train` trains. `source` prepares the source code in an init container. `hyperparameters` reports the search space of a
function that takes KerasTuner's HyperParameters.
`keep`, `files`, `send` and `fetched` serve a folder to `mptj fetch`.
"""

from __future__ import annotations

import gc
import hashlib
import os
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from pathlib import Path

from mptraining_api import events, launch, outcomes, run_folder
from mptraining_api.outcomes import Outcome
from mptraining_api.problems import InvalidSpec, Preempted, Problem
from mptraining_api.resolved_job import ResolvedJob

_NOISE = (b"absl::InitializeLog()", b"oneDNN custom operations are on", b"could not find cuda drivers")
_USAGE = (
    "usage: python -m mptraining_trainer train|source|hyperparameters   (the job comes from the environment: "
    "mptraining_api.launch)   or: keep FOLDER SECONDS | files FOLDER | send FOLDER | fetched"
)


def main(arguments: list[str]) -> int:
    """Run one verb and return the exit code of `outcomes`."""
    verbs = {"train": _train, "source": _source, "hyperparameters": _hyperparameters}
    match arguments:
        case [("train" | "source" | "hyperparameters") as verb]:
            return verbs[verb](os.environ)
        case ["keep", folder, seconds]:
            return _keep(folder, float(seconds), os.environ)
        case ["files" | "send" | "fetched", *_]:
            return _serve(arguments)
    return _usage()


def _serve(arguments: list[str]) -> int:
    """Answer one request of a client about a folder; return the exit code, with the problem on stderr."""
    from mptraining_trainer.export import folder_stream, model_server

    try:
        match arguments:
            case ["files", folder]:
                for line in folder_stream.list_files(model_server.find_folder(folder)):
                    print(line)
            case ["send", folder]:
                folder_stream.write_tar(model_server.find_folder(folder), sys.stdout.buffer)
            case ["fetched"]:
                model_server.end_keep()
            case _:
                return _usage()
    except Problem as problem:
        print(f"error: {problem}", file=sys.stderr)
        return outcomes.by_reason(problem.reason).exit_code
    return outcomes.SUCCEEDED.exit_code


def _usage() -> int:
    print(_USAGE, file=sys.stderr)
    return 2


def _train(environment: MutableMapping[str, str]) -> int:
    from mptraining_storage.model_location import with_keras_of_models

    try:
        job, identity = _job(environment), launch.WorkerIdentity.from_environment(environment)
        job = with_keras_of_models(launch.with_current_fields(job, environment))
    except Problem as problem:
        return _failed(environment, problem).exit_code

    # The signals are blocked before TensorFlow is imported, because its threads inherit the mask.
    from mptraining_trainer.devices.preemption import Preemption

    preemption = Preemption(lambda: os._exit(outcomes.PREEMPTED.exit_code))
    preemption.watch()

    # TensorFlow reads TF_USE_LEGACY_KERAS when it is imported.
    from mptraining_trainer.scripts.job_of_script import job_of_script

    if job_of_script(job, environment, lambda *_, **__: None).keras == "Legacy":
        environment["TF_USE_LEGACY_KERAS"] = "1"

    from mptraining_trainer.report.telemetry import as_whole_lines

    # The streams are wrapped before TensorFlow's log takes stderr, and before a script can print.
    sys.stdout, sys.stderr = as_whole_lines(sys.stdout), as_whole_lines(sys.stderr)
    with _quiet_start():
        from mptraining_trainer import run
        from mptraining_trainer.export import model_server
    # Imported modules are never freed, and the collector takes 0.3 s to look at TensorFlow's half million objects.
    gc.freeze()

    folder = job.output or tempfile.mkdtemp(prefix=f"{job.name}-")
    outcome = run.run(job, identity, folder, preemption, environment)
    wait = model_server.keep_seconds(job, identity, environment) if outcome == outcomes.SUCCEEDED else 0.0
    if wait and any(Path(folder, part).is_dir() for part in (run_folder.MODEL, run_folder.FUNCTION)):
        model_server.exec_keep(folder, wait)
    _exit_process(outcome, several=job.workers > 1)
    return outcome.exit_code


def _source(environment: MutableMapping[str, str]) -> int:
    from mptraining_trainer.job import prepare

    # PID 1 of a container has no default signal action: without a handler SIGTERM would be ignored.
    signal.signal(signal.SIGTERM, _raise_preempted)
    try:
        print(f"source: {prepare.prepare(_job(environment), environment)}", flush=True)
    except Problem as problem:
        return _failed(environment, problem).exit_code
    return outcomes.SUCCEEDED.exit_code


def _hyperparameters(environment: MutableMapping[str, str]) -> int:
    """Report the search space of the job's function, without training; return the exit code."""
    try:
        job = _job(environment)
    except Problem as problem:
        return _failed(environment, problem).exit_code
    with _quiet_start():
        from mptraining_trainer.forked_child import user_code
        from mptraining_trainer.keras_backend import load
        from mptraining_trainer.model.hyperparameters import search_space
        from mptraining_trainer.report.errors import to_problem
        from mptraining_trainer.report.telemetry import Telemetry

    telemetry = Telemetry(launch.WorkerIdentity.from_environment({}), None)
    try:
        with user_code():
            function = job.program.function
            if function is None:
                raise InvalidSpec("spec.program", "has no function", expected="a function such as build(hp)")
            load(job.keras)
            if source := environment.get(launch.SOURCE_FOLDER):
                sys.path.insert(0, source)
            telemetry.emit(events.SearchSpace, hyperparameters=search_space(function))
    except Exception as error:
        if environment.get(launch.DEBUG):
            raise
        return _failed(environment, error if isinstance(error, Problem) else to_problem(error, job)).exit_code
    outcome = outcomes.SUCCEEDED
    telemetry.emit(events.Finished, reason=outcome.reason, exit_code=outcome.exit_code, message="nothing was trained")
    return outcome.exit_code


def _keep(folder: str, seconds: float, environment: Mapping[str, str]) -> int:
    from mptraining_trainer.export import model_server
    from mptraining_trainer.report.telemetry import add_hand_over

    fetched = model_server.wait_until_fetched(folder, seconds)
    if log := environment.get(launch.TERMINATION_LOG):
        add_hand_over(log, fetched=fetched)
    return outcomes.SUCCEEDED.exit_code


def _raise_preempted(*_: object) -> None:
    raise Preempted("", "terminated while the source was prepared")


def _failed(environment: Mapping[str, str], problem: Problem) -> Outcome:
    """Report as the last Event the problem that stopped the job before training; in a pod also on stderr."""
    from mptraining_trainer.report.secrets import SecretValues
    from mptraining_trainer.report.telemetry import Telemetry

    secrets = SecretValues.from_environment(environment)
    if launch.OUTPUT_KEPT not in environment:
        print(f"error: {secrets.redact(str(problem))}", file=sys.stderr)
    try:
        identity = launch.WorkerIdentity.from_environment(environment)
    except Problem:
        identity = launch.WorkerIdentity.from_environment({})
    telemetry = Telemetry(identity, None, termination_log=environment.get(launch.TERMINATION_LOG), secrets=secrets)
    outcome = outcomes.by_reason(problem.reason)
    telemetry.emit(
        events.Finished,
        reason=outcome.reason,
        exit_code=outcome.exit_code,
        message=str(problem),
        field=problem.field,
    )
    return outcome


@contextmanager
def _quiet_start() -> Iterator[None]:
    """Drop the lines that TensorFlow's C++ logs while it loads and has no setting for."""
    stderr = os.dup(2)
    with tempfile.TemporaryFile() as lines:
        os.dup2(lines.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
            lines.seek(0)
            for line in lines:
                if not any(noise in line for noise in _NOISE):
                    sys.stderr.buffer.write(line)
            sys.stderr.flush()


def _job(environment: Mapping[str, str]) -> ResolvedJob:
    """Return the job of this attempt, from the job file, which is the same for all attempts."""
    path = environment.get(launch.JOB_FILE)
    if path is None:
        raise InvalidSpec(launch.JOB_FILE, "not set", expected="the path of a resolved job", next_step="Use mptj run.")
    try:
        text = Path(path).read_bytes()
        digest = hashlib.sha256(text).hexdigest()
        if environment.get(launch.JOB_DIGEST, digest) != digest:
            step = "Somebody replaced the job's ConfigMap: delete the job and create it again."
            raise InvalidSpec(path, "not the job that the operator decided", next_step=step)
        return launch.attempt_job(ResolvedJob.read(text), environment)
    except OSError as error:
        raise InvalidSpec(path, error.strerror or str(error), expected="a resolved job") from None
    except ValueError as error:
        raise InvalidSpec(path, "no resolved job of a version that this trainer reads") from error


def _exit_process(outcome: Outcome, *, several: bool) -> None:
    """Exit without interpreter shutdown where that could hang.

    With several workers, TensorFlow may wait for its peers forever while the interpreter shuts down. A preempted
    worker has no time for a shutdown either: the watchdog's thread is stopped by then, and nothing would end it.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    if several or outcome in (outcomes.PREEMPTED, outcomes.STOPPED_BY_USER):
        os._exit(outcome.exit_code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
