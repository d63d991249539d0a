"""The section `spec.precision`: which numbers the model computes with."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from mptraining_api.model import Model


class LossScale(Model):
    """How the loss is scaled under mixed_float16."""

    mode: Literal["Dynamic", "Fixed"] | None = Field(
        None, description="Dynamic halves on overflow and doubles after 2000 good steps; Fixed keeps value."
    )
    value: Annotated[float, Field(ge=1, le=2**31)] | None = Field(
        None, description="The fixed scale, or where Dynamic begins."
    )


class Precision(Model):
    """Which numbers the model computes with."""

    policy: Literal["Auto", "Measure", "float32", "mixed_float16", "mixed_bfloat16"] | None = Field(
        None,
        description="Auto follows the accelerator; Measure lets the real model on the real device decide.",
    )
    loss_scale: LossScale | None = Field(None, description="Loss scaling under mixed_float16.")
