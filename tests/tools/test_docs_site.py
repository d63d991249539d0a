"""The generated pages of the documentation site. `make docs` builds it and refuses broken links."""

from __future__ import annotations

import pytest

import mptraining
from mptraining_api.accelerators import catalogue
from tools.docs_site import pages


@pytest.fixture(scope="module")
def generated() -> dict[str, str]:
    return pages.generated()


def test_each_field_is_in_the_table_of_its_object(generated: dict[str, str]) -> None:
    job = generated["reference/mptrainingjob.md"]
    assert "## spec.training.batchSize { #spec-training-batchsize }" in job
    batch = job.split("## spec.training.batchSize")[1].split("##")[0]
    assert "| `perReplica` | integer ≥ 1" in batch
    assert "| [`features`](#spec-data-features) | list of object |" in job
    assert "`Recover`, `Fail`" in job
    assert "## status.conditions[]" in job
    assert "## spec.parameters[]" in generated["reference/mptrainingsweep.md"]


def test_each_command_has_its_help(generated: dict[str, str]) -> None:
    commands = generated["reference/mptj.md"]
    for name in ("mptj run", "mptj records convert", "mptj sweep"):
        assert f"## {name} {{" in commands
    assert "--output DIR" in commands.split("## mptj run {")[1].split("##")[0]


def test_the_public_names_and_the_accelerators_are_all_there(generated: dict[str, str]) -> None:
    assert all(f"::: mptraining.{name}\n" in generated["reference/python.md"] for name in mptraining.__all__)
    assert all(f"| `{name}` |" in generated["reference/accelerators.md"] for name in catalogue())


def test_files_of_the_repository_have_a_page_or_none() -> None:
    assert pages.page_of("README.md") == ("index.md", "")
    assert pages.page_of("manifests/examples") == ("reference/examples.md", "")
    assert pages.page_of("manifests/examples/digits.yaml") == (
        "reference/examples.md",
        "manifests-examples-digits-yaml",
    )
    assert pages.page_of("api/mptraining_api/spec.py") is None
