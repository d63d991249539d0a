"""What `helm install` prints at its end."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.testbed.kubernetes.chart import CHART, documents, render

pytestmark = pytest.mark.integration

Notes = Callable[[dict[str, Any]], str]
DIGEST = "sha256:" + "0" * 64
HUB = "pull them from Docker Hub"


@pytest.fixture
def notes(tmp_path: Path) -> Notes:
    """Return the notes as an object: `helm template` leaves them out, and `helm install` asks a cluster."""
    chart = tmp_path / "chart"
    shutil.copytree(CHART, chart, ignore=shutil.ignore_patterns("crd*.yaml", "tests"))
    templates = chart / "templates"
    text = (templates / "NOTES.txt").read_text(encoding="utf-8")
    (templates / "NOTES.txt").unlink()
    for other in templates.glob("*.yaml"):
        other.unlink()
    (templates / "_notes.tpl").write_text(f'{{{{ define "notes" }}}}{text}{{{{ end }}}}', encoding="utf-8")
    (templates / "notes.yaml").write_text('notes: {{ include "notes" . | toJson }}', encoding="utf-8")

    def notes(values: dict[str, Any]) -> str:
        (found,) = documents(render(values, chart=chart))
        return str(found["notes"])

    return notes


def test_images_without_a_registry_are_warned_of_by_name(notes: Notes) -> None:
    text = notes({"image": {"tag": "1"}, "trainer": {"tag": "1"}})
    assert HUB in text
    assert "global.imageRegistry" in text
    named = [line.strip() for line in text.splitlines() if line.startswith("  mptraining/")]
    assert named == [f"mptraining/{each}" for each in ("operator:1", "trainer:1", "trainer:1-gpu", "trainer:1-tpu")]


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"settings": {"trainerImage": "own.example/t:1"}}, ["mptraining/operator:1"]),
        ({"settings": {"trainerImage": "own.example/t:1"}, "board": {"enabled": True, "image": {"tag": "1"}}},
         ["mptraining/board:1", "mptraining/operator:1"]),
        ({"trainer": {"registry": "own.example"}, "image": {"digest": DIGEST}}, [f"mptraining/operator@{DIGEST}"]),
    ],
)  # fmt: skip
def test_only_images_that_nothing_names_are_warned_of(values: dict[str, Any], named: list[str], notes: Notes) -> None:
    values = {**values, "image": {"tag": "1", **values.get("image", {})}}
    assert [line.strip() for line in notes(values).splitlines() if line.startswith("  mptraining/")] == named


@pytest.mark.parametrize(
    "values",
    [
        # What release/chart.py writes into the chart that is published.
        {"global": {"imageRegistry": "registry.example"}, "image": {"digest": DIGEST}, "board": {"enabled": True}},
        {"image": {"repository": "team/operator"}, "settings": {"trainerImage": "team/trainer:1"}},
    ],
)
def test_images_of_a_registry_or_of_another_owner_are_not(values: dict[str, Any], notes: Notes) -> None:
    assert HUB not in notes(values)
