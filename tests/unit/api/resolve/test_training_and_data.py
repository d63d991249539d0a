"""Defaults of training, data, image and output that depend on the job; what is written is kept.

Defaults that are constants are in test_field_defaults.py.
"""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mptraining_api.problems import InvalidSpec
from mptraining_api.resolve.batch_size import scaling_factor, scaling_rule, scaling_suggestion, warmup_steps
from mptraining_api.resolve.resolve import ClusterSettings
from mptraining_api.resolved_job import ResolvedData
from tests.fakes import with_image
from tests.unit.api.resolve.resolved_jobs import APPLICATION, DATA, FUNCTION, choice, resolved


def test_an_application_is_a_classifier_trained_by_adam() -> None:
    found = resolved().training.to_document()
    assert found["optimizer"] == {"className": "Adam", "config": {"learning_rate": 0.001}}
    assert found["loss"] == {"className": "SparseCategoricalCrossentropy", "config": {"from_logits": True}}
    assert [metric["className"] for metric in found["metrics"]] == ["SparseCategoricalAccuracy"]


def test_a_function_keeps_what_it_compiled_with() -> None:
    job = resolved(program=FUNCTION)
    assert (job.training.optimizer, job.training.loss, job.training.metrics) == (None, None, None)
    assert job.data.preprocess == "none"


def test_an_empty_list_of_metrics_and_total_steps_replace_the_defaults() -> None:
    found = resolved(training={"metrics": [], "totalSteps": 50}).training
    assert (found.metrics, found.epochs, found.total_steps) == ((), None, 50)


def test_the_order_of_records_follows_the_buffer() -> None:
    unshuffled = resolved(data=DATA | {"shuffle": {"bufferSize": 0}}).data
    assert (unshuffled.shuffle, unshuffled.shuffle_buffer_size) == ("None", None)
    assert (resolved().data.shuffle, resolved().data.shuffle_buffer_size) == ("Windowed", None)
    older = json.loads(resolved().data.to_json()) | {"shuffleBufferSize": 10_000}
    del older["shuffle"]
    parsed = ResolvedData.read(json.dumps(older))
    assert (parsed.shuffle, parsed.shuffle_buffer_size) == ("Windowed", 10_000), "a job of an older version"


FEATURES = [{"name": name, "dtype": "float32"} for name in ("x", "y", "z", "w")]


@pytest.mark.parametrize(
    "written",
    [
        {"epochs": 7, "stepsPerEpoch": 20, "initialEpoch": 3, "validationFreq": 2, "classWeight": {"0": 2.0}},
        {"totalSteps": 50, "validationEverySteps": 10, "gradientAccumulationSteps": 4, "stepsPerExecution": 5},
        {"onNonFinite": "Fail", "seed": 11, "resume": "Never"},
        {"optimizer": {"className": "SGD", "config": {"learning_rate": 0.1}},
         "loss": {"className": "CategoricalCrossentropy"}, "metrics": [{"className": "Recall"}]},
    ],
)  # fmt: skip
@pytest.mark.parametrize("program", [APPLICATION, FUNCTION])
def test_what_is_written_of_training_is_kept(program: dict[str, Any], written: dict[str, Any]) -> None:
    job = resolved(program=program, training=written, data=DATA | {"validation": ["gs://bucket/val"]})
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
    assert resolved(data=DATA | written).data.to_document().items() >= written.items()


def test_what_is_written_of_records_checkpoints_export_and_profile_is_kept() -> None:
    job = resolved(
        data=DATA | {"badRecords": {"action": "Skip", "maxSkipped": 9}, "shuffle": {"bufferSize": 77}},
        checkpoint={"everySteps": 100, "maxToKeep": 5},
        export={"format": "saved_model", "checkpoint": "Best", "monitor": "loss"},
        profile={"firstStep": 20, "lastStep": 30},
        precision={"lossScale": {"mode": "Fixed", "value": 512}},
    )
    assert (job.precision.loss_scale_mode, job.precision.loss_scale) == ("Fixed", 512.0)
    assert (job.data.bad_records, job.data.max_skipped) == ("Skip", 9)
    assert (job.data.shuffle, job.data.shuffle_buffer_size) == ("Windowed", 77)
    assert (job.checkpoint.every_steps, job.checkpoint.max_to_keep) == (100, 5)
    assert (job.export.format, job.export.checkpoint, job.export.monitor) == ("saved_model", "Best", "loss")
    assert (job.profile.first_step, job.profile.last_step) == (20, 30)


def test_a_cluster_may_give_image_and_output() -> None:
    settings = ClusterSettings(runtimes=with_image("registry.example/trainer:1", output="gs://runs/"))
    job = resolved(settings=settings)
    assert (job.image, job.output) == ("registry.example/trainer:1", "gs://runs/flowers")
    own = resolved(settings=settings, podTemplate={"image": "mine"}, output={"uri": "gs://b/r"})
    assert (own.image, own.output) == ("mine", "gs://b/r")
    assert (resolved().image, resolved().output) == (None, None)


@pytest.mark.parametrize(
    ("type", "accelerator", "size"),
    [("cpu", {}, 32), ("l4", {}, 32), ("v6e", {"topology": "2x2"}, 128)],
)
def test_the_default_batch_is_keras_own_or_fills_the_matrix_units(
    type: str, accelerator: dict[str, Any], size: int
) -> None:
    assert resolved(type, accelerator=accelerator).per_replica_batch_size == size


@given(count=st.sampled_from([1, 2, 4, 8]), workers=st.integers(1, 16), total=st.integers(1, 4096))
def test_a_global_batch_is_shared_evenly_or_refused_with_the_nearest(count: int, workers: int, total: int) -> None:
    replicas = count * workers
    spec: dict[str, Any] = {"workers": workers, "training": {"batchSize": {"global": total}}}
    if total % replicas == 0:
        job = resolved("l4", accelerator={"countPerWorker": count}, **spec)
        assert job.global_batch_size == total
        assert job.per_replica_batch_size == total // replicas
        return
    with pytest.raises(InvalidSpec) as caught:
        resolved("l4", accelerator={"countPerWorker": count}, **spec)
    nearest = [int(word.strip(".")) for word in caught.value.next_step.split() if word.strip(".").isdecimal()]
    assert nearest
    assert all(size % replicas == 0 and abs(size - total) < replicas for size in nearest)


@pytest.mark.parametrize(
    ("rule", "accumulation", "factor"),
    [("Linear", 1, 4.0), ("SquareRoot", 1, 2.0), ("Linear", 2, 8.0), ("SquareRoot", 4, 4.0), ("None", 1, 1.0)],
)
def test_the_learning_rate_follows_the_examples_of_an_update(rule: str, accumulation: int, factor: float) -> None:
    scaling = {"rule": rule, "warmupSteps": 10} | ({"baseBatchSize": 64} if rule != "None" else {})
    training = {"batchSize": {"global": 256}, "gradientAccumulationSteps": accumulation, "learningRateScaling": scaling}
    job = resolved(training=training)
    assert math.isclose(job.learning_rate.factor, factor)
    assert job.learning_rate.warmup_steps == 10
    assert job.global_batch_size == 256, "accumulation is counted in the factor, not in the batch of a step"
    if accumulation > 1:
        assert "accumulated" in choice(job, "spec.training.learningRateScaling").because


def test_the_rule_follows_the_optimizer() -> None:
    rules = {"SGD": "Linear", "Adam": "SquareRoot", "AdamW": "SquareRoot", "RMSprop": "SquareRoot", "Mine": None}
    assert {optimizer: scaling_rule(optimizer) for optimizer in rules} == rules


@given(st.integers(1, 10**6), st.integers(1, 10**6), st.integers(1, 10**6))
def test_two_changes_are_one(first: int, second: int, third: int) -> None:
    for rule in ("Linear", "SquareRoot"):
        both = scaling_factor(rule, first, second) * scaling_factor(rule, second, third)
        assert math.isclose(both, scaling_factor(rule, first, third))
    assert math.isclose(scaling_factor("SquareRoot", first, second) ** 2, scaling_factor("Linear", first, second))


@pytest.mark.parametrize(
    ("per_epoch", "total", "expected"), [(None, 100, None), (10, None, 50), (10, 1000, 50), (10, 100, 10), (3, 4, 1)]
)
def test_warm_up_is_five_epochs_or_a_tenth(per_epoch: int | None, total: int | None, expected: int | None) -> None:
    assert warmup_steps(per_epoch, total) == expected
    assert "warmupSteps" not in scaling_suggestion("SGD", 256, 64), "a smaller rate needs no warm-up"
    assert "SquareRoot for Adam" in scaling_suggestion(None, 64, 256)
