"""The base of every value, and the messages about a bad job file."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from mptraining_api.model import Arguments, Count, Model
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
    assert (job.metadata.name, job.spec.accelerator.type, job.spec.workers) == ("digits", "cpu", None)
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


@pytest.mark.parametrize(
    ("name", "fits"), [("a" * 50, True), ("a" * 51, False), ("a.b", False), ("1a", False), ("a-", False)]
)
def test_a_name_leaves_room_for_attempt_and_index(name: str, fits: bool) -> None:
    assert (JOB_NAME.fullmatch(name) is not None) == fits
    if fits:
        assert len(f"{name}-99999-9999") <= 63


class Inner(Model):
    step_count: Count | None = None


class Outer(Model):
    inner_values: tuple[Inner, ...] = ()
    arguments: Arguments | None = None


def test_camel_case_on_the_wire() -> None:
    value = Outer.parse({"innerValues": [{"stepCount": 3}]})
    assert value == Outer(inner_values=(Inner(step_count=3),))
    assert value.to_document() == {"innerValues": [{"stepCount": 3}]}


def test_a_value_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        Inner(step_count=3).step_count = 4  # type: ignore[misc]


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({"innerValues": [{}, {"stepCount": "3"}]}, "spec.innerValues[1].stepCount: '3' is not valid"),
        ({"innerValues": [{"stepCont": 3}]}, "spec.innerValues[0].stepCont: unknown field. Did you mean 'stepCount'?"),
        ({"a": 1, "b": 2}, "(1 more)"),
    ],
)
def test_a_bad_document_names_the_first_field(document: object, said: str) -> None:
    with pytest.raises(InvalidSpec) as caught:
        Outer.parse(document, where="spec")
    assert said in str(caught.value)


def test_stored_values_of_a_newer_version_are_read() -> None:
    assert Inner.read('{"stepCount": 3, "newer": true}') == Inner(step_count=3)


def test_free_form_arguments_stay_as_written() -> None:
    arguments = {"Any_Case": [1, 2.5, None, {"x": "y"}]}
    assert Outer.parse({"arguments": arguments}).to_document() == {"arguments": arguments, "innerValues": []}
