"""What a checkpoint says of itself: `state.json`, the last file of each, without which there is none."""

from __future__ import annotations

from pydantic import Field, JsonValue

from mptraining_api.events import ExcludedRecord, Recovery, Trial
from mptraining_api.model import Model
from mptraining_api.problems import Problem, StorageUnavailable
from mptraining_api.resolved_job import ResolvedJob
from mptraining_records.storage import storage
from mptraining_trainer.checkpoints.files import FileState
from mptraining_trainer.checkpoints.provenance import Origin
from mptraining_trainer.numerics.recovery import PrecisionState

STATE = "state.json"
_VERSION = 1


class FitState(Model):
    """What one call of `fit` did: epochs, and what was measured after each of them."""

    epochs: int
    history: dict[str, list[float]] = Field(default_factory=dict)


class CheckpointState(Model):
    """What stands in state.json: `step` steps are done; `epoch` and `examples` are the position in the data."""

    version: int = _VERSION
    step: int
    attempt: int
    incarnation: str
    seed: int
    epoch: int
    examples: int
    fingerprint: str
    policy: str
    # What the job asked for, Measure too; `policy` is the one in force. None in checkpoints from before it was kept.
    asked_policy: str | None = None
    checked: bool = False
    checked_until: int = 0
    recoveries: tuple[Recovery, ...] = ()
    measured: tuple[Trial, ...] = ()
    excluded: tuple[ExcludedRecord, ...] = ()
    replicas: int
    # Examples of an update.
    examples_per_step: int | None = None
    loss_scale: float | None = None
    good_steps: int = 0
    skipped_steps: int = 0
    skipped_in_a_row: int = 0
    # Steps whose losses the sums among the metrics hold, each by its share of rows that count.
    loss_steps: float = 0.0
    # What the callbacks remember, by the callback's name.
    callbacks: dict[str, JsonValue] = Field(default_factory=dict)
    # Of a script: its fits so far, the last one perhaps unfinished.
    fits: tuple[FitState, ...] = ()
    # What the numbers depend on; None in a state of an older version.
    origin: Origin | None = None
    files: dict[str, FileState] = Field(default_factory=dict)


def checkpoints(folder: str) -> list[str]:
    """URIs of the published checkpoints below `folder`, oldest first."""
    ends = f"/{STATE}"
    return sorted(found.uri.removesuffix(ends) for found in storage.list_objects(folder) if found.uri.endswith(ends))


def newest_state(folder: str) -> CheckpointState | None:
    """The state of the newest checkpoint whose state can be read; its arrays are not looked at."""
    for uri in reversed(checkpoints(folder)):
        try:
            return CheckpointState.read(storage.read(storage.join(uri, STATE)))
        except StorageUnavailable:
            raise
        except (Problem, ValueError):
            continue
    return None


def resumed(job: ResolvedJob, state: CheckpointState | None, *, fingerprint: str) -> PrecisionState | None:
    """The numbers that a checkpoint of this very job goes on with; None to begin as the job says.

    What an attempt found out holds for the next ones until the user asks for another policy, and which records are
    left out for data of this fingerprint alone.
    """
    if state is None or state.asked_policy != job.precision.policy:
        return None
    # A run that is to fail at the first bad batch must not leave it out.
    fails = job.training is not None and job.training.on_non_finite == "Fail"
    return PrecisionState(
        asked=state.asked_policy,
        policy=state.policy,
        checked=state.checked and not fails,
        until=state.checked_until,
        recoveries=state.recoveries,
        measured=state.measured,
        excluded=() if fails or state.fingerprint != fingerprint else state.excluded,
    )
