"""What a run did about its numbers, as checkpoints, Started, Progress and the result record it."""

from __future__ import annotations

from mptraining_api.model import Model


class Trial(Model):
    """What `precision.policy: Measure` saw of one policy: seconds a step (median), mean loss of the same first steps.

    `loss` is None when it was no finite number. `agrees` says whether it is close enough to float32's.
    """

    policy: str
    step_seconds: float
    loss: float | None
    agrees: bool


class ExcludedRecord(Model):
    """A training record that is left out from `step` on, since numbers are not finite with it; `record` counts from 0
    through all files of the data set, in the order of their names.
    """

    record: int
    step: int


class Recovery(Model):
    """Training went back from `from_step` to `to_step` and went on under `precision`."""

    from_step: int
    to_step: int
    precision: str
    message: str
