"""The sections `spec.runPolicy` and `spec.scheduling`: when the job runs, how long and how often it may try."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from mptraining_api.model import Count, Model, Name, NonNegative, Word


class RunPolicy(Model):
    """How often and how long the job may try."""

    backoff_limit: Annotated[int, Field(ge=0, le=1000)] | None = Field(
        None, description="Retries after program errors."
    )
    infrastructure_retries: Annotated[int, Field(ge=0, le=10000)] | None = Field(
        None, description="Retries after lost machines."
    )
    active_deadline_seconds: Count | None = Field(None, description="Running longer than this fails the job.")
    pending_timeout_seconds: Count | None = Field(None, description="Waiting longer for machines fails the job.")
    progress_deadline_seconds: Count | None = Field(None, description="No step for this long restarts the job.")
    ttl_seconds_after_finished: NonNegative | None = Field(
        None, description="The job is deleted this long after it ended."
    )
    suspend: bool | None = Field(None, description="Stop at a checkpoint and give the machines back.")


class Scheduling(Model):
    """Who decides when and where the pods run."""

    queue_name: Word | None = Field(None, description="Kueue's local queue.")
    priority_class_name: Name | None = Field(None, description="PriorityClass of the pods.")
    scheduler_name: Word | None = Field(None, description="Scheduler of the pods.")
