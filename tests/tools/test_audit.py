"""`make audit`: what a copy of advisories answers, what exceptions cover, and which licences pass."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import urllib.request
from datetime import date, datetime
from pathlib import Path
from typing import Any

import pytest

from tools.audit import advisories, licenses
from tools.audit.__main__ import ROOT, Excepted, Vulnerability, judge, locks, vulnerabilities

_ADVISORY = """
id: PYSEC-2024-26
modified: 2024-02-06T20:20:18.162431Z
aliases: [CVE-2024-23829]
details: a parser
affected:
- package: {ecosystem: PyPI, name: Some_Package}
  ranges:
  - {type: GIT, events: [{introduced: "0"}, {fixed: 33ccd}]}
  - {type: ECOSYSTEM, events: [{introduced: "2.0"}, {fixed: 3.9.2}, {introduced: 4.0.0}, {last_affected: 4.1.0}]}
  versions: ["1.0"]
"""
_FOUND = Vulnerability("PYSEC-1", frozenset({"PYSEC-1", "CVE-1"}), "a", "1", ("2",), "about")
_TODAY = date(2026, 11, 24)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    (tmp_path / "vulns" / "some-package").mkdir(parents=True)
    (tmp_path / "vulns" / "some-package" / "PYSEC-2024-26.yaml").write_text(_ADVISORY)
    return tmp_path


@pytest.mark.parametrize(
    ("version", "affected"),
    [
        *(("1.0", True), ("1.9", False), ("2.0", True), ("3.9.1", True), ("3.9.2", False), ("3.10", False)),
        *(("4.0.0", True), ("4.1.0", True), ("4.1.1", False)),
    ],
)
def test_a_version_is_affected_if_it_is_listed_or_in_a_range(copy: Path, version: str, affected: bool) -> None:
    found = advisories.affecting(advisories.load(copy), "some.package", version)
    assert [each["id"] for each in found] == ["PYSEC-2024-26"] * affected


def test_a_copy_answers_as_osv_does_and_has_a_date(copy: Path) -> None:
    known = advisories.load(copy)
    assert advisories.newest(known) == datetime(2024, 2, 6, 20, 20, 18, 162431)
    with advisories.serve(known) as url:

        def ask(version: str) -> Any:
            query = {"package": {"name": "some-package", "ecosystem": "PyPI"}, "version": version}
            with urllib.request.urlopen(url, json.dumps(query).encode(), timeout=10) as answer:
                return json.load(answer)

        assert ask("3.0")["vulns"][0]["aliases"] == ["CVE-2024-23829"]
        assert ask("5.0") == {}


def test_a_folder_without_advisories_is_no_clean_answer(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no advisory in OSV's format"):
        advisories.load(tmp_path)


def test_a_package_that_pip_audit_leaves_out_is_no_clean_answer() -> None:
    with pytest.raises(RuntimeError, match="left out b"):
        vulnerabilities({"dependencies": [{"name": "b", "skip_reason": "not found"}]})


@pytest.mark.parametrize(
    ("id", "package", "until", "left", "stale"),
    [
        ("PYSEC-1", "a", date(2026, 11, 24), 0, []),
        ("CVE-1", "a", date(2027, 1, 1), 0, []),
        ("PYSEC-1", "a", date(2026, 11, 23), 1, ["the exception of PYSEC-1 ended on 2026-11-23: why"]),
        ("PYSEC-1", "b", date(2027, 1, 1), 1, ["the exception of PYSEC-1 covers nothing: remove it"]),
    ],
)
def test_an_exception_covers_one_package_until_its_day(
    id: str, package: str, until: date, left: int, stale: list[str]
) -> None:
    found, told = judge([_FOUND], [Excepted(id, package, "why", until)], _TODAY)
    assert (len(found), told) == (left, stale)


def test_an_exception_leaves_the_same_vulnerability_of_another_package() -> None:
    other = dataclasses.replace(_FOUND, package="b")
    found, told = judge([_FOUND, other], [Excepted("PYSEC-1", "a", "why", _TODAY)], _TODAY)
    assert (found, told) == ([other], [])


def test_every_lock_of_the_repository_is_audited_and_has_the_hashes_that_pip_audit_asks_for() -> None:
    tracked = subprocess.run(["git", "ls-files", "*.lock"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert locks() == sorted(tracked.stdout.split())
    assert [each for each in locks() if "--hash=sha256:" not in (ROOT / each).read_text(encoding="utf-8")] == []


@pytest.mark.parametrize(
    ("expression", "allowed"),
    [
        *(("MIT", True), ("MPL-2.0 AND MIT", True), ("GPL-3.0-only OR BSD-3-Clause", True)),
        *(("", False), ("GPL-3.0-only", False), ("MIT AND AGPL-3.0-only", False), ("Proprietary", False)),
    ],
)
def test_every_part_of_a_licence_must_be_allowed(expression: str, allowed: bool) -> None:
    assert licenses.is_allowed(expression) is allowed


def test_a_licence_that_is_not_allowed_is_found_and_an_exception_must_be_needed() -> None:
    gpl = {"name": "c", "licenses": [{"license": {"name": "GPL-3.0-only"}}]}
    named = {"name": "d", "licenses": [{"license": {"name": "Apache Software License"}}]}
    bills = {"operator": {"components": [gpl, named, {"name": "nvidia-x"}]}, "board": {"components": [gpl]}}
    findings, unused = licenses.check(bills, ["nvidia-*", "d"])
    assert findings == [licenses.Finding("c", "GPL-3.0-only", ("operator", "board"))]
    assert unused == ["d"]
