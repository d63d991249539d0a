"""Parsing a job file: the messages about a bad one."""

from __future__ import annotations

from pathlib import Path

import pytest

from mptraining_api.problems import InvalidSpec
from mptraining_api.spec import JOB_NAME, MPTrainingJob
from tests.jobs import parsed_job

GOOD = """
apiVersion: mptraining.dev/v1alpha1
kind: MPTrainingJob
metadata: {name: digits, generation: 3, labels: {team: a}}
spec:
  accelerator: {type: cpu}
  program: {application: {name: mlp, classes: 10}}
  data: {train: [digits.tfrecord]}
  training: {batchSize: {global: 64}}
status: {phase: Running}
"""


def test_a_job_goes_back_to_what_was_written() -> None:
    """Intent only: defaults are decided by resolve."""
    job = parsed_job(GOOD)
    document = job.to_document()
    assert (job.metadata.name, job.spec.accelerator.type, job.spec.nodes) == ("digits", "cpu", None)
    assert document["spec"]["training"] == {"batchSize": {"global": 64}}
    assert MPTrainingJob.parse(document) == job


def test_a_file_may_have_other_objects_besides_the_job() -> None:
    claim = "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: runs}\n---\n"
    assert parsed_job(claim + GOOD) == parsed_job(GOOD)
    with pytest.raises(InvalidSpec, match="2 documents; expected exactly one MPTrainingJob"):
        parsed_job(f"{GOOD}\n---\n{GOOD}")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("mptraining.dev/v1alpha1", "mptraining.dev/v1", "apiVersion and kind are 'mptraining.dev/v1'"),
        ("kind: MPTrainingJob", "kind: TFJob", "'TFJob'"),
        ("  training:", "  trainig:", "spec.trainig: unknown field. Did you mean 'training'?"),
        ("spec:", "spec: [", "the '[' that opens on line 5 is not closed"),
    ],
)
def test_a_bad_file_is_answered_in_one_line(old: str, new: str, said: str) -> None:
    with pytest.raises(InvalidSpec) as caught:
        parsed_job(GOOD.replace(old, new, 1))
    line = str(caught.value)
    assert said in line
    assert "\n" not in line


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidSpec, match=r"absent\.yaml: No such file"):
        MPTrainingJob.load(tmp_path / "absent.yaml")


@pytest.mark.parametrize(
    ("name", "fits"), [("a" * 50, True), ("a" * 51, False), ("a.b", False), ("1a", False), ("a-", False)]
)
def test_a_name_leaves_room_for_attempt_and_index(name: str, fits: bool) -> None:
    assert (JOB_NAME.fullmatch(name) is not None) == fits
    if fits:
        assert len(f"{name}-99999-9999") <= 63


def test_a_queue_is_a_label() -> None:
    with pytest.raises(InvalidSpec, match=r"spec\.scheduling\.queueName: 'team/gpus' is not valid"):
        parsed_job(GOOD.replace("training:", "scheduling: {queueName: team/gpus}\n  training:"))
