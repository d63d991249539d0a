"""Conversion of TensorFlow's and the program's errors to Problems with a next step, and notices of storage retries."""

from __future__ import annotations

import builtins
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager

import tensorflow as tf

from mptraining_api.events import Notice
from mptraining_api.launch import WorkerIdentity
from mptraining_api.problems import InvalidData, InvalidProgram, InvalidSpec, PeerLost, Problem, StorageUnavailable
from mptraining_api.resolved_job import ResolvedJob
from mptraining_storage import gcs_clients
from mptraining_storage.gcs import SCHEME
from mptraining_trainer.report.error_text import (
    INDEX,
    describe_error,
    error_text,
    next_step_of,
    problem_in,
    user_frame,
)
from mptraining_trainer.report.telemetry import Telemetry

# The longest text of an error in a message.
_LENGTH = 500

# Words in errors of collective operations after a peer has died; the error class depends on which worker detects it.
_PEER = ("collective", "connection reset", "socket closed", "failed to connect", "heartbeat", "peer", "unavailable")


# The message of the CPU kernel of the sparse losses; the GPU kernel returns NaN for such a label.
_LABEL = "Received a label value of"
# The name scope of a part of the input pipeline is the field that names it.
_SCOPE = re.compile(r"\{\{node (spec(?:\.\w+)+)/")
# A node outside the graph of a dataset, through which an error of the dataset passes.
_INPUT = re.compile(
    r"__wrapped__IteratorGetNext|Iterator::Root|\[\[[^\]{}]*IteratorGetNext\]\]|\{\{node \S*IteratorGetNext\}\}"
)


def to_problem(error: BaseException, job: ResolvedJob) -> Problem:  # noqa: PLR0911 - a table, one row a kind
    """Return the Problem for `error`; an unknown error counts as the program's."""
    # A Problem may be the cause or context of another error.
    if (problem := problem_in(error)) is not None:
        return problem
    text = error_text(error)[:_LENGTH]
    # A peer's error may arrive in the text of a collective operation: it has the same outcome on every worker.
    if (scope := _SCOPE.search(str(error))) is not None:
        return _in_field(scope[1], error)
    if job.workers > 1 and is_peer_error(error):
        return PeerLost(
            "", f"another worker went away: {text}", next_step="The whole gang starts again from the checkpoint."
        )
    if isinstance(error, tf.errors.InvalidArgumentError) and _LABEL in text:
        return InvalidData(
            "spec.data.label",
            text[text.index(_LABEL) :].split(". ")[0].rstrip("."),
            next_step="Give the head as many classes as there are labels, or count the labels from 0.",
        )
    if isinstance(error, tf.errors.UnimplementedError) and "determinis" in str(error).lower():
        return InvalidProgram(
            "spec.program",
            f"an operation of the model has no deterministic form on this device: {text}",
            next_step="Replace it, or set training.deterministic: Never: a resumed run then ends with slightly other "
            "weights than one that was never interrupted.",
        )
    if isinstance(error, tf.errors.ResourceExhaustedError | MemoryError):
        return Problem(
            "memory",
            text,
            next_step="Lower training.batchSize (with gradientAccumulationSteps to keep the product), "
            "or use mixed precision, which halves activations.",
        )
    if isinstance(error, tf.errors.InvalidArgumentError | tf.errors.DataLossError) and _INPUT.search(str(error)):
        if "Cannot batch tensors with different shapes" in text:
            # Decoded features have one shape.
            return InvalidProgram("spec.data.preprocess", text, expected="tensors of the same shape for every example")
        return InvalidData(
            "spec.data", text, next_step="Run `mptj records verify`, and compare data.features with the records."
        )
    if _is_program_fault(error, job):
        return InvalidProgram("spec.program", describe_error("", error, most=_LENGTH), next_step=next_step_of(error))
    return Problem("", text)


def _in_field(field: str, error: BaseException) -> Problem:
    """Return the Problem of an error in the part of the input pipeline that `field` names."""
    text = error_text(error)
    index = INDEX.search(text)
    if field == "spec.training.classWeight" and index is not None:
        return InvalidSpec(
            field,
            f"a label is {index[1]}, and the weights are those of the classes 0 to {int(index[2]) - 1}",
            expected="a weight for each class",
            next_step="Count the labels from 0." if index[1].startswith("-") else f'Add a weight for "{index[1]}".',
        )
    described = describe_error("the function", error, most=_LENGTH)
    raised = getattr(builtins, text.partition(":")[0], None)
    if isinstance(raised, type) and issubclass(raised, OSError):
        # A file or a service that the function reads may be there in the next attempt.
        return Problem(field, described)
    return InvalidProgram(field, described)


def _is_program_fault(error: BaseException, job: ResolvedJob) -> bool:
    """Return whether a retry of the error would end in the same way: the program's code, or values it does not take."""
    if job.program.script is not None or isinstance(error, OSError):
        return False
    if isinstance(error, tf.errors.InvalidArgumentError | tf.errors.UnimplementedError):
        return job.workers == 1 or "collective" not in str(error).lower()
    return "in user code" in str(error) or bool(user_frame(error))


def is_peer_error(error: BaseException) -> bool:
    """Return whether the error is that of a lost peer: a reset connection, or no heartbeat after 10 s."""
    if isinstance(error, RuntimeError):
        return any(word in str(error).lower() for word in _PEER)
    return isinstance(
        error,
        tf.errors.UnavailableError
        | tf.errors.AbortedError
        | tf.errors.CancelledError
        | tf.errors.InternalError
        | tf.errors.DeadlineExceededError,
    )


_SECONDS = 10.0


@contextmanager
def report_storage_retries(telemetry: Telemetry) -> Iterator[None]:
    """In the block, report retries of storage requests, at most one line in ten seconds."""
    reported_at, unreported = -math.inf, 0

    def report(line: str) -> None:
        nonlocal reported_at, unreported
        if telemetry.now() - reported_at < _SECONDS:
            unreported += 1
            return
        reported_at = telemetry.now()
        more = f" ({unreported} new tries since the last line)" if unreported else ""
        unreported = 0
        # `notice` would report the same message only once in a run.
        telemetry.emit(Notice, level="Warning", topic="StorageRetried", message=line + more)

    endpoint = gcs_clients.endpoint()
    endpoint.on_retry = report
    try:
        yield
    finally:
        endpoint.on_retry = None


def unreachable_storage_as_invalid_data(problem: Problem, identity: WorkerIdentity, *, has_responded: bool) -> Problem:
    """Return the problem, or InvalidData if storage without any response points to a mistake in the job.

    `has_responded`: the storage service sent a response in this attempt. Every run contacts its storage before the
    first step. If the service has never responded in the first attempt, an address, a name server or a network policy
    is wrong, and no retry can fix it. In later attempts it may recover.
    """
    # A field of the job may precede the URI.
    remote = SCHEME in problem.where or SCHEME in problem.found
    if not isinstance(problem, StorageUnavailable) or not remote or has_responded or identity.attempt > 1:
        return problem
    return InvalidData(
        problem.where,
        problem.found,
        next_step="It never answered: check the address, the name server and the network policies of this machine",
    )
