"""`python -m mptraining_trainer train`: one worker of a launch, from its environment to its exit code."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mptraining_api import launch, outcomes
from mptraining_api.outcomes import Outcome
from mptraining_api.problems import InvalidSpec, Problem
from mptraining_api.resolved import ResolvedJob

_NOISE = (b"absl::InitializeLog()", b"oneDNN custom operations are on", b"could not find cuda drivers")
_USAGE = "usage: python -m mptraining_trainer train    (the job comes from the environment: see mptraining_api.launch)"


def main(arguments: list[str]) -> int:
    """Runs one verb; returns the exit code of `outcomes`."""
    if arguments != ["train"]:
        print(_USAGE, file=sys.stderr)
        return 2
    environment = os.environ
    try:
        job, seat = _job(environment.get(launch.JOB_FILE)), launch.Seat.from_environment(environment)
    except Problem as problem:
        print(f"error: {problem}", file=sys.stderr)
        return outcomes.by_reason(problem.reason).exit_code

    # Blocked before TensorFlow is imported, because its threads inherit the mask.
    from mptraining_trainer.preemption import Preemption

    preemption = Preemption(lambda: os._exit(outcomes.PREEMPTED.exit_code))
    preemption.watch()

    with _quiet_start():
        from mptraining_trainer import run

    folder = job.output or tempfile.mkdtemp(prefix=f"{job.name}-")
    outcome = run.run(job, seat, folder, preemption, environment)
    _leave(outcome, several=job.processes > 1)
    return outcome.exit_code


@contextmanager
def _quiet_start() -> Iterator[None]:
    """Keeps what TensorFlow's C++ says of itself while it loads out of the log; it has no setting for these lines."""
    said = os.dup(2)
    with tempfile.TemporaryFile() as lines:
        os.dup2(lines.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(said, 2)
            os.close(said)
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


def _leave(outcome: Outcome, *, several: bool) -> None:
    """Several-worker TensorFlow may wait for its peers for ever while the interpreter shuts down."""
    sys.stdout.flush()
    sys.stderr.flush()
    if several:
        os._exit(outcome.exit_code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
