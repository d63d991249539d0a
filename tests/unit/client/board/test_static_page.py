"""The offline page: one file with everything, of modules that the bundler can join."""

from __future__ import annotations

import base64
import hashlib
import json
import random
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import mptraining.board
from mptraining.board.sources import folder_source
from mptraining.board.state import Board
from mptraining.board.static_page import data, write_page
from mptraining_api.problems import InvalidData
from tests.testbed.board_runs import write_run

STRANGE = "</script><script>alert(1)</script>&amp;"


def exported(folder: Path) -> tuple[str, dict[str, Any]]:
    text = write_page(folder / "page.html", Board([folder_source(str(folder / "runs"))])).read_text()
    (inlined,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    return text, json.loads(inlined)


def test_the_page_holds_what_the_server_would_answer(tmp_path: Path) -> None:
    for number in range(2):
        write_run(tmp_path / "runs" / f"run-{number}", number, 2000, random.Random(number))
    (tmp_path / "runs" / "run-0" / "logs").mkdir()
    (tmp_path / "runs" / "run-0" / "logs" / "1-0.log").write_text("x" * 99 + "\n" * 20_000 + "the end\n")
    text, found = exported(tmp_path)
    board = Board([folder_source(str(tmp_path / "runs"))], clock=lambda: 0.0)
    board.refresh()
    expected = json.loads(json.dumps(data(board)))
    assert found["series"] == expected["series"]
    assert [each["values"] for each in found["runs"]["runs"]] == [each["values"] for each in expected["runs"]["runs"]]
    assert set(found["run"]) == set(found["series"]) == {each["id"] for each in found["runs"]["runs"]}
    curve = next(iter(found["series"].values()))["loss"]
    assert len(curve["y"]) == len(curve["step"]) == len(curve["epoch"]) == len(curve["seconds"]) <= 1200
    (logs,) = [each for each in found["logs"].values() if each]
    assert logs["1-0.log"].endswith("the end\n")
    assert len(logs["1-0.log"]) < 20_000
    assert len(text) < 1_000_000


def test_the_policy_allows_what_is_inlined_and_nothing_else(tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "one", 0, 20, random.Random(0))
    text, _ = exported(tmp_path)
    (policy,) = re.findall(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">', text)
    scripts = re.findall(r"<script(?: type=\"module\")?>(.*?)</script>", text, re.DOTALL)
    styles = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
    assert (len(scripts), len(styles)) == (3, 2)
    for each in [*scripts, *styles]:
        assert f"'sha256-{base64.b64encode(hashlib.sha256(each.encode()).digest()).decode()}'" in policy
    assert policy.count("sha256-") == 5
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert not re.findall(r'(?:src|href)="(?!#|data:)[^"]*"', text.split("<body>")[0] + text.split("<main")[1][:2000])
    assert not re.search(r"^(import|export) ", scripts[2], re.MULTILINE)


def test_text_of_a_run_is_never_markup(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "one"
    write_run(folder, 0, 20, random.Random(0))
    job = json.loads((folder / "job.json").read_text())
    (folder / "job.json").write_text(json.dumps(job | {"name": STRANGE, "program": {"script": {"path": STRANGE}}}))
    text, found = exported(tmp_path)
    assert STRANGE not in text
    assert "alert(1)</script>" not in text
    (run,) = found["runs"]["runs"]
    assert run["values"]["program"] == STRANGE


def test_no_runs_are_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidData, match=r"absent: no such folder; expected folders with runs"):
        write_page(tmp_path / "page.html", Board([folder_source(str(tmp_path / "absent"))]))


STATIC = Path(mptraining.board.__file__).parent / "static"
MODULES = sorted(path for path in STATIC.rglob("*.js") if "vendor" not in path.parts)
_DECLARED = re.compile(r"^(?:export )?(?:async )?(?:function|const|let|class) ([A-Za-z_$][\w$]*)", re.MULTILINE)
_DESTRUCTURED = re.compile(r"^(?:export )?const [\[{]([^\]}]+)[\]}]", re.MULTILINE)


def test_names_at_the_top_of_modules_are_unique_because_the_exported_page_is_one_script() -> None:
    names: Counter[str] = Counter()
    for module in MODULES:
        text = module.read_text(encoding="utf-8")
        names.update(_DECLARED.findall(text))
        names.update(name.strip() for group in _DESTRUCTURED.findall(text) for name in group.split(","))
    assert [name for name, count in names.items() if count > 1] == []


def test_modules_use_no_markup_from_text_and_no_other_host() -> None:
    for module in MODULES:
        text = module.read_text(encoding="utf-8")
        assert not re.search(r"(inner|Inner|outer)HTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text)
        assert not re.search(r"https?://", text), f"{module.name} names another host"
        assert [line for line in text.splitlines() if len(line) > 120] == []


@pytest.mark.parametrize(
    ("name", "version", "digest"),
    [
        ("uPlot.iife.min.js", "uplot 1.6.32", "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f"),
        ("htm-preact.umd.js", "htm 3.1.1", "62c4ffea400078c0eda7f435b22726b4961ebdf74c8506f188e92bec41d8ac51"),
    ],
)
def test_a_vendored_library_is_the_unchanged_file_of_the_version_that_is_named(
    name: str, version: str, digest: str
) -> None:
    folder = STATIC / "vendor"
    assert version in (folder / "README.md").read_text(encoding="utf-8")
    assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest
