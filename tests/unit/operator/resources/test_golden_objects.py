"""Every branch of the builders: a job, and its children as the API server accepts them.

The files are in tests/golden/children: `cluster` are the arguments of `resolve`, `job` is the input. `children` are
whole, or lines that differ from the children of the file `base`. The content of `job.json` is omitted. After a change
`MPTRAINING_GOLDEN_UPDATE=1` writes the results into the files; review them before the commit.
tests/apiserver/test_children_on_the_api_server.py sends the same children to a real API server.
"""

from __future__ import annotations

import difflib
import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from mptraining_api.resolve.resolve import ClusterSettings, resolve
from mptraining_api.spec import MPTrainingJob
from mptraining_operator.jobs.resources.environment import PodSettings
from mptraining_operator.jobs.resources.indexed_job import indexed_job
from mptraining_operator.jobs.resources.job_objects import Owner, config_map, job_digest, network_policy, service
from tests.fakes import with_image

FOLDER = Path(__file__).parents[3] / "golden" / "children"
UPDATE = bool(os.environ.get("MPTRAINING_GOLDEN_UPDATE"))
UID = "8d1c0a52-5d0c-4d8e-9f0e-2f6c1b7e4a11"
SETTINGS = PodSettings(
    grace_seconds=60,
    progress_url="https://mptraining-operator.mptraining-system.svc:8443",
    progress_certificate="(a certificate)",
)
JOB_FILE = "(the resolved job)"


def children(case: dict[str, Any]) -> list[dict[str, Any]]:
    job = MPTrainingJob.parse(case["job"])
    resolved = resolve(job, ClusterSettings(runtimes=with_image("mptraining/trainer:test"), **case["cluster"]))
    owner = Owner(
        namespace=job.metadata.namespace or "", name=job.metadata.name, uid=UID, created="2026-11-23T10:00:00Z"
    )
    pods = indexed_job(owner, resolved, attempt=1, settings=SETTINGS, digest=job_digest(JOB_FILE))
    return [service(owner.namespace), network_policy(owner.namespace), config_map(owner, JOB_FILE), pods]


def golden(name: str) -> dict[str, Any]:
    case: dict[str, Any] = yaml.load((FOLDER / f"{name}.yaml").read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
    return case


def as_text(found: list[dict[str, Any]]) -> list[str]:
    # Through JSON, so that YAML sees no object twice and writes no aliases.
    return yaml.safe_dump(json.loads(json.dumps(found)), sort_keys=False, width=120).splitlines()


def difference(base: list[dict[str, Any]], found: list[dict[str, Any]]) -> str:
    """Return the lines that differ, with the line before and after them."""
    lines = list(difflib.unified_diff(as_text(base), as_text(found), n=1, lineterm=""))[2:]
    return "\n".join("@@" if line.startswith("@@") else line for line in lines) + "\n"


class Lines(yaml.SafeDumper):
    """Writes text of several lines as such."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


Lines.add_representer(str, _text)


@pytest.mark.parametrize("file", sorted(FOLDER.glob("*.yaml")), ids=lambda file: file.stem)
def test_golden(file: Path) -> None:
    case = golden(file.stem)
    found = children(case)
    shown = difference(children(golden(case["base"])), found) if "base" in case else found
    if UPDATE:
        comments = [line for line in file.read_text(encoding="utf-8").splitlines() if line.startswith("#")]
        written = json.loads(json.dumps({**case, "children": shown}))
        text = yaml.dump(written, Dumper=Lines, sort_keys=False, width=120)
        file.write_text("\n".join([*comments, text]), encoding="utf-8")
        pytest.skip("golden file updated")
    # Key order too: text that is compared, hashed or shown must be the same every time.
    assert json.dumps(shown) == json.dumps(case["children"]), shown
