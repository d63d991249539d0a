"""The API's versions are in one place; whose docstring has the way to the next one."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from hack.crd import CLIENT_SIDE_APPLY_BYTES, custom_resource_definition
from mptraining_api.problems import InvalidSpec
from mptraining_api.validation import api_versions
from mptraining_api.validation.job_text import read_job_text

ROOT = Path(__file__).parents[4]
BOTH = ("v1beta1", "v1alpha1")
# Versions of other projects' APIs.
OTHER_APIS = {"operator/mptraining_operator/jobs/resources/pod_groups.py", "client/mptraining/tfjob.py"}


def test_one_module_names_the_version() -> None:
    command = ["git", "grep", "-l", "v1alpha1", "--", "api/*.py", "operator/*.py", "client/*.py", "trainer/*.py"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True).stdout.split()
    assert set(listed) - OTHER_APIS == {"api/mptraining_api/validation/api_versions.py"}


def test_two_versions_still_fit_into_a_client_side_apply_without_conversion() -> None:
    # Any other strategy than that of no conversion needs a webhook; without one a field that a version lacks is lost.
    made = custom_resource_definition()["spec"]
    assert "conversion" not in made
    assert len(json.dumps(made | {"versions": 2 * made["versions"]})) < CLIENT_SIDE_APPLY_BYTES


def test_a_job_file_may_have_any_served_version(monkeypatch: pytest.MonkeyPatch) -> None:
    def written(version: str) -> str:
        return f"apiVersion: mptraining.dev/{version}\nkind: MPTrainingJob\nmetadata: {{name: a}}\nspec: {{}}\n"

    with pytest.raises(InvalidSpec, match=r"apiVersion and kind are 'mptraining\.dev/v1beta1'"):
        read_job_text(written("v1beta1"), file="job.yaml")
    monkeypatch.setattr(api_versions, "SERVED", BOTH)
    for version in BOTH:
        assert read_job_text(written(version), file="job.yaml").content["apiVersion"] == f"mptraining.dev/{version}"
