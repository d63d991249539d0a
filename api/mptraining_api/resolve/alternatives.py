"""Alternatives of a job's accelerator, each resolved as if it were the first choice, with the same global batch size.

A checkpoint is of one Keras generation, so that all machines of a job use the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from mptraining_api.problems import InvalidSpec
from mptraining_api.resolve.attempt import divisors, possible_workers
from mptraining_api.resolve.devices import Devices
from mptraining_api.resolve.precision import POLICY, Keras, keras_generation
from mptraining_api.resolved_job import Choice, ResolvedJob, ResolvedMachine
from mptraining_api.spec import Accelerator, BatchSize, JobSpec, Machine, MPTrainingJob, Training

FIELD = "spec.accelerator.alternatives"
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Alternative:
    """One alternative; `job` is the job with this machine as its first choice and with no alternatives."""

    index: int
    job: MPTrainingJob
    # That of the first choice; None for a program without one.
    batch_size: int | None

    @property
    def field(self) -> str:
        return f"{FIELD}[{self.index}]"


def describe(machine: Machine) -> str:
    """Return the machine in the words of the spec."""
    count = f" x {machine.count_per_worker}" if machine.count_per_worker else ""
    shape = f" {machine.topology}" if machine.topology else ""
    return f"{machine.type}{shape}{count} ({machine.provisioning or 'OnDemand'})"


def jobs(job: MPTrainingJob, batch_size: int | None) -> tuple[Alternative, ...]:
    """Return the alternatives of a job whose global batch size is `batch_size`."""
    return tuple(
        Alternative(index, _job_on(job, Accelerator(**dict(machine)), batch_size), batch_size)
        for index, machine in enumerate(job.spec.accelerator.alternatives or ())
    )


def _job_on(job: MPTrainingJob, accelerator: Accelerator, batch_size: int | None) -> MPTrainingJob:
    update: dict[str, object] = {"accelerator": accelerator}
    if batch_size is not None:
        size = {"batch_size": BatchSize(global_=batch_size)}
        update["training"] = (job.spec.training or Training()).model_copy(update=size)
    return job.model_copy(update={"spec": job.spec.model_copy(update=update)})


def located(alternative: Alternative, function: Callable[..., T], *arguments: object) -> T:
    """Return `function(*arguments)`. Raises its InvalidSpec with the field of the alternative."""
    try:
        return function(*arguments)
    except InvalidSpec as problem:
        raise relocated(alternative, problem) from None


def relocated(alternative: Alternative, problem: InvalidSpec) -> InvalidSpec:
    """Return the problem of the alternative's job with a field of the job that the user wrote."""
    where, mistake, step = problem.where, problem.found, problem.next_step
    if where.startswith("spec.accelerator."):
        where = f"{alternative.field}.{where.removeprefix('spec.accelerator.')}"
    elif where == POLICY:
        # The policy is that of all machines, so that the next step must not suit this one alone.
        step = f"Write policy: Auto, which chooses for each machine, or remove {alternative.field}."
    else:
        where, mistake = f"{alternative.field}.type", f"{alternative.job.spec.accelerator.type}: {where}: {mistake}"
    return InvalidSpec(where, mistake, expected=problem.expected, next_step=step)


def check_replicas(alternative: Alternative, first: Devices, there: Devices) -> None:
    """Raise InvalidSpec if the alternative cannot compute the batches of the first choice."""
    size, program = alternative.batch_size, alternative.job.spec.program
    if size is not None and size % there.replicas:
        common = math.lcm(first.replicas, there.replicas)
        above = -(-size // common) * common
        raise InvalidSpec(
            f"{alternative.field}.countPerWorker",
            f"the global batch size {size} cannot be shared evenly by {_replicas(there.replicas)}",
            expected=f"a number of replicas that divides {size}, as the first choice's {first.replicas}",
            next_step=f"Write training.batchSize: {{global: {above}}}, which suits both, or another countPerWorker.",
        )
    if program.script is not None and there.replicas != first.replicas:
        raise InvalidSpec(
            f"{alternative.field}.countPerWorker",
            f"{_replicas(there.replicas)} for a script, which makes its own batches",
            expected=f"{first.replicas}, as the first choice has",
            next_step="Choose machines with the same number of accelerators, or write the program as a function.",
        )


def _replicas(count: int) -> str:
    return f"{count} replica" if count == 1 else f"{count} replicas"


def one_keras_generation(
    spec: JobSpec, requested: Devices, others: Sequence[tuple[Alternative, Devices]]
) -> tuple[Keras, Choice]:
    """Return the Keras generation of all machines: Legacy if one of them needs it. Raises InvalidSpec."""
    keras, choice = keras_generation(spec, requested)
    for alternative, devices in others:
        needed, _ = located(alternative, keras_generation, alternative.job.spec, devices)
        if needed != keras and spec.keras in (None, "Auto"):
            because = (
                f"{alternative.job.spec.accelerator.type} of {alternative.field} works with it only, "
                "and a checkpoint is of one generation"
            )
            return "Legacy", Choice(field="spec.keras", value="Legacy", because=because)
    return keras, choice


def check_sizes(job: ResolvedJob, others: Sequence[ResolvedMachine]) -> None:
    """Raise InvalidSpec unless an elastic job may have the same numbers of workers on all of its machines."""
    if job.workers_range is None:
        return
    for index, other in enumerate(others):
        sizes = divisors(job.workers_range.min, job.workers_range.max, other.replicas_per_worker, job.global_batch_size)
        if sizes != possible_workers(job):
            raise InvalidSpec(
                f"{FIELD}[{index}].countPerWorker",
                f"{other.replicas_per_worker} replicas a worker share the batch of {job.global_batch_size} evenly "
                f"on {_words(sizes)} workers, and the first choice on {_words(possible_workers(job))}",
                expected="the same numbers of workers for all machines of an elastic job",
                next_step="Take machines with the same countPerWorker, or change batchSize.global.",
            )


def _words(sizes: Sequence[int]) -> str:
    return ", ".join(map(str, sizes)) or "no"
