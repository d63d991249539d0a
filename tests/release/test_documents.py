"""The texts of a release: changelog, notes, checksums, provenance, version files."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from kind.engine import Failed
from release.documents import changelog, checksums, notes, provenance
from release.prepare import prepare

CHANGELOG = "# Changelog\n\n## [Unreleased]\n\n### Added\n\n- New.\n\n## [0.1.0] - 2029-01-01\n\n- Old.\n"


def test_the_section_of_a_version_ends_at_the_next() -> None:
    assert changelog.section(CHANGELOG, "0.1.0") == "- Old."
    assert changelog.section(CHANGELOG, "Unreleased") == "### Added\n\n- New."
    assert changelog.section(CHANGELOG, "0.1") is None


def test_what_is_unreleased_becomes_the_version() -> None:
    made = changelog.with_version(CHANGELOG, "0.2.0", "2030-01-01")
    assert changelog.section(made, "0.2.0") == "### Added\n\n- New."
    assert changelog.section(made, "Unreleased") is None
    assert changelog.section(made, "0.1.0") == "- Old."
    with pytest.raises(ValueError, match=r"\[0.2.0\] already"):
        changelog.with_version(made, "0.2.0", "2030-01-01")
    with pytest.raises(ValueError, match="nothing below"):
        changelog.with_version(made, "0.3.0", "2030-01-01")


def test_the_version_is_written_into_all_files_or_none(tmp_path: Path) -> None:
    chart = tmp_path / "charts" / "mptraining" / "Chart.yaml"
    chart.parent.mkdir(parents=True)
    chart.write_text("apiVersion: v2\nversion: 0.1.0-dev.0\n# Comment.\nappVersion: 0.1.0.dev0\n")
    pyproject = tmp_path / "pyproject.toml"
    pyproject.write_text(
        '[project]\nname = "mptraining"\nversion = "0.1.0.dev0"\n\n[tool.mypy]\npython_version = "3.11"\n'
    )
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n")
    before = {path: path.read_text() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(Failed, match="Describe what is new"):
        prepare(tmp_path, "0.2.0rc1", "2030-01-01")
    assert {path: path.read_text() for path in before} == before
    (tmp_path / "CHANGELOG.md").write_text(CHANGELOG)
    prepare(tmp_path, "0.2.0rc1", "2030-01-01")
    assert chart.read_text() == "apiVersion: v2\nversion: 0.2.0-rc.1\n# Comment.\nappVersion: 0.2.0rc1\n"
    assert pyproject.read_text() == before[pyproject].replace("0.1.0.dev0", "0.2.0rc1")


def test_sha256sum_reads_the_checksums(tmp_path: Path) -> None:
    (tmp_path / "install.yaml").write_text("kind: List\n")
    (tmp_path / "a.whl").write_bytes(b"wheel")
    (tmp_path / checksums.FILE).write_text(checksums.text(checksums.digests(tmp_path)))
    command = ["sha256sum", "--check", "--strict", checksums.FILE]
    assert subprocess.run(command, cwd=tmp_path, check=False).returncode == 0
    (tmp_path / "install.yaml").write_text("kind: Other\n")
    assert subprocess.run(command, cwd=tmp_path, check=False).returncode == 1


def test_the_notes_have_the_changelog_and_every_digest() -> None:
    text = notes.notes(
        "- New.", version="0.2.0", references={"r/x:0.2.0": "sha256:1"}, files={"a.whl": "2"}, verification=["--key=k"]
    )
    assert text.startswith("# mptraining 0.2.0\n\n- New.\n")
    assert "| `r/x:0.2.0` | `sha256:1` |" in text
    assert "| `a.whl` | `2` |" in text
    assert "cosign verifies with `--key=k`" in text


def test_provenance_names_commit_builder_parameters_and_subjects() -> None:
    build = provenance.Build("https://forge.example/a/b", "0" * 40, "https://ci.example/w", "t1", "t2", "run/7")
    about = provenance.predicate(
        build, parameters={"version": "0.2.0"}, materials={"Dockerfile": "ab"}, base="python@sha256:cd"
    )
    assert about["buildDefinition"]["resolvedDependencies"] == [
        {"uri": "git+https://forge.example/a/b", "digest": {"gitCommit": "0" * 40}},
        {"uri": "oci://python", "digest": {"sha256": "cd"}},
        {"name": "Dockerfile", "digest": {"sha256": "ab"}},
    ]
    assert about["runDetails"]["metadata"] == {"invocationId": "run/7", "startedOn": "t1", "finishedOn": "t2"}
    statement = provenance.statement({"r/x@sha256:12": "sha256:12", "a.whl": "34"}, about)
    assert statement["predicateType"] == "https://slsa.dev/provenance/v1"
    assert [each["digest"]["sha256"] for each in statement["subject"]] == ["34", "12"]
