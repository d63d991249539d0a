"""The section `spec.accelerator`: what each node computes on."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field, StringConstraints

from mptraining_api.model import Model, Word


class Provisioning(StrEnum):
    ON_DEMAND = "OnDemand"
    SPOT = "Spot"


class Accelerator(Model):
    """What each node of the job computes on."""

    type: Word = Field(
        description="Canonical name of the catalogue: cpu, nvidia-tesla-t4, nvidia-tesla-a100, tpu-v5-lite-podslice, …"
    )
    count_per_node: Annotated[int, Field(ge=1, le=64)] | None = Field(
        None, description="Accelerators on each node; for cpu, the number of logical devices."
    )
    topology: Annotated[str, StringConstraints(pattern=r"^[0-9]{1,3}(x[0-9]{1,3}){1,2}$", max_length=11)] | None = (
        Field(None, description="TPU only: the slice's chips, such as 2x4 or 4x4x4.")
    )
    provisioning: Provisioning | None = Field(
        None, description="OnDemand, or Spot for machines that may be taken away."
    )
