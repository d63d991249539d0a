"""Every default, and its reason."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mptraining_api.problems import InvalidSpec
from mptraining_api.resolve.resolve import ClusterSettings, resolve
from mptraining_api.resolved_job import Choice, ResolvedData, ResolvedJob
from mptraining_api.spec import MPTrainingJob

CLUSTER = ClusterSettings()
NO_ACCELERATORS = ClusterSettings(cpu_fallback=True)
APPLICATION = {"application": {"name": "ResNet50", "classes": 5}}
FUNCTION = {"function": {"entryPoint": "flowers:build"}}
SCRIPT = {"script": {"path": "train.py"}}
DATA = {"train": ["gs://bucket/train-*.tfrecord"]}


def resolved(
    type: str = "nvidia-tesla-t4",
    *,
    settings: ClusterSettings = CLUSTER,
    accelerator: dict[str, Any] | None = None,
    program: dict[str, Any] = APPLICATION,
    **spec: Any,
) -> ResolvedJob:
    document = {"accelerator": {"type": type} | (accelerator or {}), "program": program} | spec
    if program is not SCRIPT:
        document.setdefault("data", DATA)
    return resolve(MPTrainingJob.parse({"metadata": {"name": "flowers"}, "spec": document}), settings)


def choice(job: ResolvedJob, field: str) -> Choice:
    (found,) = [choice for choice in job.choices if choice.field == field]
    return found


# Strategy, precision, XLA and Keras follow from the accelerator.


@pytest.mark.parametrize(
    ("type", "accelerator", "nodes", "expected"),
    [
        ("cpu", {}, 1, ("Mirrored", "float32", "Never", "Keras3", 1)),
        ("cpu", {"countPerNode": 2}, 1, ("Mirrored", "float32", "Never", "Keras3", 2)),
        ("cpu", {}, 3, ("MultiWorkerMirrored", "float32", "Never", "Keras3", 3)),
        ("nvidia-tesla-v100", {}, 1, ("Mirrored", "mixed_float16", "WherePossible", "Keras3", 1)),
        (
            "nvidia-tesla-t4",
            {"countPerNode": 4},
            2,
            ("MultiWorkerMirrored", "mixed_float16", "WherePossible", "Keras3", 8),
        ),
        ("nvidia-l4", {"countPerNode": 2}, 1, ("Mirrored", "mixed_float16", "WherePossible", "Keras3", 2)),
        (
            "nvidia-tesla-a100",
            {"countPerNode": 16},
            1,
            ("Mirrored", "mixed_float16", "WherePossible", "Keras3", 16),
        ),
        ("nvidia-h100-mega-80gb", {}, 1, ("Mirrored", "mixed_float16", "WherePossible", "Keras3", 8)),
        (
            "tpu-v5-lite-podslice",
            {"topology": "2x4"},
            None,
            ("TPU", "mixed_bfloat16", "WherePossible", "Legacy", 8),
        ),
        (
            "tpu-v4-podslice",
            {"topology": "2x2x1"},
            None,
            ("TPU", "mixed_bfloat16", "WherePossible", "Legacy", 4),
        ),
        # A v3 chip has two cores, and TPUStrategy creates a replica for each.
        ("tpu-v3-device", {"topology": "2x2"}, None, ("TPU", "mixed_bfloat16", "WherePossible", "Legacy", 8)),
    ],
)
def test_choices_that_follow_from_the_accelerator(
    type: str, accelerator: dict[str, Any], nodes: int | None, expected: tuple[Any, ...]
) -> None:
    spec: dict[str, Any] = {} if nodes is None else {"nodes": nodes}
    job = resolved(type, accelerator=accelerator, **spec)
    assert (job.strategy, job.precision.policy, job.jit_compile, job.keras, job.replicas) == expected
    assert job.replicas == job.processes * job.replicas_per_process


def test_every_field_of_a_choice_is_in_plain_words() -> None:
    for made in resolved().choices:
        assert made.field.startswith("spec.")
        assert made.value
        assert made.because


def test_dynamic_loss_scaling_begins_where_keras_begins() -> None:
    precision = resolved().precision
    assert (precision.loss_scale_mode, precision.loss_scale) == ("Dynamic", 32768.0)
    fixed = resolved(precision={"lossScale": {"mode": "Fixed", "value": 512}}).precision
    assert (fixed.loss_scale_mode, fixed.loss_scale) == ("Fixed", 512.0)


def test_xla_follows_the_policy_on_a_gpu() -> None:
    assert resolved(precision={"policy": "float32"}).jit_compile == "Never"
    assert resolved(jitCompile="Never").jit_compile == "Never"
    assert resolved("cpu", jitCompile="Always").jit_compile == "Always"


@pytest.mark.parametrize(
    ("type", "accelerator", "written", "expected", "because"),
    [
        ("nvidia-tesla-t4", {}, "Auto", False, "may double the time of a step; Always makes"),
        ("nvidia-tesla-t4", {"countPerNode": 4}, None, False, "may double"),
        ("nvidia-tesla-t4", {}, "Always", True, "asked for"),
        ("nvidia-tesla-t4", {}, "Never", False, "asked for"),
        ("cpu", {}, None, False, "same bits each time on a CPU without it"),
        ("cpu", {}, "Always", True, "asked for"),
        ("tpu-v5-lite-podslice", {"topology": "2x4", "countPerNode": 8}, None, False, "about GPUs"),
    ],
)
def test_operations_are_deterministic_on_request(
    type: str, accelerator: dict[str, Any], written: str | None, expected: bool, because: str
) -> None:
    training = {} if written is None else {"deterministic": written}
    job = resolved(type, accelerator=accelerator, training=training)
    assert job.training is not None
    assert job.training.deterministic is expected
    made = choice(job, "spec.training.deterministic")
    assert made.value == ("Always" if expected else "Never")
    assert because in made.because


def test_a_mixed_policy_on_a_cpu_is_kept_and_called_slow() -> None:
    job = resolved("cpu", precision={"policy": "mixed_float16"})
    assert job.precision.policy == "mixed_float16"
    assert "slow" in choice(job, "spec.precision.policy").because


# Scripts.


def test_a_script_has_no_data_no_training_and_no_batch() -> None:
    job = resolved("nvidia-l4", program=SCRIPT)
    assert (job.data, job.training, job.global_batch_size, job.per_replica_batch_size) == (
        None,
        None,
        None,
        None,
    )
    assert job.learning_rate.factor == 1.0


@pytest.mark.parametrize(
    ("type", "count", "nodes", "keras", "policy", "generation"),
    [
        ("nvidia-tesla-t4", 1, 1, "Auto", "mixed_float16", "Keras3"),
        ("nvidia-tesla-t4", 2, 1, "Auto", "float32", "Keras3"),
        ("nvidia-l4", 2, 1, "Auto", "mixed_bfloat16", "Keras3"),
        ("nvidia-l4", 2, 1, "Legacy", "mixed_float16", "Legacy"),
        ("nvidia-l4", 1, 2, "Auto", "mixed_float16", "Legacy"),
    ],
)
def test_a_keras_3_script_with_several_replicas_gets_no_float16(
    type: str, count: int, nodes: int, keras: str, policy: str, generation: str
) -> None:
    job = resolved(type, accelerator={"countPerNode": count}, nodes=nodes, keras=keras, program=SCRIPT)
    assert (job.precision.policy, job.keras) == (policy, generation)


def test_a_script_may_make_its_own_strategy_on_several_nodes() -> None:
    job = resolved("nvidia-l4", nodes=2, strategy="None", program=SCRIPT)
    assert (job.strategy, job.processes, job.keras) == ("None", 2, "Legacy")


# Batches and learning rate.


@pytest.mark.parametrize(
    ("type", "accelerator", "size"),
    [("cpu", {}, 32), ("nvidia-l4", {}, 32), ("tpu-v6e-slice", {"topology": "2x2"}, 128)],
)
def test_the_default_batch_is_keras_own_or_fills_the_matrix_units(
    type: str, accelerator: dict[str, Any], size: int
) -> None:
    assert resolved(type, accelerator=accelerator).per_replica_batch_size == size


@given(count=st.sampled_from([1, 2, 4, 8]), nodes=st.integers(1, 16), total=st.integers(1, 4096))
def test_a_global_batch_is_shared_evenly_or_refused_with_the_nearest(count: int, nodes: int, total: int) -> None:
    replicas = count * nodes
    spec: dict[str, Any] = {"nodes": nodes, "training": {"batchSize": {"global": total}}}
    if total % replicas == 0:
        job = resolved("nvidia-l4", accelerator={"countPerNode": count}, **spec)
        assert job.global_batch_size == total
        assert job.per_replica_batch_size == total // replicas
        return
    with pytest.raises(InvalidSpec) as caught:
        resolved("nvidia-l4", accelerator={"countPerNode": count}, **spec)
    nearest = [int(word.strip(".")) for word in caught.value.next_step.split() if word.strip(".").isdecimal()]
    assert nearest
    assert all(size % replicas == 0 and abs(size - total) < replicas for size in nearest)


@pytest.mark.parametrize(
    ("rule", "accumulation", "factor"),
    [
        ("Linear", 1, 4.0),
        ("SquareRoot", 1, 2.0),
        ("Linear", 2, 8.0),
        ("SquareRoot", 4, 4.0),
        ("None", 1, 1.0),
    ],
)
def test_the_learning_rate_follows_the_examples_of_an_update(rule: str, accumulation: int, factor: float) -> None:
    scaling = {"rule": rule, "warmupSteps": 10} | ({"baseBatchSize": 64} if rule != "None" else {})
    training = {
        "batchSize": {"global": 256},
        "gradientAccumulationSteps": accumulation,
        "learningRateScaling": scaling,
    }
    job = resolved(training=training)
    assert math.isclose(job.learning_rate.factor, factor)
    assert job.learning_rate.warmup_steps == 10
    assert job.global_batch_size == 256, "accumulation is counted in the factor, not in the batch of a step"
    if accumulation > 1:
        assert "accumulated" in choice(job, "spec.training.learningRateScaling").because


# Training, data, output.


def test_an_application_is_a_classifier_trained_by_adam() -> None:
    training = resolved().training
    assert training is not None
    assert training.optimizer is not None
    assert training.loss is not None
    assert (training.optimizer.class_name, training.optimizer.config) == ("Adam", {"learning_rate": 0.001})
    assert (training.loss.class_name, training.loss.config) == (
        "SparseCategoricalCrossentropy",
        {"from_logits": True},
    )
    assert training.metrics
    assert training.metrics[0].class_name == "SparseCategoricalAccuracy"
    assert (training.epochs, training.total_steps, training.seed) == (1, None, 0)


def test_a_function_keeps_what_it_compiled_with() -> None:
    job = resolved(program=FUNCTION)
    assert job.training is not None
    assert job.data is not None
    assert (job.training.optimizer, job.training.loss, job.training.metrics) == (None, None, None)
    assert job.data.preprocess == "none"


def test_no_metrics_are_no_metrics() -> None:
    training = resolved(training={"metrics": []}).training
    assert training is not None
    assert training.metrics == ()


def test_total_steps_replace_epochs() -> None:
    training = resolved(training={"totalSteps": 50}).training
    assert training is not None
    assert (training.epochs, training.total_steps) == (None, 50)


def test_the_defaults_of_data() -> None:
    data = resolved().data
    assert data is not None
    assert (data.features, data.label, data.preprocess, data.validation) == (None, None, "auto", ())
    assert (data.bad_records, data.max_skipped, data.remainder, data.on_change) == (
        "Fail",
        0,
        "Drop",
        "Refuse",
    )
    unshuffled = resolved(data=DATA | {"shuffle": {"bufferSize": 0}}).data
    assert unshuffled is not None
    assert (unshuffled.shuffle, unshuffled.shuffle_buffer_size) == ("None", None)
    assert (data.shuffle, data.shuffle_buffer_size) == ("Windowed", None)


def test_a_job_of_an_older_version_has_only_the_size_of_its_shuffle_buffer() -> None:
    data = resolved().data
    assert data is not None
    older = json.loads(data.to_json()) | {"shuffleBufferSize": 10_000}
    del older["shuffle"]
    parsed = ResolvedData.read(json.dumps(older))
    assert (parsed.shuffle, parsed.shuffle_buffer_size) == ("Windowed", 10_000)


FEATURES = [{"name": name, "dtype": "float32"} for name in ("x", "y", "z", "w")]


@pytest.mark.parametrize(
    "written",
    [
        {"epochs": 7, "stepsPerEpoch": 20, "initialEpoch": 3, "validationFreq": 2, "classWeight": {"0": 2.0}},
        {"totalSteps": 50, "validationEverySteps": 10, "gradientAccumulationSteps": 4, "stepsPerExecution": 5},
        {"onNonFinite": "Fail", "seed": 11, "resume": "Never"},
        {
            "optimizer": {"className": "SGD", "config": {"learning_rate": 0.1}},
            "loss": {"className": "CategoricalCrossentropy"},
            "metrics": [{"className": "Recall"}],
        },
    ],
)
@pytest.mark.parametrize("program", [APPLICATION, FUNCTION])
def test_what_is_written_of_training_is_kept(program: dict[str, Any], written: dict[str, Any]) -> None:
    job = resolved(program=program, training=written, data=DATA | {"validation": ["gs://bucket/val"]})
    assert job.training is not None
    assert job.training.to_document().items() >= written.items()
    assert not [each for each in job.choices if each.field.removeprefix("spec.training.") in written]


@pytest.mark.parametrize(
    "written",
    [
        {"validation": ["gs://bucket/val"], "cache": "Disk", "remainder": "PadAndMask", "onChange": "Accept"},
        {"features": FEATURES, "label": "y", "sampleWeight": "w", "preprocess": "flowers:augment"},
        {"features": FEATURES, "labels": ["y", "z"]},
        {"labels": []},
    ],
)
def test_what_is_written_of_data_is_kept(written: dict[str, Any]) -> None:
    data = resolved(data=DATA | written).data
    assert data is not None
    assert data.to_document().items() >= written.items()


def test_what_is_written_of_records_checkpoints_export_and_profile_is_kept() -> None:
    own = {"badRecords": {"action": "Skip", "maxSkipped": 9}, "shuffle": {"bufferSize": 77}}
    job = resolved(
        data=DATA | own,
        checkpoint={"everySteps": 100, "maxToKeep": 5},
        export={"format": "saved_model", "checkpoint": "Best", "monitor": "loss"},
        profile={"firstStep": 20, "lastStep": 30},
    )
    assert job.data is not None
    assert (job.data.bad_records, job.data.max_skipped) == ("Skip", 9)
    assert (job.data.shuffle, job.data.shuffle_buffer_size) == ("Windowed", 77)
    assert (job.checkpoint.every_steps, job.checkpoint.max_to_keep) == (100, 5)
    assert (job.export.format, job.export.checkpoint, job.export.monitor) == ("saved_model", "Best", "loss")
    assert job.profile is not None
    assert (job.profile.first_step, job.profile.last_step) == (20, 30)


def test_the_rest() -> None:
    job = resolved()
    assert (job.checkpoint.every_steps, job.checkpoint.max_to_keep) == (None, 3)
    assert (job.export.format, job.export.checkpoint, job.export.monitor) == ("keras", "Last", None)
    assert job.program.application is not None
    assert job.program.application.weights == "none"
    assert (job.image, job.output, job.profile) == (None, None, None)


def test_a_cluster_may_give_image_and_output() -> None:
    settings = ClusterSettings(default_image="registry.example/trainer:1", default_output="gs://runs/")
    job = resolved(settings=settings)
    assert (job.image, job.output) == ("registry.example/trainer:1", "gs://runs/flowers")
    own = resolved(settings=settings, podTemplate={"image": "mine"}, output={"uri": "gs://b/r"})
    assert (own.image, own.output) == ("mine", "gs://b/r")


# Placement.


def test_a_gpu_on_spot() -> None:
    placement = resolved(accelerator={"countPerNode": 4, "provisioning": "Spot"}).placement
    assert placement.node_selector == {
        "cloud.google.com/gke-accelerator": "nvidia-tesla-t4",
        "cloud.google.com/gke-spot": "true",
    }
    assert placement.resources == {"nvidia.com/gpu": 4}
    assert [(t["key"], t["operator"]) for t in placement.tolerations] == [
        ("nvidia.com/gpu", "Exists"),
        ("cloud.google.com/gke-spot", "Equal"),
    ]


def test_a_tpu_is_chosen_by_type_and_topology() -> None:
    placement = resolved("tpu-v5-lite-podslice", accelerator={"topology": "2x4"}).placement
    assert placement.node_selector == {
        "cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice",
        "cloud.google.com/gke-tpu-topology": "2x4",
    }
    assert placement.resources == {"google.com/tpu": 8}


def test_a_cpu_runs_anywhere() -> None:
    placement = resolved("cpu").placement
    assert (placement.node_selector, placement.resources, placement.tolerations) == ({}, {}, ())


def test_several_tpu_hosts_need_the_setting() -> None:
    slice_ = {"topology": "4x4"}
    with pytest.raises(InvalidSpec, match="experimentalMultiHostTPU"):
        resolved("tpu-v5-lite-podslice", accelerator=slice_)
    settings = ClusterSettings(experimental_multi_host_tpu=True)
    job = resolved("tpu-v5-lite-podslice", accelerator=slice_, settings=settings)
    assert (job.strategy, job.processes, job.replicas) == ("TPU", 4, 16)
    with pytest.raises(InvalidSpec, match=r"spec\.nodes: 1, but 4x4 with 4 chips per node spans 4 hosts.*2x4"):
        resolved("tpu-v5-lite-podslice", accelerator=slice_, settings=settings, nodes=1)


# CPU fallback.


@given(
    accelerator=st.sampled_from(
        [
            ("nvidia-l4", {"countPerNode": 1}),
            ("nvidia-l4", {"countPerNode": 8}),
            ("nvidia-tesla-a100", {"countPerNode": 16, "provisioning": "Spot"}),
            ("tpu-v5-lite-podslice", {"topology": "4x4"}),
            ("tpu-v3-device", {"topology": "2x4"}),
        ]
    ),
    nodes=st.integers(1, 8),
    per_replica=st.integers(1, 512),
)
def test_fallback_keeps_the_global_batch_size(
    accelerator: tuple[str, dict[str, Any]], nodes: int, per_replica: int
) -> None:
    type, written = accelerator
    tpu = type.startswith("tpu-")
    spec: dict[str, Any] = {"training": {"batchSize": {"perReplica": per_replica}}} | ({} if tpu else {"nodes": nodes})
    asked = resolved(type, accelerator=written, settings=ClusterSettings(experimental_multi_host_tpu=True), **spec)
    job = resolved(type, accelerator=written, settings=NO_ACCELERATORS, **spec)
    assert job.global_batch_size is not None
    assert job.global_batch_size == asked.global_batch_size
    assert job.global_batch_size % job.replicas == 0
    assert job.learning_rate == asked.learning_rate
    assert job.keras == asked.keras
    hosts = 1 if tpu else nodes
    devices = 1 if hosts > 1 or job.global_batch_size % 2 else 2
    assert (job.processes, job.replicas_per_process) == (hosts, devices)
    assert (job.accelerator.kind, job.accelerator.asked_for) == ("cpu", type)
    assert (job.placement.node_selector, job.placement.resources, job.placement.tolerations) == ({}, {}, ())
    assert (job.precision.policy, job.jit_compile) == ("float32", "Never")
    assert "FellBackToCPU" in choice(job, "spec.accelerator.type").because


@pytest.mark.parametrize(
    ("count", "nodes", "batch", "there", "here"),
    [
        (1, 1, {"global": 64}, "64 on one replica", "32 for each of 2 replicas"),
        (4, 1, {"global": 64}, "16 for each of 4 replicas", "32 for each of 2 replicas"),
        (4, 2, {"global": 64}, "8 for each of 8 replicas", "32 for each of 2 replicas"),
        (1, 1, {"perReplica": 16}, "16 on one replica", "8 for each of 2 replicas here; asked for: 16 on one replica"),
        (
            4,
            1,
            None,
            "32 (Keras' default) for each of 4 replicas",
            "64 for each of 2 replicas here; asked for: 32 (Keras' default) for each of 4 replicas",
        ),
        (2, 1, {"perReplica": 16}, "16 for each of 2 replicas", "16 for each of 2 replicas"),
        (1, 1, {"global": 15}, "15 on one replica", "15 on one replica"),
    ],
)
def test_the_batch_is_that_of_the_replicas_that_will_run(
    count: int, nodes: int, batch: dict[str, int] | None, there: str, here: str
) -> None:
    spec: dict[str, Any] = {"nodes": nodes} | ({"training": {"batchSize": batch}} if batch else {})
    for settings, because in ((ClusterSettings(), there), (NO_ACCELERATORS, here)):
        job = resolved("nvidia-tesla-t4", accelerator={"countPerNode": count}, settings=settings, **spec)
        told = choice(job, "spec.training.batchSize")
        assert (told.because, told.value) == (because, f"global {job.global_batch_size}")


def test_fallback_leaves_a_cpu_job_alone() -> None:
    assert resolved("cpu", settings=NO_ACCELERATORS) == resolved("cpu")


def test_fallback_keeps_what_was_asked_for() -> None:
    job = resolved(settings=NO_ACCELERATORS, precision={"policy": "mixed_float16"}, jitCompile="Always")
    assert (job.precision.policy, job.jit_compile) == ("mixed_float16", "Always")


def test_fallback_does_not_give_a_keras_3_script_two_replicas_in_float16() -> None:
    job = resolved("nvidia-l4", settings=NO_ACCELERATORS, program=SCRIPT, precision={"policy": "mixed_float16"})
    assert (job.replicas, job.precision.policy) == (1, "mixed_float16")
    four = {"countPerNode": 4}
    assert resolved("nvidia-l4", settings=NO_ACCELERATORS, program=SCRIPT, accelerator=four).replicas == 2


def test_a_script_on_one_device_has_no_strategy_there_or_on_the_cpu() -> None:
    for settings in (ClusterSettings(), NO_ACCELERATORS):
        job = resolved("nvidia-l4", settings=settings, program=SCRIPT)
        assert (job.strategy, job.replicas, job.processes) == ("None", 1, 1)
        because = next(each.because for each in job.choices if each.field == "spec.strategy")
        assert because == "one device: the script runs as it does without a strategy"
    assert resolved("nvidia-l4", program=SCRIPT, accelerator={"countPerNode": 4}).strategy == "Mirrored"
    assert resolved("nvidia-l4", program=SCRIPT, nodes=2).strategy == "MultiWorkerMirrored"
    assert resolved("nvidia-l4").strategy == "Mirrored"


def test_fallback_accepts_nothing_that_a_cluster_refuses() -> None:
    with pytest.raises(InvalidSpec, match=r"mixed_bfloat16"):
        resolved(settings=NO_ACCELERATORS, precision={"policy": "mixed_bfloat16"})
    with pytest.raises(InvalidSpec, match=r"spec\.strategy"):
        resolved(settings=NO_ACCELERATORS, strategy="None", nodes=2)


def test_a_resolved_job_survives_its_file() -> None:
    job = resolved(accelerator={"countPerNode": 4, "provisioning": "Spot"}, nodes=2)
    assert ResolvedJob.read(job.to_json()) == job
    newer = json.loads(job.to_json()) | {"fieldOfANewerVersion": 1}
    assert ResolvedJob.read(json.dumps(newer)) == job
