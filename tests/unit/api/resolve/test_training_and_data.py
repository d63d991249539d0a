"""Defaults of training, data, checkpoints, export and output; what is written is kept."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mptraining_api.resolve.resolve import ClusterSettings
from mptraining_api.resolved_job import ResolvedData
from tests.unit.api.resolve.resolved_jobs import APPLICATION, DATA, FUNCTION, resolved


def test_an_application_is_a_classifier_trained_by_adam() -> None:
    training = resolved().training
    assert training is not None
    assert training.optimizer is not None
    assert training.loss is not None
    assert (training.optimizer.class_name, training.optimizer.config) == ("Adam", {"learning_rate": 0.001})
    assert (training.loss.class_name, training.loss.config) == ("SparseCategoricalCrossentropy", {"from_logits": True})
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
    assert (data.bad_records, data.max_skipped, data.remainder, data.on_change) == ("Fail", 0, "Drop", "Refuse")
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
        {"optimizer": {"className": "SGD", "config": {"learning_rate": 0.1}},
         "loss": {"className": "CategoricalCrossentropy"}, "metrics": [{"className": "Recall"}]},
    ],
)  # fmt: skip
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
