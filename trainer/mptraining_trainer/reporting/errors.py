"""Errors that TensorFlow or the user's code raised in mid-training, as problems with a next step."""

from __future__ import annotations

import math

import tensorflow as tf

from mptraining_api.events import Notice
from mptraining_api.launch import WorkerIdentity
from mptraining_api.problems import InvalidData, InvalidProgram, PeerLost, Problem, StorageUnavailable
from mptraining_api.resolved_job import ResolvedJob
from mptraining_records.storage.gcs import SCHEME
from mptraining_records.storage.retry import contact
from mptraining_trainer.reporting.telemetry import Telemetry

# What the collective operations say when the other end is gone; their error classes vary with who noticed first.
_PEER = (
    "collective",
    "connection reset",
    "socket closed",
    "failed to connect",
    "heartbeat",
    "peer",
    "unavailable",
)


# What surrounds the cause in an error of a graph.
_NOISE = ("[[{{", "Detected at", "File ", "Stack trace", "[Op:", "Graph execution error", "(0) ", "(1) ")
# The CPU's kernel of the sparse losses; a GPU's makes NaN of such a label.
_LABEL = "Received a label value of"


def explained(error: BaseException, job: ResolvedJob) -> Problem:  # noqa: PLR0911 - a table, one row a kind
    """The Problem behind `error`; one that nothing is known about counts as the program's."""
    found: BaseException | None = error
    while found is not None:
        # A problem raised inside a generator of tf.data comes back as text inside TensorFlow's own error.
        if isinstance(found, Problem):
            return found
        found = found.__cause__ or found.__context__
    text = _last_line(error)
    if job.processes > 1 and of_a_peer(error):
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


def of_a_peer(error: BaseException) -> bool:
    """A killed peer is seen as a reset connection at once, or after ten seconds by its missing heartbeat."""
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


def _last_line(error: BaseException) -> str:
    """The line of the message that says what is wrong; graph errors begin with where and end with the cause."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    said = [line for line in lines if not line.startswith(_NOISE)]
    return (said[0] if isinstance(error, tf.errors.OpError) and said else lines[-1])[:500]


_SECONDS = 10.0


class StorageWatch:
    """Passes on what the storage's clients say of new tries, one line in ten seconds."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._said_at = -math.inf
        self._unsaid = 0
        contact.on_retry = self.heard

    def heard(self, line: str) -> None:
        """One new try; from any thread."""
        now = self._telemetry.now()
        if now - self._said_at < _SECONDS:
            self._unsaid += 1
            return
        self._said_at = now
        more = f" ({self._unsaid} new tries since the last line)" if self._unsaid else ""
        self._unsaid = 0
        # Not `notice`, which says a message once in a run.
        self._telemetry.say(Notice, level="Warning", topic="StorageRetried", message=line + more)


def judged(problem: Problem, identity: WorkerIdentity) -> Problem:
    """The problem, but InvalidData where storage that does not answer is a mistake in the job.

    Every run asks its storage before the first step. If the service has not answered this first attempt once, an
    address, a name server or a network policy is wrong, and no retry will mend it. Later it may heal.
    """
    # A field of the job may stand before the URI.
    remote = SCHEME in problem.where or SCHEME in problem.found
    if not isinstance(problem, StorageUnavailable) or not remote or contact.answered or identity.attempt > 1:
        return problem
    return InvalidData(
        problem.where,
        problem.found,
        next_step="It never answered: check the address, the name server and the network policies of this machine",
    )
