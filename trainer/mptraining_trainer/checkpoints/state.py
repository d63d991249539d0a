"""The `state.json` of a checkpoint: its last file, without which the folder is no checkpoint.

The others have the variables; see `checkpoint`.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field, JsonValue

from mptraining_api.events import Recovery, Trial
from mptraining_api.model import AnyNumber, Model
from mptraining_api.resolved_job import ResolvedJob
from mptraining_storage import storage
from mptraining_trainer.checkpoints.files import FileState
from mptraining_trainer.checkpoints.provenance import Origin
from mptraining_trainer.numerics.recovery import PrecisionState, safer_policy

STATE = "state.json"
_VERSION = 1


class FitState(Model):
    """The epochs of one call of `fit`, and the metrics after each epoch."""

    epochs: int
    history: dict[str, list[AnyNumber]] = Field(default_factory=dict)


class CheckpointState(Model):
    """Content of state.json: `step` steps are complete; `epoch` and `examples` are the position in the data."""

    version: int = _VERSION
    step: int
    attempt: int
    incarnation: str
    seed: int
    epoch: int
    examples: int
    fingerprint: str
    # The version of the order of records, 1 in checkpoints without it, and the choice of its blocks.
    order: int = 1
    mixed: bool = False
    policy: str
    # The job's policy, which may be Measure; `policy` is the one in effect. None in checkpoints of older versions.
    asked_policy: str | None = None
    # Updates are checked since a recovery.
    checked: bool = False
    recoveries: tuple[Recovery, ...] = ()
    measured: tuple[Trial, ...] = ()
    replicas: int
    # Number of examples per update.
    examples_per_step: int | None = None
    loss_scale: float | None = None
    good_steps: int = 0
    skipped_steps: int = 0
    skipped_in_a_row: int = 0
    # Number of steps in the loss sum among the metrics, each weighted by its share of unmasked rows.
    loss_steps: float = 0.0
    # The callbacks' state, by the callback's name.
    callbacks: dict[str, JsonValue] = Field(default_factory=dict)
    # The `fit` calls of a script so far; the last one may be unfinished.
    fits: tuple[FitState, ...] = ()
    # The provenance of the numbers; None in checkpoints of older versions.
    origin: Origin | None = None
    # The kinds of the saved objects by file, such as the optimizer's class; empty in checkpoints of older versions.
    kinds: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    files: dict[str, FileState] = Field(default_factory=dict)


def checkpoints(folder: str) -> list[str]:
    """Return the URIs of the published checkpoints below `folder`, oldest first."""
    suffix = f"/{STATE}"
    return sorted(
        stored.uri.removesuffix(suffix) for stored in storage.list_objects(folder) if stored.uri.endswith(suffix)
    )


def step_of(uri: str) -> int:
    """Return the step of a checkpoint of `checkpoints`."""
    return int(uri.rpartition("-")[2])


def precision_from_checkpoint(
    job: ResolvedJob, state: CheckpointState | None, *, available: Sequence[str]
) -> PrecisionState | None:
    """Return the precision state from the checkpoint's state; None to begin with the job's policy.

    The result of an attempt holds for later attempts until the user sets another policy. On another accelerator too,
    except that its own policy is used, that of a recovery must be among the `available` ones there, and what was
    measured is measured again.
    """
    if state is None:
        return None
    asked = job.precision.policy
    moved = state.origin is not None and state.origin.hardware.get("accelerator") != job.accelerator.type
    if (state.asked_policy != asked and not moved) or (moved and asked == "Measure"):
        return None
    policy = state.policy if state.asked_policy == asked else asked
    if moved and policy not in (asked, *available):
        policy = safer_policy(policy, available) or "float32"
    return PrecisionState(
        requested_policy=asked,
        policy=policy,
        checked=state.checked,
        recoveries=state.recoveries,
        trials=state.measured,
    )
