"""kube-score's checks of the chart."""

from __future__ import annotations

import functools
import json
import re
import subprocess
from pathlib import Path

import pytest

from tests.testbed.binaries import binary
from tests.testbed.kubernetes.chart import EVERYTHING, render

ROOT = Path(__file__).parents[3]


@functools.cache
def rendered(everything: bool) -> str:
    return render(EVERYTHING if everything else {}, tests=True)


def exceptions() -> dict[str, str]:
    """Check of kube-score -> reason, as docs/architecture.md gives it."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = text.split("| kube-score asks for | Why not |\n|---|---|\n", 1)[1].split("\n\n", 1)[0]
    rows = [re.fullmatch(r"\| .*?`([\w-]+)`.*? \| (.+) \|", line) for line in table.strip().splitlines()]
    assert all(rows), table
    return {row[1]: row[2] for row in rows if row}


@pytest.mark.parametrize("everything", [False, True])
def test_kube_score_finds_nothing_but_the_exceptions(everything: bool) -> None:
    expected = set(exceptions())
    assert scored(rendered(everything)) == expected
    # Of the resources nothing is missing but that limit.
    assert scored(rendered(everything), "--ignore-container-cpu-limit") == expected - {"container-resources"}


def scored(text: str, *flags: str) -> set[str]:
    """The checks of kube-score that something does not meet."""
    command = [str(binary("kube-score")), "score", "--output-format", "json", "--kubernetes-version", "v1.34", *flags]
    done = subprocess.run([*command, "-"], input=text, capture_output=True, text=True, check=False, timeout=240)
    return {
        check["check"]["id"]
        for each in json.loads(done.stdout)
        for check in each["checks"] or ()
        if not check["skipped"] and check["grade"] < 10
    }
