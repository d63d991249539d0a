"""What is in .github: workflows make targets that exist, pin actions by commit, and have no more rights than needed.

`make lint` runs actionlint and zizmor on them.
"""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
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
    assert set(called) <= TARGETS


def test_contributors_find_every_target_in_the_table() -> None:
    listed = set(re.findall(r"^([a-z-]+):.*## ", MAKEFILE, re.MULTILINE)) - {"help"}
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    told = {word for call in re.findall(r"`make ([^`]+)`", text) for word in call.split() if "=" not in word}
    assert listed - told == set()


def test_dependabot_has_an_entry_for_the_dockerfile_only_if_it_can_read_the_base() -> None:
    named = {each["package-ecosystem"] for each in document(GITHUB / "dependabot.yml")["updates"]}
    base = re.findall(r"^FROM (\S+) AS system$", (ROOT / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE)
    assert ("docker" in named) == (base != ["${BASE}"])


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


@pytest.mark.parametrize(
    ("tag", "passes"),
    [
        *((tag, True) for tag in ("v0.2.0", "v10.0.12", "v0.2.0rc1", "v1.0.0a2", "v0.2.0.dev1")),
        *((tag, False) for tag in ("v0.2", "v0.2.0-rc1", "v0.2.0;id", "v0.2.0$(id)", "v0.2.0`id`", "v0.2.0\nid")),
    ],
)
def test_a_release_starts_with_a_test_of_its_tag(tag: str, passes: bool, tmp_path: Path) -> None:
    (first, *_) = steps(GITHUB / "workflows" / "release.yml")
    environment = {"GITHUB_REF_NAME": tag, "GITHUB_ENV": str(tmp_path / "env"), "PATH": os.environ["PATH"]}
    done = subprocess.run(["bash", "-c", first["run"]], env=environment, capture_output=True, check=False)
    assert (done.returncode == 0) == passes


def test_ci_installs_the_wheel_in_the_newest_python_that_is_promised() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    promised = [each.rpartition(" ")[2] for each in project["classifiers"] if re.search(r":: 3\.\d+$", each)]
    setup = document(GITHUB / "workflows" / "ci.yml")["jobs"]["wheel"]["steps"][1]
    assert setup["with"]["python-version"] == promised[-1]


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
