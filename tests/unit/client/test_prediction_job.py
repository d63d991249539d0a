"""The job that `mptj predict` runs or submits."""

from __future__ import annotations

from mptraining.prediction_job import job_name, prediction_document
from mptraining_api.resolve.resolve import ClusterSettings, resolve
from mptraining_api.rules.check import violations
from mptraining_api.spec import JOB_NAME, MPTrainingJob


def test_a_job_is_named_after_its_model() -> None:
    names = {
        "gs://bucket/flowers": "predict-flowers", "runs/Flowers_2/model/": "predict-flowers-2",
        "m.keras": "predict-m", "/": "predict", "x" * 99: "predict-" + "x" * 42, "a/ü.keras": "predict",
    }  # fmt: skip
    assert {model: job_name(model) for model in names} == names
    assert all(JOB_NAME.fullmatch(name) for name in names.values())


def test_the_document_is_a_valid_job_with_the_records_of_a_job_file() -> None:
    document = prediction_document(
        "gs://bucket/flowers",
        ["gs://bucket/test-*"],
        accelerator={"type": "cpu"},
        nodes=3,
        prediction={"to": "gs://bucket/p.parquet", "key": "id", "batchSize": None, "evaluate": None},
        data={"train": ["ignored"], "label": "kind", "shuffle": {"mode": "Full"}},
        skip_bad=4,
        output="gs://bucket/p.parquet.run",
    )

    job = MPTrainingJob.parse(document)
    assert violations(job) == []
    assert job.spec.data.to_document() == {
        "predict": ["gs://bucket/test-*"],
        "label": "kind",
        "badRecords": {"action": "Skip", "maxSkipped": 4},
    }
    resolved = resolve(job, ClusterSettings())
    assert (resolved.processes, resolved.strategy, resolved.precision.policy) == (3, "Mirrored", "float32")
    assert resolved.training is None
