"""What is in .github: workflows make targets that exist, pin actions by commit, and have no more rights than needed.

`make lint` runs actionlint and zizmor on them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from mptraining.cli.main import app

ROOT = Path(__file__).parents[2]
GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
FORMS = sorted(path for path in (GITHUB / "ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml")
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
# `make release` comes with the release tools, in a branch of its own.
TARGETS = {*re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE)}


def document(path: Path) -> dict[str, Any]:
    # YAML 1.1 reads the key `on` as true.
    loaded: dict[Any, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return {"on" if key is True else key: value for key, value in loaded.items()}


def steps(path: Path) -> Iterator[dict[str, Any]]:
    loaded = document(path)
    if "runs" in loaded:
        yield from loaded["runs"]["steps"]
    for job in loaded.get("jobs", {}).values():
        yield from job["steps"]


SETUP = GITHUB / "actions" / "setup" / "action.yml"


def made(script: str) -> list[str]:
    """Return the targets of `make TARGET... NAME=VALUE...` in a script."""
    called = re.findall(r"^\s*make ([^\n]*)", script, re.MULTILINE)
    return [word for line in called for word in line.split() if "=" not in word]


@pytest.mark.parametrize("path", [*WORKFLOWS, SETUP], ids=lambda path: path.stem)
def test_a_workflow_makes_targets_that_exist(path: Path) -> None:
    called = [target for step in steps(path) for target in made(step.get("run", ""))]
    assert called
    assert set(called) <= TARGETS


@pytest.mark.parametrize("path", [*WORKFLOWS, SETUP], ids=lambda path: path.stem)
def test_an_action_is_pinned_by_its_commit(path: Path) -> None:
    used = re.findall(r"uses: (\S+)(.*)", path.read_text(encoding="utf-8"))
    for action, comment in used:
        assert action.startswith("./") or re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", action), action
        assert action.startswith("./") or re.fullmatch(r" # v\d+\.\d+\.\d+", comment), "its tag, which Dependabot reads"


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_job_has_the_rights_that_it_names_and_a_time_limit(path: Path) -> None:
    loaded = document(path)
    assert loaded["permissions"] == {}
    assert "pull_request_target" not in loaded["on"]
    for name, job in loaded["jobs"].items():
        assert job["permissions"], name
        assert job["timeout-minutes"], name
        writes = {right for right, level in job["permissions"].items() if level == "write"}
        assert not writes or job.get("environment"), f"{name} writes without an environment, which has reviewers"


def test_the_stages_of_make_test_are_jobs_of_ci() -> None:
    stages = re.search(r"^STAGES := (.*)$", MAKEFILE, re.MULTILINE)
    assert stages
    called = {target for step in steps(GITHUB / "workflows" / "ci.yml") for target in made(step.get("run", ""))}
    assert set(re.split(r"[ +]", stages[1])) <= called


def test_a_release_is_built_from_no_cache() -> None:
    text = (GITHUB / "workflows" / "release.yml").read_text(encoding="utf-8")
    assert "actions/cache" not in text
    assert "./.github/actions/setup" not in text


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_a_form_asks_for_the_output_of_commands_that_exist(path: Path) -> None:
    form = document(path)
    assert {"name", "description", "body"} <= set(form)
    ids = [each["id"] for each in form["body"] if each["type"] != "markdown"]
    assert len(ids) == len(set(ids))
    commands = {each.name or each.callback.__name__ for each in app.registered_commands if each.callback}
    text = path.read_text(encoding="utf-8")
    assert set(re.findall(r"\bmptj ([a-z]+)", text)) - {"itself"} <= commands


def test_links_of_the_files_for_reporters_exist() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in (*FORMS, GITHUB / "pull_request_template.md"))
    named = set(re.findall(r"\b(?:docs/)?[\w/-]+\.md\b", text))
    assert named
    assert [name for name in named if not (ROOT / name).is_file()] == []
