"""Choices that follow from accelerator and program, with their reasons; placement on workers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mptraining_api.problems import InvalidSpec
from mptraining_api.resolve.resolve import ClusterSettings
from mptraining_api.resolved_job import ResolvedJob
from tests.unit.api.resolve.resolved_jobs import NO_ACCELERATORS, SCRIPT, choice, resolved


@pytest.mark.parametrize(
    ("type", "accelerator", "workers", "expected"),
    [
        ("cpu", {}, 1, ("None", "float32", "Never", "Keras3", 1)),
        ("cpu", {"countPerWorker": 2}, 1, ("Mirrored", "float32", "Never", "Keras3", 2)),
        ("cpu", {}, 3, ("MultiWorkerMirrored", "float32", "Never", "Keras3", 3)),
        ("v100", {}, 1, ("None", "mixed_float16", "WherePossible", "Keras3", 1)),
        ("t4", {"countPerWorker": 4}, 2, ("MultiWorkerMirrored", "mixed_float16", "WherePossible", "Keras3",
         8)),
        ("l4", {"countPerWorker": 2}, 1, ("Mirrored", "mixed_float16", "WherePossible", "Keras3", 2)),
        ("a100", {"countPerWorker": 16}, 1, ("Mirrored", "mixed_float16", "WherePossible", "Keras3", 16)),
        ("h100-mega", {}, 1, ("Mirrored", "mixed_float16", "WherePossible", "Keras3", 8)),
        ("v5e", {"topology": "2x4"}, None, ("TPU", "mixed_bfloat16", "WherePossible", "Legacy", 8)),
        ("v4", {"topology": "2x2x1"}, None, ("TPU", "mixed_bfloat16", "WherePossible", "Legacy", 4)),
        # A v3 chip has two cores, and TPUStrategy creates a replica for each.
        ("v3", {"topology": "2x2"}, None, ("TPU", "mixed_bfloat16", "WherePossible", "Legacy", 8)),
    ],
)  # fmt: skip
def test_choices_that_follow_from_the_accelerator(
    type: str, accelerator: dict[str, Any], workers: int | None, expected: tuple[Any, ...]
) -> None:
    spec: dict[str, Any] = {} if workers is None else {"workers": workers}
    job = resolved(type, accelerator=accelerator, **spec)
    assert (job.strategy, job.precision.policy, job.jit_compile, job.keras, job.replicas) == expected
    assert job.replicas == job.workers * job.replicas_per_worker


@pytest.mark.parametrize(
    ("by", "expected"),
    [
        ("mptraining.dev/operator", None),
        ("mptraining.dev/operater", "a controller of that name has the job, and this operator leaves it alone. "
         "Did you mean 'mptraining.dev/operator'?"),
    ],
)  # fmt: skip
def test_a_job_of_another_controller_says_so(by: str, expected: str | None) -> None:
    found = resolved(managedBy=by, scheduling={"queueName": "gpus"}).choices
    said = {each.field: each.because for each in found if each.field == "spec.managedBy"}
    assert said == ({} if expected is None else {"spec.managedBy": expected})


def test_xla_follows_the_policy_on_a_gpu() -> None:
    assert resolved(precision={"policy": "float32"}).jit_compile == "Never"
    assert resolved(jitCompile="Never").jit_compile == "Never"
    assert resolved("cpu", jitCompile="Always").jit_compile == "Always"


@pytest.mark.parametrize(
    ("type", "accelerator", "written", "expected", "because"),
    [
        ("t4", {}, "Auto", False, "may double the time of a step; Always makes"),
        ("t4", {}, "Always", True, "asked for"),
        ("cpu", {}, None, False, "same bits each time on a CPU without it"),
        ("cpu", {}, "Never", False, "asked for"),
        ("v5e", {"topology": "2x4", "countPerWorker": 8}, None, False, "about GPUs"),
    ],
)
def test_operations_are_deterministic_on_request(
    type: str, accelerator: dict[str, Any], written: str | None, expected: bool, because: str
) -> None:
    job = resolved(type, accelerator=accelerator, training={} if written is None else {"deterministic": written})
    assert job.training.deterministic is expected
    made = choice(job, "spec.training.deterministic")
    assert made.value == ("Always" if expected else "Never")
    assert because in made.because


def test_a_mixed_policy_on_a_cpu_is_kept_and_called_slow() -> None:
    job = resolved("cpu", precision={"policy": "mixed_float16"})
    assert job.precision.policy == "mixed_float16"
    assert "slow" in choice(job, "spec.precision.policy").because


def test_a_script_has_no_data_no_training_and_no_batch() -> None:
    job = resolved("l4", program=SCRIPT)
    assert (job.data, job.training, job.global_batch_size, job.per_replica_batch_size) == (None, None, None, None)
    assert job.learning_rate.factor == 1.0


@pytest.mark.parametrize(
    ("type", "count", "workers", "keras", "policy", "generation"),
    [
        ("t4", 1, 1, "Auto", "mixed_float16", "Keras3"),
        ("t4", 2, 1, "Auto", "float32", "Keras3"),
        ("l4", 2, 1, "Auto", "mixed_bfloat16", "Keras3"),
        ("l4", 2, 1, "Legacy", "mixed_float16", "Legacy"),
        ("l4", 1, 2, "Auto", "mixed_float16", "Legacy"),
    ],
)
def test_a_keras_3_script_with_several_replicas_gets_no_float16(
    type: str, count: int, workers: int, keras: str, policy: str, generation: str
) -> None:
    job = resolved(type, accelerator={"countPerWorker": count}, workers=workers, keras=keras, program=SCRIPT)
    assert (job.precision.policy, job.keras) == (policy, generation)


def test_a_script_may_make_its_own_strategy_on_several_workers() -> None:
    job = resolved("l4", workers=2, strategy="None", program=SCRIPT)
    assert (job.strategy, job.workers, job.keras) == ("None", 2, "Legacy")


def test_several_tpu_hosts_are_refused_with_or_without_accelerators() -> None:
    for settings in (ClusterSettings(), NO_ACCELERATORS):
        with pytest.raises(
            InvalidSpec, match="4x4 with 4 chips per worker spans 4 machines, on which TensorFlow cannot"
        ):
            resolved("v5e", accelerator={"topology": "4x4"}, settings=settings)


def test_a_script_on_one_device_has_no_strategy_there_or_on_the_cpu() -> None:
    for settings in (ClusterSettings(), NO_ACCELERATORS):
        job = resolved("l4", settings=settings, program=SCRIPT)
        assert (job.strategy, job.replicas, job.workers) == ("None", 1, 1)
        because = next(each.because for each in job.choices if each.field == "spec.strategy")
        assert because == "one device"
    assert resolved("l4", program=SCRIPT, accelerator={"countPerWorker": 4}).strategy == "Mirrored"
    assert resolved("l4", program=SCRIPT, workers=2).strategy == "MultiWorkerMirrored"
    assert resolved("l4").strategy == "None"


def test_a_resolved_job_survives_its_file() -> None:
    job = resolved(accelerator={"countPerWorker": 4, "provisioning": "Spot"}, workers=2)
    assert ResolvedJob.read(job.to_json()) == job
    newer = json.loads(job.to_json()) | {"fieldOfANewerVersion": 1}
    assert ResolvedJob.read(json.dumps(newer)) == job


def test_a_form_that_tf_keras_lacks_is_refused_before_the_training() -> None:
    assert resolved("l4", export={"format": "onnx"}).export.format == "onnx"
    for generation in ({"keras": "Legacy"}, {"keras": "Auto", "workers": 2, "program": SCRIPT}):
        with pytest.raises(InvalidSpec, match=r"spec\.export\.format: 'litert' with tf_keras"):
            resolved("l4", export={"format": "litert"}, **generation)
    assert resolved("l4", export={"format": "saved_model"}, keras="Legacy").export.format == "saved_model"
