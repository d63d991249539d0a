"""Defaults of training, data, image and output that depend on the job; what is written is kept.

Defaults that are constants are in test_field_defaults.py.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from mptraining_api.resolve.resolve import ClusterSettings
from mptraining_api.resolved_job import ResolvedData
from tests.unit.api.resolve.resolved_jobs import APPLICATION, DATA, FUNCTION, resolved


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
    settings = ClusterSettings(default_image="registry.example/trainer:1", default_output="gs://runs/")
    job = resolved(settings=settings)
    assert (job.image, job.output) == ("registry.example/trainer:1", "gs://runs/flowers")
    own = resolved(settings=settings, podTemplate={"image": "mine"}, output={"uri": "gs://b/r"})
    assert (own.image, own.output) == ("mine", "gs://b/r")
    assert (resolved().image, resolved().output) == (None, None)
