"""docs/compatibility.md comes from the locks, the code and what test runs recorded."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import compatibility_record
from tools import compatibility

LOCK = """\
keras==3.15.1 \\
    --hash=sha256:00
keras-tuner==1.4.8 \\
tensorflow-cpu==2.21.0 ; sys_platform == 'linux' \\
tensorflow-io==0.1
tf-keras==2.21.0 \\
"""
OLD = {"tests": "cluster", "date": "2026-01-01", "python": "3.11.7", "kubernetes": "1.30.14", "passed": 5, "failed": 1}


def test_versions_of_a_lock() -> None:
    assert compatibility.locked(LOCK) == {"tensorflow": "2.21.0", "keras": "3.15.1", "tf-keras": "2.21.0"}


def test_the_bounds_of_a_requirement() -> None:
    requirements = ["kubernetes>=34,<37", "kubernetes-x>=1", "tensorflow-cpu>=2.20,<2.22; sys_platform == 'linux'"]
    assert compatibility.bound(requirements, "kubernetes") == ">=34, <37"
    assert compatibility.bound(requirements, "tensorflow-cpu") == ">=2.20, <2.22"
    with pytest.raises(ValueError, match="no requirement 'keras'"):
        compatibility.bound(requirements, "keras")


def test_a_later_run_of_the_same_versions_replaces_the_earlier() -> None:
    later = {**OLD, "date": "2026-02-01", "failed": 0}
    other = {**OLD, "kubernetes": "1.36.3"}
    assert compatibility.merge([OLD], [other, later]) == [later, other]
    assert compatibility.merge([later], [OLD]) == [later]


def test_a_row_has_an_empty_cell_where_a_version_was_not_used() -> None:
    assert compatibility.tested([OLD])[-1] == "| cluster | 3.11.7 |  |  |  | 1.30.14 | 5 | 1 | 2026-01-01 |"


def test_the_pythons_that_train_are_those_without_a_known_exception(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "| Python, to train | 3.11 to 3.13 |" in compatibility.promised()
    monkeypatch.setattr(compatibility, "KNOWN", {})
    assert "| Python, to train | 3.11 to 3.14 |" in compatibility.promised()


def test_the_oldest_kubernetes_of_chart_and_code_must_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    assert any("1.30 to" in line for line in compatibility.promised())
    monkeypatch.setattr(compatibility.binaries, "OLDEST", "1.31.0")
    with pytest.raises(ValueError, match=r"kubeVersion is >=1\.30\.0-0, kind/binaries\.py has 1\.31"):
        compatibility.promised()


def report(nodeid: str, outcome: str, *keywords: str, when: str = "call") -> Any:
    return SimpleNamespace(nodeid=nodeid, outcome=outcome, when=when, keywords=dict.fromkeys(keywords, 1))


def test_a_run_records_its_tiers_with_their_versions(tmp_path: Path) -> None:
    file = tmp_path / "new" / "run.json"
    recorder = compatibility_record.Recorder(file, lambda tier: {"date": "2026-01-01", "python": f"3.11 for {tier}"})
    for each in (
        report("test_a", "passed", "test_a"),
        report("test_a", "passed", "test_a", when="teardown"),
        report("test_b", "skipped", "test_b", "cluster"),
        report("test_c", "failed", "test_c", "cluster"),
        report("test_an_older_keras_rebuilds_it[x]", "passed", "training"),
    ):
        recorder.pytest_runtest_logreport(each)
    recorder.pytest_sessionfinish()
    rows = {row["tests"]: (row["passed"], row["failed"], row["python"]) for row in json.loads(file.read_text())}
    assert rows == {
        "cluster": (0, 1, "3.11 for cluster"),
        "older Keras": (1, 0, "3.11 for older Keras"),
        "unit": (1, 0, "3.11 for unit"),
    }


def test_a_second_run_adds_its_rows_to_the_file_of_the_first(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    for name, day, keywords in (("test_a", "01", ()), ("test_b", "02", ("cluster",)), ("test_a", "03", ())):
        recorder = compatibility_record.Recorder(file, lambda tier, day=day: {"date": f"2026-01-{day}"})
        recorder.pytest_runtest_logreport(report(name, "passed", *keywords))
        recorder.pytest_sessionfinish()
    rows = [(row["tests"], row["date"]) for row in json.loads(file.read_text())]
    assert rows == [("cluster", "2026-01-02"), ("unit", "2026-01-03")]


def test_a_run_without_tests_writes_nothing(tmp_path: Path) -> None:
    compatibility_record.Recorder(tmp_path / "run.json", lambda tier: {}).pytest_sessionfinish()
    assert list(tmp_path.iterdir()) == []
