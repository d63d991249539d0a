"""The job of one attempt, from the frozen job with all its machines."""

from __future__ import annotations

from typing import Any

import pytest

from mptraining_api.problems import InvalidSpec
from mptraining_api.resolve.attempt import decisions, for_attempt, machines, possible_workers
from mptraining_api.resolved_job import ResolvedJob
from tests.unit.api.resolve.resolved_jobs import NO_ACCELERATORS, choice, resolved

A100_THEN_OTHERS = {
    "countPerWorker": 2,
    "provisioning": "Spot",
    "alternatives": [
        {"type": "t4", "countPerWorker": 4},
        {"type": "v5e", "topology": "2x2"},
    ],
}


def frozen() -> ResolvedJob:
    return resolved(
        "a100",
        accelerator=A100_THEN_OTHERS,
        training={
            "batchSize": {"perReplica": 64},
            "learningRateScaling": {"rule": "Linear", "baseBatchSize": 64, "warmupSteps": 10},
        },
    )


def test_each_machine_has_its_own_devices_strategy_policy_and_placement() -> None:
    table = [
        (
            machine.accelerator.type, machine.strategy, machine.precision.policy, machine.replicas,
            machine.per_replica_batch_size,
            machine.accelerator.provisioning, machine.placement.resources,
        )
        for machine in machines(frozen())
    ]  # fmt: skip
    assert table == [
        ("a100", "Mirrored", "mixed_float16", 2, 64, "Spot", {"nvidia.com/gpu": 2}),
        ("t4", "Mirrored", "mixed_float16", 4, 32, "OnDemand", {"nvidia.com/gpu": 4}),
        ("v5e", "TPU", "mixed_bfloat16", 4, 32, "OnDemand", {"google.com/tpu": 4}),
    ]


def test_the_decisions_of_an_attempt_have_the_reasons_of_its_machine() -> None:
    first, second = (
        {decision.decision: decision for decision in decisions(frozen(), machine=machine)} for machine in (0, 1)
    )
    assert list(first) == ["machine", "strategy", "precision", "batchSize"], "no image is known here"
    assert [(each.value, each.reason) for each in (first["machine"], second["machine"])] == [
        ("a100 x 2 (Spot)", "given in the job"),
        ("t4 x 4 (OnDemand)", "spec.accelerator.alternatives[0]"),
    ]
    assert first["batchSize"].reason == "64 for each of 2 replicas"
    assert second["batchSize"].reason == "the same for every machine and number of workers"
    (one,) = [decision for decision in decisions(elastic(4, 24), workers=1) if decision.decision == "strategy"]
    assert one.reason == "the machines that this attempt got"


def test_batch_size_learning_rate_and_everything_else_are_those_of_the_first_choice() -> None:
    first, *others = machines(frozen())
    assert (first.global_batch_size, first.learning_rate.factor) == (128, 2.0)
    own = {
        "accelerator", "strategy", "precision", "jit_compile", "workers", "replicas_per_worker", "replicas", "image",
        "placement", "choices",
    }  # fmt: skip
    for other in others:
        changed = {name for name in ResolvedJob.model_fields if getattr(other, name) != getattr(first, name)}
        assert changed <= own


def test_a_checkpoint_is_of_one_keras_so_that_all_machines_use_the_one_that_the_tpu_needs() -> None:
    assert {machine.keras for machine in machines(frozen())} == {"Legacy"}
    assert choice(frozen(), "spec.keras").because == (
        "v5e of spec.accelerator.alternatives[1] works with it only, and a checkpoint is of one generation"
    )


def test_the_job_of_an_attempt_has_no_alternatives_and_is_its_own() -> None:
    attempt = for_attempt(frozen(), machine=1)
    assert (attempt.alternatives, for_attempt(attempt)) == ((), attempt)
    assert ResolvedJob.read(frozen().to_json()) == frozen(), "the frozen text keeps every machine"
    job = resolved()
    assert for_attempt(job) is job
    with pytest.raises(ValueError, match="machine 3 of a job with 2 alternatives"):
        for_attempt(frozen(), machine=3)


def test_a_cluster_without_accelerators_has_none_of_the_alternatives() -> None:
    job = resolved("a100", accelerator={"alternatives": [{"type": "l4"}]}, settings=NO_ACCELERATORS)
    assert (job.accelerator.asked_for, job.alternatives) == ("a100", ())


def elastic(high: int = 4, size: int = 24, **accelerator: Any) -> ResolvedJob:
    machine = {"countPerWorker": 2} | accelerator
    batch = {"batchSize": {"global": size}}
    return resolved("l4", accelerator=machine, elastic={"min": 1, "max": high}, training=batch)


def test_an_elastic_job_is_frozen_with_the_most_workers() -> None:
    job = elastic()
    assert (job.workers, job.replicas, job.strategy, job.global_batch_size) == (4, 8, "MultiWorkerMirrored", 24)
    assert for_attempt(job).workers_range is None


@pytest.mark.parametrize(
    ("workers", "expected"),
    [(1, ("Mirrored", 2, 12)), (2, ("MultiWorkerMirrored", 4, 6)), (4, ("MultiWorkerMirrored", 8, 3))],
)
def test_the_global_batch_is_shared_by_the_workers_of_the_attempt(workers: int, expected: tuple[str, int, int]) -> None:
    job = for_attempt(elastic(), workers=workers)
    assert (job.strategy, job.replicas, job.per_replica_batch_size) == expected
    assert (job.global_batch_size, job.learning_rate) == (24, elastic().learning_rate)


def test_only_sizes_that_divide_the_global_batch_are_possible() -> None:
    assert possible_workers(elastic(4, 24)) == (1, 2, 3, 4)
    assert possible_workers(elastic(4, 16)) == (1, 2, 4)
    with pytest.raises(ValueError, match="3 workers"):
        for_attempt(elastic(4, 16), workers=3)
    found = choice(elastic(8, 64, countPerWorker=1), "spec.elastic")
    assert found.value == "1, 2, 4, 8"
    assert "share 64 examples evenly" in found.because


def test_an_elastic_job_with_alternatives_changes_both() -> None:
    job = elastic(2, 64, countPerWorker=4, alternatives=[{"type": "t4", "countPerWorker": 2}])
    attempt = for_attempt(job, machine=1, workers=1)
    assert (attempt.accelerator.type, attempt.workers, attempt.replicas) == ("t4", 1, 2)


def test_the_machines_of_an_elastic_job_have_the_same_sizes() -> None:
    def with_other(count: int) -> ResolvedJob:
        return elastic(5, 20, countPerWorker=1, alternatives=[{"type": "l4", "countPerWorker": count}])

    assert possible_workers(with_other(1)) == (1, 2, 4, 5)
    with pytest.raises(InvalidSpec, match=r"alternatives\[0\].countPerWorker: .* on 1, 5 workers, .* on 1, 2, 4, 5"):
        with_other(4)
