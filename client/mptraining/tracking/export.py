"""Export of one run: events of the run folder to a tracking server, afterwards or while it trains.

A run has one id on a server for all of its attempts. `tracking.json` in the run folder keeps the id and the last step
that the server has, so that an export that was interrupted continues there.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from pydantic import Field

from mptraining.comparison.quantities import flattened
from mptraining.runs import History
from mptraining.runs.columns import Columns
from mptraining.runs.event_files import RunEvents
from mptraining.runs.files import folder_files, stored_document
from mptraining.tracking.tensorboard import scalars
from mptraining_api import run_folder
from mptraining_api.events import Finished, Notice, Recovered
from mptraining_api.model import Model
from mptraining_api.outcomes import run_state
from mptraining_api.outputs.scalars import Scalar
from mptraining_api.problems import InvalidData, Problem
from mptraining_api.resolved_job import ResolvedJob
from mptraining_api.run_folder import TRACKING
from mptraining_storage import storage

POLL_SECONDS = 2.0
# Between two tries of a server that does not answer.
RETRY_SECONDS = 15.0
# MLflow's oldest limit; W&B has none that matters here.
_LONGEST_VALUE = 500
# Reasons, and fields that follow from others, are no settings of the training.
_NOT_PARAMETERS = ("version", "choices", "placement", "tracking", "output")
# One call of `Server.log` has at most the values that one request to MLflow may have.
MOST_VALUES = 1000
Status = Literal["running", "succeeded", "failed", "stopped"]
_STATUS: dict[str, Status] = {"Succeeded": "succeeded", "Failed": "failed", "Stopped": "stopped"}


class State(Model):
    """The state of a run on a tracking server: its id there, its page, and the last step that arrived."""

    run_id: str
    url: str | None = None
    step: int = -1


class States(Model):
    """`tracking.json` in the run folder: the states by server, `mlflow` or `wandb`."""

    version: int = 1
    states: dict[str, State] = Field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Description:
    """A run as a tracking server shows it. `key` is its id there, or a tag that finds it."""

    key: str
    name: str
    parameters: dict[str, str]
    tags: dict[str, str]
    folder: str


class Server(Protocol):
    """A tracking server. Every method may raise any exception; it may then be called again."""

    def begin(self, run: Description, state: State | None) -> State:
        """Create the run, or find that of an earlier attempt, and write parameters and tags."""

    def log(self, scalars: Sequence[Scalar]) -> None:
        """Send at most `MOST_VALUES` values, in order of steps."""

    def finish(self, status: Status, summary: dict[str, str]) -> None:
        """Set the status and the tags of the end; `running` if the run may continue."""


class Export:
    """Sends a run to `server`, whose name in `tracking.json` is `name`. `send` may be called again after an error."""

    def __init__(self, folder: str, name: str, server: Server) -> None:
        self._folder = folder
        self._name = name
        self._server = server
        self._files = folder_files(folder)
        self._events = RunEvents(self._files)
        # What the server has of the run; None before `send`.
        self.state: State | None = None
        # The last step that an earlier export sent, and that of each series since, by run and tag.
        self._before = -1
        self._sent: dict[str, int] = {}

    def read(self) -> None:
        self._events.refresh(self._files.list())
        self._events.fill()

    def send(self, *, final: bool) -> None:
        """Send what was read; set the status if it is `final`. Raise InvalidData if there is no run, and the server's
        errors.
        """
        launches = self._events.launches()
        if not launches:
            raise InvalidData(self._folder, "holds no events of a run", expected="the run folder of a job")
        if self.state is None:
            run = self._description(launches[0][0].incarnation)
            states = stored_document(self._folder, TRACKING, States) or States()
            # Without a state the server finds the run by its key.
            self.state = self._server.begin(run, states.states.get(self._name))
            _store(self._folder, self._name, self.state)
            self._before = self.state.step
        history = History.of([columns for _, columns in launches])
        # A server's steps only grow: steps that are trained again keep the values that it has. A script reports its
        # validation after a step whose other values may have been sent.
        new = [
            scalar
            for scalar in scalars(history, max(self._before + 1, *self._sent.values(), 0))
            if scalar.step > self._sent.get(scalar.run + scalar.tag, -1)
        ]
        for batch in _batches(new):
            self._server.log(batch)
            self._sent |= {scalar.run + scalar.tag: scalar.step for scalar in batch}
            self.state = self.state.model_copy(update={"step": max(self.state.step, batch[-1].step)})
            _store(self._folder, self._name, self.state)
        if final:
            status = _STATUS[run_state(history.finished.reason)] if history.finished else "running"
            self._server.finish(status, _summary([columns for _, columns in launches]))

    def launches(self, incarnation: str) -> list[Columns]:
        """Return what was read of the launch with this incarnation."""
        return [columns for launch, columns in self._events.launches() if launch.incarnation == incarnation]

    def _description(self, first_incarnation: str) -> Description:
        job = read_job(self._folder)
        return Description(
            key=run_key(job.name, first_incarnation),
            name=job.name,
            parameters=parameters(job),
            tags=tags(job, self._folder),
            folder=self._folder,
        )


def follow(export: Export, *, incarnation: str, wait: Callable[[float], None], on_error: Callable[[str], None]) -> None:
    """Send a run while it trains, until this launch of it has finished; retry whatever fails before.

    `wait` sleeps for a number of seconds, `on_error` gets each message once.
    """
    reported: set[str] = set()
    over = False
    while not over:
        pause = POLL_SECONDS
        try:
            export.read()
            launches = export.launches(incarnation)
            over = any(columns.finished for columns in launches)
            # A launch claims the run folder before it trains.
            if any(columns.started for columns in launches):
                export.send(final=over)
        except Exception as error:  # noqa: BLE001 - tracking libraries raise anything
            message = describe(error)
            if message not in reported:
                reported.add(message)
                on_error(message)
            pause = RETRY_SECONDS
            if over:
                # The trainer waits a few seconds only; `mptj track` completes the run later.
                return
        if not over:
            wait(pause)


def describe(error: Exception) -> str:
    text = str(error) if isinstance(error, Problem) else f"{type(error).__name__}: {error}"
    return " ".join(text.split())[:300]


def read_job(folder: str) -> ResolvedJob:
    """Return the job of a run folder. Raises InvalidData if it has none."""
    job = stored_document(folder, run_folder.JOB, ResolvedJob)
    if job is None:
        explanation = f"holds no run: there is no {run_folder.JOB} in it that this version can read"
        raise InvalidData(folder, explanation, expected="a run folder")
    return job


def run_key(name: str, first_incarnation: str) -> str:
    """Return the id of a run on every tracking server: the same for all attempts, and another for another run."""
    return hashlib.sha256(f"{name} {first_incarnation}".encode()).hexdigest()[:16]


def parameters(job: ResolvedJob) -> dict[str, str]:
    """Return the job's settings as text by path, such as `training.optimizer.config.learning_rate`."""
    leaves = flattened(job.to_document(), _NOT_PARAMETERS)
    return {path: (value if isinstance(value, str) else json.dumps(value))[:_LONGEST_VALUE] for path, value in leaves}


def tags(job: ResolvedJob, folder: str) -> dict[str, str]:
    """Return what people filter runs by, and the link to the run folder."""
    values = {
        "mptraining.job": job.name,
        "mptraining.run_folder": folder,
        "mptraining.accelerator": job.accelerator.type,
        "mptraining.precision": job.precision.policy,
        "mptraining.strategy": job.strategy,
        "mptraining.keras": job.keras,
    }
    return {name: str(value) for name, value in values.items()}


def _store(folder: str, name: str, state: State) -> None:
    states = stored_document(folder, TRACKING, States) or States()
    kept = states.model_copy(update={"states": {**states.states, name: state}})
    storage.write(storage.join(folder, TRACKING), kept.to_json().encode())


def _batches(scalars: Sequence[Scalar]) -> Iterator[Sequence[Scalar]]:
    """Yield batches of at most MOST_VALUES values; a step is split only if it has more."""
    begin = 0
    while begin < len(scalars):
        most = end = min(begin + MOST_VALUES, len(scalars))
        while end < len(scalars) and end > begin and scalars[end].step == scalars[end - 1].step:
            end -= 1
        end = end if end > begin else most
        yield scalars[begin:end]
        begin = end


def _summary(launches: Sequence[Columns]) -> dict[str, str]:
    tags: dict[str, str] = {}
    for event in (event for columns in launches for _, event in columns.others):
        match event:
            case Finished():
                tags |= {"mptraining.reason": event.reason, "mptraining.message": event.message[:500]}
            case Recovered():
                tags["mptraining.recovered"] = event.message[:500]
            case Notice() if event.level == "Warning":
                tags[f"mptraining.warning.{event.topic}"] = event.message[:500]
    return tags
