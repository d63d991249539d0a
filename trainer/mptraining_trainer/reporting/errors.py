"""Conversion of TensorFlow's and the program's errors to Problems with a next step, and notices of storage retries."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import tensorflow as tf

from mptraining_api.events import Notice
from mptraining_api.launch import WorkerIdentity
from mptraining_api.problems import InvalidData, InvalidProgram, PeerLost, Problem, StorageUnavailable
from mptraining_api.resolved_job import ResolvedJob
from mptraining_records.storage import gcs_clients
from mptraining_records.storage.gcs import SCHEME
from mptraining_trainer.reporting.telemetry import Telemetry

# Words in errors of collective operations after a peer has died; the error class depends on which worker detects it.
_PEER = (
    "collective",
    "connection reset",
    "socket closed",
    "failed to connect",
    "heartbeat",
    "peer",
    "unavailable",
)


# Beginnings of lines around the cause in a graph error.
_NOISE = ("[[{{", "Detected at", "File ", "Stack trace", "[Op:", "Graph execution error", "(0) ", "(1) ")
# The message of the CPU kernel of the sparse losses; the GPU kernel returns NaN for such a label.
_LABEL = "Received a label value of"


def to_problem(error: BaseException, job: ResolvedJob) -> Problem:  # noqa: PLR0911 - a table, one row a kind
    """Return the Problem for `error`; an unknown error counts as the program's."""
    found: BaseException | None = error
    while found is not None:
        # A Problem may be the cause or context of another error.
        if isinstance(found, Problem):
            return found
        found = found.__cause__ or found.__context__
    text = _cause_line(error)
    if job.processes > 1 and is_peer_error(error):
        return PeerLost(
            "",
            f"another worker went away: {text}",
            next_step="The whole gang starts again from the checkpoint.",
        )
    if isinstance(error, tf.errors.InvalidArgumentError) and _LABEL in str(error):
        said = next(line for line in str(error).splitlines() if _LABEL in line)
        return InvalidData(
            "spec.data.label",
            said[said.index(_LABEL) :].split(". ")[0].rstrip(".")[:500],
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
    if isinstance(error, tf.errors.InvalidArgumentError | tf.errors.DataLossError) and _in_input(error):
        return InvalidData(
            "spec.data",
            text,
            next_step="Run `mptj records verify`, and compare data.features with the records.",
        )
    if isinstance(error, tf.errors.InvalidArgumentError | ValueError | TypeError) and job.program.function is not None:
        return (
            InvalidProgram("spec.program.function", text, next_step="`--debug` shows where.")
            if _in_trace(error)
            else Problem("", text)
        )
    return Problem("", f"{type(error).__name__}: {text}")


def is_peer_error(error: BaseException) -> bool:
    """Return whether the error is that of a lost peer: a reset connection, or no heartbeat after 10 s."""
    # KerasTuner's requests to the oracle. Only a program that uses gRPC itself has imported it.
    grpc = sys.modules.get("grpc")
    if grpc is not None and isinstance(error, grpc.RpcError):
        return isinstance(error, grpc.Call) and error.code() in (
            grpc.StatusCode.UNAVAILABLE,
            grpc.StatusCode.CANCELLED,
            grpc.StatusCode.DEADLINE_EXCEEDED,
        )
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


def _in_input(error: BaseException) -> bool:
    text = str(error)
    return "IteratorGetNext" in text or "ParseExample" in text or "DecodeImage" in text or "MapDataset" in text


def _in_trace(error: BaseException) -> bool:
    return "in user code" in str(error)


def _cause_line(error: BaseException) -> str:
    """Return the line of the message with the cause; graph errors begin with a location and end with the cause."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    said = [line for line in lines if not line.startswith(_NOISE)]
    return (said[0] if isinstance(error, tf.errors.OpError) and said else lines[-1])[:500]


_SECONDS = 10.0


@contextmanager
def report_storage_retries(telemetry: Telemetry) -> Iterator[None]:
    """In the block, report retries of storage requests, at most one line in ten seconds."""
    endpoint = gcs_clients.endpoint()
    endpoint.on_retry = StorageRetryReporter(telemetry).report
    try:
        yield
    finally:
        endpoint.on_retry = None


class StorageRetryReporter:
    """Reports retries of storage requests, at most one line in ten seconds."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._reported_at = -math.inf
        self._unreported = 0

    def report(self, line: str) -> None:
        """Report one retry, or only count it; called from any thread."""
        now = self._telemetry.now()
        if now - self._reported_at < _SECONDS:
            self._unreported += 1
            return
        self._reported_at = now
        more = f" ({self._unreported} new tries since the last line)" if self._unreported else ""
        self._unreported = 0
        # `notice` would report the same message only once in a run.
        self._telemetry.emit(Notice, level="Warning", topic="StorageRetried", message=line + more)


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
