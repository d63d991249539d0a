"""The job of one attempt, from the frozen job: the machine it runs on and the number of its workers.

The frozen job never changes and has every machine that the job may run on; each attempt runs on one of them.
"""

from __future__ import annotations

from mptraining_api.accelerators import PROVISIONING, TYPE
from mptraining_api.resolve.precision import POLICY
from mptraining_api.resolved_job import Choice, ResolvedAccelerator, ResolvedJob, ResolvedMachine, Strategy
from mptraining_api.status import Decision

WORKERS = "spec.elastic"
BATCH_SIZE = "spec.training.batchSize"


def for_attempt(job: ResolvedJob, *, machine: int = 0, workers: int | None = None) -> ResolvedJob:
    """Return what the trainer of one attempt reads.

    `machine` is 0 for the first choice and k for the k-th alternative; `workers` is the number of workers of an elastic
    job, by default the most. Global batch size, learning rate and the order of the records are those of the frozen job.
    The job of an attempt is its own for machine 0. Raises ValueError for a machine or a size that the job cannot have.
    """
    if machine:
        if not 0 < machine <= len(job.alternatives):
            raise ValueError(f"machine {machine} of a job with {len(job.alternatives)} alternatives")
        chosen = job.alternatives[machine - 1]
        job = job.model_copy(update={name: getattr(chosen, name) for name in ResolvedMachine.model_fields})
    if workers is not None and workers != job.workers:
        job = _of_workers(job, workers)
    if not job.alternatives and job.workers_range is None:
        return job
    return job.model_copy(update={"alternatives": (), "workers_range": None})


def decisions(job: ResolvedJob, *, machine: int = 0, workers: int | None = None) -> list[Decision]:
    """Return the decisions about one attempt, as for `for_attempt`, each with its reason."""
    attempt = for_attempt(job, machine=machine, workers=workers)
    because = {choice.field: choice.because for choice in (*job.choices, *attempt.choices)}
    if attempt.replicas != job.replicas:
        because[BATCH_SIZE] = "the same for every machine and number of workers"
    alternative = f"spec.accelerator.alternatives[{machine - 1}]" if machine else None
    resized = attempt.strategy != for_attempt(job, machine=machine).strategy
    accelerator, batch_size = attempt.accelerator, attempt.global_batch_size
    reasons = {
        "image": (attempt.image, because.get("spec.podTemplate.image")),
        "machine": (_described(accelerator), because.get(TYPE) or alternative or because.get(PROVISIONING)),
        "strategy": (attempt.strategy, because.get(WORKERS if resized else "spec.strategy")),
        "precision": (attempt.precision.policy, because.get(POLICY)),
        "batchSize": (batch_size and str(batch_size), because.get(BATCH_SIZE)),
    }
    return [
        Decision.model_validate({"decision": name, "value": value, "reason": reason or "given in the job"})
        for name, (value, reason) in reasons.items()
        if value
    ]


def _described(accelerator: ResolvedAccelerator) -> str:
    shape = accelerator.topology or f"x {accelerator.count_per_worker}"
    return f"{accelerator.type} {shape}" + ("" if accelerator.kind == "cpu" else f" ({accelerator.provisioning})")


def machines(job: ResolvedJob) -> tuple[ResolvedJob, ...]:
    """Return the job of an attempt on each machine, the first choice first."""
    return tuple(for_attempt(job, machine=index) for index in range(len(job.alternatives) + 1))


def possible_workers(job: ResolvedJob) -> tuple[int, ...]:
    """Return the numbers of workers that an attempt may have, in ascending order.

    An elastic job skips those whose replicas do not divide the global batch size evenly.
    """
    if job.workers_range is None:
        return (job.workers,)
    return divisors(job.workers_range.min, job.workers_range.max, job.replicas_per_worker, job.global_batch_size)


def divisors(least: int, most: int, replicas: int, batch_size: int | None) -> tuple[int, ...]:
    """Return the numbers of workers with `replicas` each, from `least` to `most`, that share a batch evenly."""
    sizes = range(least, most + 1)
    return tuple(size for size in sizes if batch_size is None or batch_size % (size * replicas) == 0)


def _of_workers(job: ResolvedJob, workers: int) -> ResolvedJob:
    if workers not in possible_workers(job):
        raise ValueError(f"{workers} workers of a job that may have {possible_workers(job)}")
    replicas = workers * job.replicas_per_worker
    strategy: Strategy = job.strategy
    if strategy != "TPU" and job.program.is_trained_here:
        strategy = "MultiWorkerMirrored" if workers > 1 else "Mirrored" if replicas > 1 else "None"
    chosen = Choice(field=WORKERS, value=str(workers), because="the machines that this attempt got")
    return job.model_copy(
        update={"workers": workers, "replicas": replicas, "strategy": strategy, "choices": (*job.choices, chosen)}
    )
