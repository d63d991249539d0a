"""The owner of a run folder, and the direction in which its metrics improve."""

from __future__ import annotations

from typing import Any

import pytest

from mptraining_api.resolve.resolve import ClusterSettings, resolve
from mptraining_api.resolved_job import ResolvedJob
from mptraining_api.run_folder import difference, metric_direction
from mptraining_api.spec import MPTrainingJob
from mptraining_api.sweep.actions import CreateJob
from mptraining_api.sweep.plan import plan
from mptraining_api.sweep.status import SWEEP_UID
from tests.unit.api.sweep.sweeps import sweep


def job(name: str = "flowers", *, labels: dict[str, str] | None = None, **spec: Any) -> ResolvedJob:
    base = {
        "accelerator": {"type": "l4"},
        "program": {"application": {"name": "ResNet50"}},
        "data": {"train": ["gs://b/t"]},
    }
    metadata = {"name": name} | ({"labels": labels} if labels else {})
    return resolve(MPTrainingJob.parse({"metadata": metadata, "spec": base | spec}), ClusterSettings())


@pytest.mark.parametrize(
    "spec",
    [
        {"training": {"epochs": 9}},
        {"training": {"batchSize": {"perReplica": 8}}},
        {"precision": {"policy": "float32"}},
        {"workers": 2},
        {"accelerator": {"type": "cpu"}},
        {"data": {"train": ["gs://b/t"], "validation": ["gs://b/v"]}},
        # An omitted field equals its default.
        {"program": {"application": {"name": "ResNet50", "weights": "none"}}},
    ],
)
def test_the_same_work_resumes(spec: dict[str, Any]) -> None:
    assert difference(job(), job(**spec)) is None


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (job("roses"), "metadata.name was 'flowers' and is 'roses'"),
        (job(program={"application": {"name": "ResNet101"}}), "spec.program is another one"),
        (job(data={"train": ["gs://b/other"]}), "spec.data.train"),
        (job(data={"train": ["gs://b/t"], "label": "class"}), "spec.data.label"),
    ],
)
def test_other_work_is_named_by_its_field(other: ResolvedJob, said: str) -> None:
    found = difference(job(), other)
    assert found is not None
    assert said in found


def test_the_jobs_of_one_trial_share_a_run_folder() -> None:
    assert difference(job("flowers-7"), job("flowers-7-r1")) is None
    assert difference(job("flowers-7-r1"), job("flowers-7-r2-x1")) is None
    assert difference(job("flowers-7"), job("flowers-8")) is not None
    assert difference(job("flowers"), job("flowers-7")) is not None


def test_the_trials_of_a_later_sweep_do_not_resume_those_of_an_earlier_one() -> None:
    """They have the same names, program and data; batch sizes, rates and seeds differ, and may between resumptions."""

    def trial(uid: str) -> ResolvedJob:
        searched = sweep()
        searched = searched.model_copy(update={"metadata": searched.metadata.model_copy(update={"uid": uid})})
        (create, *_) = plan(searched, None, {}, 0.0).actions
        assert isinstance(create, CreateJob)
        return resolve(MPTrainingJob.parse(create.document), ClusterSettings())

    assert difference(trial("u-1"), trial("u-1")) is None
    assert difference(trial("u-1"), trial("u-2")) == "an earlier sweep's or job's"
    assert difference(job("digits-1"), job("digits-1", labels={SWEEP_UID: "u-1"})) is not None
    # A user's own job continues what a sweep began.
    assert difference(job("digits-1", labels={SWEEP_UID: "u-1"}), job("digits-1")) is None


@pytest.mark.parametrize(
    ("name", "way"),
    [
        ("val_loss", "down"), ("val_sparse_categorical_accuracy", "up"), ("acc", "up"), ("auc_3", "up"),
        ("f1_score", "up"), ("binary_io_u", "up"), ("top_5_accuracy", "up"), ("true_positives_2", "up"),
        ("false_positives", "down"), ("mean_squared_error_of_accuracy", "down"),
        ("sparse_categorical_crossentropy", "down"), ("kl_divergence", "down"), ("precision_at_recall", "up"),
        ("r2_score", "up"), ("cosine_similarity", "up"), ("vaccinated", None), ("examples", None), ("", None),
    ],
)  # fmt: skip
def test_a_name_says_which_way_is_better(name: str, way: str | None) -> None:
    assert metric_direction(name) == way
