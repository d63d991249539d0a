"""The status of an MPTrainingSweep: its trials, the names of their jobs, the best trial, counts, conditions."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated, Any

from pydantic import Field

from mptraining_api.model import Model, Name, NonNegative, Word
from mptraining_api.spec import GROUP
from mptraining_api.status import NOT_OBSERVED, Condition, Digest, Message, Time
from mptraining_api.sweep.spec import MOST_TRIALS

# Labels of a trial's job: name and uid of the sweep, number of the trial.
SWEEP = f"{GROUP}/sweep"
SWEEP_UID = f"{GROUP}/sweep-uid"
TRIAL = f"{GROUP}/trial"

# A trial's message is stored up to a thousand times in one object.
LONGEST_TRIAL_MESSAGE = 200
MOST_RUNGS = 32

_SUFFIX = re.compile(r"^(?P<trial>.+-\d+)(?P<rung>-r\d+)?(?P<retry>-x\d+)?$")

Assignment = Annotated[dict[str, Any], Field(max_length=32)]


class TrialState(StrEnum):
    """State of a trial. Proposed: recorded, its job perhaps not created yet. Stopped: by early stopping, or by the
    end of the sweep; a trial that early stopping has stopped continues when it is promoted later."""

    PROPOSED = "Proposed"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    STOPPED = "Stopped"
    FAILED = "Failed"


class SweepPhase(StrEnum):
    """Summary in one word for people; programs read the conditions."""

    PENDING = "Pending"
    RUNNING = "Running"
    SUSPENDED = "Suspended"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


class RungValue(Model):
    """The objective at the end of a rung."""

    epoch: NonNegative = Field(description="Epochs that the trial had trained for.")
    value: float = Field(description="The objective after that epoch.")


class Trial(Model):
    """One trial: an assignment of values to the parameters, and its job."""

    number: Annotated[int, Field(ge=1, le=MOST_TRIALS)] = Field(description="Number of the trial, from 1.")
    job: Name = Field(description="Name of its current job.")
    state: TrialState = Field(description="Proposed, Running, Succeeded, Stopped or Failed.")
    parameters: Assignment = Field(description="The value of each parameter, by its path.")
    objective: float | None = Field(None, description="The objective when its last job ended.")
    rung: NonNegative | None = Field(None, description="Number of times that early stopping let it continue.")
    values: Annotated[list[RungValue], Field(max_length=MOST_RUNGS)] | None = Field(
        None, description="The objective at the end of each rung."
    )
    retries: NonNegative | None = Field(None, description="Jobs that failures of machines ended, in this rung.")
    start_time: Time | None = Field(None, description="When it was proposed.")
    completion_time: Time | None = Field(None, description="When its last job ended.")
    message: Message | None = Field(None, description="Why it failed, was stopped, or waits.")
    stopped_by_end: bool | None = Field(
        None, description="Whether the end of the sweep stopped it: a sweep that is reopened continues it."
    )


class BestTrial(Model):
    """The trial with the best objective; of equal ones, the first."""

    number: NonNegative = Field(description="Number of the trial.")
    objective: float = Field(description="Its objective.")
    parameters: Assignment = Field(description="Its parameters.")


class SweepStatus(Model):
    """Observed state of the sweep."""

    phase: SweepPhase | None = Field(None, description="Summary in one word.")
    observed_generation: Annotated[int, Field(ge=NOT_OBSERVED, le=2**31 - 1)] | None = Field(
        None, description="metadata.generation last acted on; -1 before the operator has seen the sweep."
    )
    start_time: Time | None = Field(None, description="When the first trial was proposed.")
    completion_time: Time | None = Field(None, description="When the sweep ended.")
    conditions: Annotated[list[Condition], Field(max_length=32)] | None = Field(
        None,
        description="As metav1.Condition.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    )
    search_digest: Digest | None = Field(
        None, description="SHA-256 of objective, algorithm, parameters and job, which may not change."
    )
    completed: Word | None = Field(None, description="Trials that succeeded or were stopped, and trials.max: 12/50.")
    pending: NonNegative | None = Field(None, description="Trials that are proposed and do not run yet.")
    running: NonNegative | None = Field(None, description="Trials that run.")
    succeeded: NonNegative | None = Field(None, description="Trials that trained to the end.")
    stopped: NonNegative | None = Field(None, description="Trials that were stopped.")
    failed: NonNegative | None = Field(None, description="Trials that failed.")
    best: BestTrial | None = Field(None, description="The best trial so far.")
    trials: Annotated[list[Trial], Field(max_length=MOST_TRIALS)] | None = Field(
        None,
        description="Every trial, in the order of numbers.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["number"]},
    )


def job_name(sweep: str, number: int, rung: int = 0, retry: int = 0) -> str:
    """Return the name of a trial's job: flowers-7, in rung 1 flowers-7-r1, at its second retry flowers-7-r1-x2."""
    return f"{sweep}-{number}" + (f"-r{rung}" if rung else "") + (f"-x{retry}" if retry else "")


def trial_name(job: str) -> str:
    """Return the name that all jobs of one trial share; a name of another form is returned as it is."""
    suffix = _SUFFIX.match(job)
    return suffix["trial"] if suffix else job
