"""The MPTrainingSweep resource as a user writes it: a search over the fields of one job.

`job` is kept as the user wrote it, not as a JobSpec: a parameter may set a field that the job needs and does not have,
and JobSpec's schema with its rules would double the CRD. `check` validates the job of every trial instead.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, StringConstraints

from mptraining_api.model import Count, Model, NonNegative, Word
from mptraining_api.spec import API_VERSION, GROUP, VERSION, Metadata
from mptraining_api.validation import patterns
from mptraining_api.validation.api_versions import ApiVersion

__all__ = ["GROUP", "VERSION"]

SWEEP_KIND: Literal["MPTrainingSweep"] = "MPTrainingSweep"
SWEEP_PLURAL = "mptrainingsweeps"
SWEEP_SHORT_NAME = "mpts"

# The status of every trial is stored in the sweep; etcd limits an object to 1.5 MiB.
MOST_TRIALS = 1000
MOST_PARAMETERS = 32
MOST_VALUES = 256

# A trial's job is named <sweep>-<number>-r<rung>-<retry>, which must be a job's name of at most 50 characters.
SWEEP_NAME = re.compile(r"[a-z]([-a-z0-9]{0,35}[a-z0-9])?")

AlgorithmName = Literal["Grid", "Random", "TPE", "CMA-ES", "Hyperband"]

# A path into the job's spec: names of fields, and indices of existing list items.
ParameterPath = Annotated[str, StringConstraints(min_length=1, max_length=253, pattern=patterns.PARAMETER_PATH)]
# Any JSON value. A structural schema has no unions, so that the API server stores the value as it is.
JsonValue = Annotated[Any, Field(json_schema_extra={"x-kubernetes-preserve-unknown-fields": True})]
Values = Annotated[list[JsonValue], Field(max_length=MOST_VALUES)]
JsonObject = Annotated[dict[str, Any], Field(max_length=256)]


class Objective(Model):
    """The metric that the trials are compared by: its last value when a trial ends."""

    metric: Word = Field(description="A metric that the job reports, such as val_loss.")
    direction: Literal["Maximize", "Minimize"] = Field(description="Whether larger or smaller values are better.")


class Algorithm(Model):
    """The algorithm that proposes the parameters of trials."""

    name: AlgorithmName = Field(
        description="Grid tries every combination; Random, TPE and CMA-ES are Optuna's samplers; Hyperband is Random "
        "with early stopping."
    )
    seed: NonNegative | None = Field(None, description="Seed of the proposals.")
    reproducible: bool | None = Field(
        None,
        description="Propose each trial from those numbered at least trials.parallel before it, so that the proposals "
        "do not depend on the order in which trials end.",
    )


class UniformRange(Model):
    """Real numbers from low to high."""

    low: float = Field(description="Smallest value.")
    high: float = Field(description="Largest value.")


class IntegerRange(Model):
    """Integers from low to high."""

    low: Annotated[int, Field(ge=-(2**53), le=2**53)] = Field(description="Smallest value.")
    high: Annotated[int, Field(ge=-(2**53), le=2**53)] = Field(description="Largest value.")
    step: Count | None = Field(None, description="Difference between neighbouring values.")


class When(Model):
    """The condition under which a parameter is searched."""

    path: ParameterPath = Field(description="Path of a parameter earlier in the list.")
    values: Values = Field(description="The parameter is searched when the other has one of these values.")


class Parameter(Model):
    """One field of the job and the values to search: exactly one of values, int, uniform, logUniform."""

    path: ParameterPath = Field(description="Path into the job's spec: training.optimizer.config.learning_rate.")
    values: Values | None = Field(None, description="Values to choose from, of any type.")
    int_: IntegerRange | None = Field(None, alias="int", description="A range of integers.")
    uniform: UniformRange | None = Field(None, description="A range of real numbers.")
    log_uniform: UniformRange | None = Field(None, description="A range of real numbers, uniform in their logarithm.")
    when: When | None = Field(None, description="Search the parameter only for some values of another.")


class Trials(Model):
    """Limits on the number of trials."""

    max: Annotated[int, Field(ge=1, le=MOST_TRIALS)] | None = Field(
        None, description="Number of trials. Failed trials count; failures of machines do not."
    )
    parallel: Annotated[int, Field(ge=1, le=MOST_TRIALS)] | None = Field(None, description="Trials at a time.")
    max_failed: Annotated[int, Field(ge=0, le=MOST_TRIALS)] | None = Field(
        None, description="The sweep fails when more trials than this have failed."
    )


class EarlyStopping(Model):
    """Successive halving (ASHA): trials train for few epochs first, and only the best continue."""

    rule: Literal["Hyperband"] = Field(description="Hyperband: asynchronous successive halving.")
    min_epochs: Count | None = Field(None, description="Epochs of every trial before it can be stopped.")
    reduction: Annotated[int, Field(ge=2, le=16)] | None = Field(
        None, description="One of this many trials continues, for this many times the epochs."
    )


class Stop(Model):
    """Conditions that end trials or the sweep early."""

    early_stopping: EarlyStopping | None = Field(None, description="Stop trials that are worse than others.")
    target: float | None = Field(None, description="The sweep ends when the objective reaches this value.")
    after_seconds: Count | None = Field(None, description="The sweep ends this long after it began.")


class SweepRunPolicy(Model):
    """Suspension and deletion of the sweep."""

    suspend: bool | None = Field(None, description="Suspend the running trials and start no others.")
    ttl_seconds_after_finished: NonNegative | None = Field(
        None, description="Time from the end of the sweep to its deletion, with its trials' jobs."
    )


class SweepSpec(Model):
    """Desired state of the sweep: an objective, parameters to search, and the job of a trial."""

    objective: Objective = Field(description="The metric that the trials are compared by.")
    algorithm: Algorithm = Field(description="The algorithm that proposes the parameters of trials.")
    parameters: Annotated[list[Parameter], Field(min_length=1, max_length=MOST_PARAMETERS)] = Field(
        description="The fields of the job to search."
    )
    trials: Trials | None = Field(None, description="Limits on the number of trials.")
    stop: Stop | None = Field(None, description="Conditions that end trials or the sweep early.")
    job: JsonObject = Field(description="The spec of an MPTrainingJob; the parameters are set in it.")
    run_policy: SweepRunPolicy | None = Field(None, description="Suspension and deletion of the sweep.")


class SweepMetadata(Metadata):
    """The fields of Kubernetes' ObjectMeta that a sweep needs; others are ignored."""

    generation: int | None = None
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None


class MPTrainingSweep(Model):
    """One resource: apiVersion, kind, metadata, spec. The status is a value of its own (`status.SweepStatus`)."""

    api_version: ApiVersion = API_VERSION
    kind: Literal["MPTrainingSweep"] = SWEEP_KIND
    metadata: SweepMetadata
    spec: SweepSpec

    @classmethod
    def parse_document(cls, document: Mapping[str, Any]) -> Self:
        """Parse a document, with or without its status. Raises InvalidSpec with the first invalid field."""
        return cls.parse({key: value for key, value in document.items() if key != "status"})
