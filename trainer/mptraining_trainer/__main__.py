"""`python -m mptraining_trainer VERB`: one worker of a launch, from its environment to its exit code.

`train` trains. `source` prepares the source code in an init container. `inspect` reports the facts of the model.
`keep`, `model` and `model-fetched` serve the model of a job without a run folder.
"""

from __future__ import annotations

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
    "usage: python -m mptraining_trainer train|source|inspect|model|model-fetched   "
    "(the job comes from the environment: mptraining_api.launch)"
)


def main(arguments: list[str]) -> int:
    """Run one verb and return the exit code of `outcomes`."""
    verbs = {"train": _train, "source": _source, "inspect": _inspect, "model": _model, "model-fetched": _model_fetched}
    if len(arguments) == 3 and arguments[0] == "keep":
        return _keep(arguments[1], float(arguments[2]))
    if len(arguments) != 1 or arguments[0] not in verbs:
        print(_USAGE, file=sys.stderr)
        return 2
    return verbs[arguments[0]](os.environ)


def _train(environment: MutableMapping[str, str]) -> int:
    try:
        job, identity = _job(environment.get(launch.JOB_FILE)), launch.WorkerIdentity.from_environment(environment)
    except Problem as problem:
        return _failed(environment, problem).exit_code

    # The signals are blocked before TensorFlow is imported, because its threads inherit the mask.
    from mptraining_trainer.distribution.preemption import Preemption

    preemption = Preemption(lambda: os._exit(outcomes.PREEMPTED.exit_code))
    preemption.watch()

    # TensorFlow reads TF_USE_LEGACY_KERAS when it is imported.
    from mptraining_trainer.scripts.keras_of_script import with_keras_of_script

    if with_keras_of_script(job, environment, lambda *_, **__: None).keras == "Legacy":
        environment["TF_USE_LEGACY_KERAS"] = "1"

    with _quiet_start():
        from mptraining_trainer import run
        from mptraining_trainer.export import model_server
        from mptraining_trainer.reporting.telemetry import as_whole_lines

    # The stream is wrapped before a script can print.
    sys.stdout = as_whole_lines(sys.stdout)
    folder = job.output or tempfile.mkdtemp(prefix=f"{job.name}-")
    outcome = run.run(job, identity, folder, preemption, environment)
    wait = model_server.keep_seconds(job, identity, environment) if outcome == outcomes.SUCCEEDED else 0.0
    if wait and Path(folder, run_folder.MODEL).is_dir():
        model_server.exec_keep(folder, wait)
    _exit_process(outcome, several=job.processes > 1)
    return outcome.exit_code


def _source(environment: MutableMapping[str, str]) -> int:
    from mptraining_trainer.source import prepare

    # PID 1 of a container has no default signal action: without a handler SIGTERM would be ignored.
    signal.signal(signal.SIGTERM, _raise_preempted)
    try:
        print(f"source: {prepare.prepare(_job(environment.get(launch.JOB_FILE)), environment)}", flush=True)
    except Problem as problem:
        return _failed(environment, problem).exit_code
    return outcomes.SUCCEEDED.exit_code


def _inspect(environment: MutableMapping[str, str]) -> int:
    try:
        job = _job(environment.get(launch.JOB_FILE))
    except Problem as problem:
        return _failed(environment, problem).exit_code
    with _quiet_start():
        from mptraining_trainer.model import inspect
    from mptraining_trainer.reporting.errors import to_problem
    from mptraining_trainer.reporting.telemetry import Telemetry

    telemetry = Telemetry(launch.WorkerIdentity.from_environment({}), None)
    try:
        facts = inspect.inspect(job, environment, telemetry.notice, telemetry.now)
    except Exception as error:
        if environment.get(launch.DEBUG):
            raise
        return _failed(environment, error if isinstance(error, Problem) else to_problem(error, job)).exit_code
    telemetry.emit(events.Inspected, model=facts)
    outcome = outcomes.SUCCEEDED
    telemetry.emit(events.Finished, reason=outcome.reason, exit_code=outcome.exit_code, message="nothing was trained")
    return outcome.exit_code


def _keep(folder: str, seconds: float) -> int:
    from mptraining_trainer.export import model_server

    model_server.wait_until_fetched(folder, seconds)
    return outcomes.SUCCEEDED.exit_code


def _model(_: MutableMapping[str, str]) -> int:
    from mptraining_trainer.export import model_server

    try:
        print(model_server.write_tar(sys.stdout.buffer), file=sys.stderr)
    except Problem as problem:
        print(f"error: {problem}", file=sys.stderr)
        return outcomes.by_reason(problem.reason).exit_code
    return outcomes.SUCCEEDED.exit_code


def _model_fetched(_: MutableMapping[str, str]) -> int:
    from mptraining_trainer.export import model_server

    try:
        model_server.end_keep()
    except Problem as problem:
        print(f"error: {problem}", file=sys.stderr)
        return outcomes.by_reason(problem.reason).exit_code
    return outcomes.SUCCEEDED.exit_code


def _raise_preempted(*_: object) -> None:
    raise Preempted("", "terminated while the source was prepared")


def _failed(environment: Mapping[str, str], problem: Problem) -> Outcome:
    """Report as the last Event, and on stderr, the problem that stopped the job before training."""
    from mptraining_trainer.reporting.secrets import SecretValues
    from mptraining_trainer.reporting.telemetry import Telemetry

    secrets = SecretValues.from_environment(environment)
    print(f"error: {secrets.redact(str(problem))}", file=sys.stderr)
    try:
        identity = launch.WorkerIdentity.from_environment(environment)
    except Problem:
        identity = launch.WorkerIdentity.from_environment({})
    telemetry = Telemetry(identity, None, termination_log=environment.get(launch.TERMINATION_LOG), secrets=secrets)
    outcome = outcomes.by_reason(problem.reason)
    telemetry.emit(events.Finished, reason=outcome.reason, exit_code=outcome.exit_code, message=str(problem))
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


def _job(path: str | None) -> ResolvedJob:
    if path is None:
        raise InvalidSpec(launch.JOB_FILE, "not set", expected="the path of a resolved job", next_step="Use mptj run.")
    try:
        return ResolvedJob.read(Path(path).read_bytes())
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
