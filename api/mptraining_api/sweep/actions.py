"""Observed jobs of a sweep, and the actions of its plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from mptraining_api.status import EventRecord
from mptraining_api.sweep.status import SweepStatus

JobState = Literal["Pending", "Running", "Succeeded", "Failed"]


@dataclass(frozen=True, slots=True)
class TrialJob:
    """The observed job of a trial, on a cluster or a local run.

    `metrics` are the job's last values, and are used once it has succeeded; `rounded` gives them alike everywhere.
    `infrastructure`: the job failed through no fault of its own, such as a lost machine, and is tried again.
    `completion` is in seconds since 1970.
    """

    name: str
    state: JobState
    suspended: bool = False
    infrastructure: bool = False
    message: str = ""
    metrics: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    completion: float | None = None


@dataclass(frozen=True, slots=True)
class Refusal:
    """Creation of a job that was refused. `final`: it will be refused again, so that the trial fails."""

    message: str
    final: bool


@dataclass(frozen=True, slots=True)
class CreateJob:
    """Create the MPTrainingJob of a trial. A job of this sweep that exists under that name is left as it is."""

    name: str
    trial: int
    document: dict[str, Any]


@dataclass(frozen=True, slots=True)
class SuspendJob:
    """Set runPolicy.suspend of a trial's job."""

    name: str
    suspend: bool


@dataclass(frozen=True, slots=True)
class DeleteJob:
    """Delete the job of a trial that was stopped."""

    name: str


@dataclass(frozen=True, slots=True)
class DeleteSweep:
    """Delete the sweep, whose ttlSecondsAfterFinished has expired."""


Action = CreateJob | SuspendJob | DeleteJob | DeleteSweep


@dataclass(frozen=True, slots=True)
class SweepPlan:
    """The status to write, then the actions, then the Events to emit, and the time of the next plan.

    The status must be stored before the first action, and only over the status that the plan was made from: then a
    process that is killed anywhere neither loses nor repeats a trial. `status` equals the observed one if nothing
    changed. `wake_at` is in seconds since 1970.
    """

    status: SweepStatus
    actions: tuple[Action, ...] = ()
    event_records: tuple[EventRecord, ...] = ()
    wake_at: float | None = None
