"""Jobs for accelerators on a machine that has none."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mptraining_api.problems import InvalidSpec
from mptraining_api.resolve.resolve import ClusterSettings
from tests.unit.api.resolve.resolved_jobs import NO_ACCELERATORS, SCRIPT, choice, resolved


@given(
    accelerator=st.sampled_from(
        [
            ("l4", {"countPerWorker": 1}),
            ("l4", {"countPerWorker": 8}),
            ("a100", {"countPerWorker": 16, "provisioning": "Spot"}),
            ("v5e", {"topology": "2x4"}),
            ("v3", {"topology": "2x2"}),
        ]
    ),
    workers=st.integers(1, 8),
    per_replica=st.integers(1, 512),
)
def test_fallback_keeps_the_global_batch_size(
    accelerator: tuple[str, dict[str, Any]], workers: int, per_replica: int
) -> None:
    type, written = accelerator
    tpu = "topology" in written
    spec: dict[str, Any] = {"training": {"batchSize": {"perReplica": per_replica}}} | (
        {} if tpu else {"workers": workers}
    )
    asked = resolved(type, accelerator=written, **spec)
    job = resolved(type, accelerator=written, settings=NO_ACCELERATORS, **spec)
    assert job.global_batch_size is not None
    assert job.global_batch_size == asked.global_batch_size
    assert job.global_batch_size % job.replicas == 0
    assert job.learning_rate == asked.learning_rate
    assert job.keras == asked.keras
    hosts = 1 if tpu else workers
    devices = 1 if hosts > 1 or asked.replicas == 1 or job.global_batch_size % 2 else 2
    assert (job.workers, job.replicas_per_worker) == (hosts, devices)
    assert (job.accelerator.kind, job.accelerator.asked_for) == ("cpu", type)
    assert (job.placement.node_selector, job.placement.resources, job.placement.tolerations) == ({}, {}, ())
    assert (job.precision.policy, job.jit_compile) == ("float32", "Never")
    assert "FellBackToCPU" in choice(job, "spec.accelerator.type").because


@pytest.mark.parametrize(
    ("count", "workers", "batch", "there", "here"),
    [
        (1, 1, {"global": 64}, "64 on one replica", "64 on one replica"),
        (4, 1, {"global": 64}, "16 for each of 4 replicas", "32 for each of 2 replicas"),
        (4, 2, {"global": 64}, "8 for each of 8 replicas", "32 for each of 2 replicas"),
        (1, 1, {"perReplica": 16}, "16 on one replica", "16 on one replica"),
        (4, 1, None, "32 (Keras' default) for each of 4 replicas",
         "64 for each of 2 replicas here; asked for: 32 (Keras' default) for each of 4 replicas"),
        (2, 1, {"perReplica": 16}, "16 for each of 2 replicas", "16 for each of 2 replicas"),
        (2, 1, {"global": 64}, "32 for each of 2 replicas", "32 for each of 2 replicas"),
    ],
)  # fmt: skip
def test_the_batch_is_that_of_the_replicas_that_will_run(
    count: int, workers: int, batch: dict[str, int] | None, there: str, here: str
) -> None:
    spec: dict[str, Any] = {"workers": workers} | ({"training": {"batchSize": batch}} if batch else {})
    for settings, because in ((ClusterSettings(), there), (NO_ACCELERATORS, here)):
        job = resolved("t4", accelerator={"countPerWorker": count}, settings=settings, **spec)
        told = choice(job, "spec.training.batchSize")
        assert (told.because, told.value) == (because, f"global {job.global_batch_size}")


def test_fallback_keeps_what_was_asked_for() -> None:
    assert resolved("cpu", settings=NO_ACCELERATORS) == resolved("cpu")
    job = resolved(settings=NO_ACCELERATORS, precision={"policy": "mixed_float16"}, jitCompile="Always")
    assert (job.precision.policy, job.jit_compile) == ("mixed_float16", "Always")


def test_fallback_does_not_give_a_keras_3_script_two_replicas_in_float16() -> None:
    job = resolved("l4", settings=NO_ACCELERATORS, program=SCRIPT, precision={"policy": "mixed_float16"})
    assert (job.replicas, job.precision.policy) == (1, "mixed_float16")
    four = {"countPerWorker": 4}
    assert resolved("l4", settings=NO_ACCELERATORS, program=SCRIPT, accelerator=four).replicas == 2


def test_fallback_accepts_nothing_that_a_cluster_refuses() -> None:
    with pytest.raises(InvalidSpec, match=r"mixed_bfloat16"):
        resolved(settings=NO_ACCELERATORS, precision={"policy": "mixed_bfloat16"})
    with pytest.raises(InvalidSpec, match=r"spec\.strategy"):
        resolved(settings=NO_ACCELERATORS, strategy="None", workers=2)
