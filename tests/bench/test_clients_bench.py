"""`make bench-client` still produces its figures; what needs an index or a kubelet is looked at by its parts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.client.notebook_size import PINS, installed, pins
from tests.left_out import leave_out
from tests.testbed import missing

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.cluster
@pytest.mark.soak
def test_imports_and_submitting_are_measured() -> None:
    if absent := missing():
        leave_out(absent)
    done = subprocess.run(
        [sys.executable, "-m", "bench.client", "--quick"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    figures = {each["name"]: each for each in map(json.loads, done.stdout.splitlines())}
    assert figures.keys() == {
        "client.import_mptraining_cpu_seconds",
        "client.import_tensorflow_cloud_cpu_seconds",
        "client.run_to_created_seconds",
    }
    for each in figures.values():
        assert each["value"] > 0
        assert each["met"] == (each["ratio"] <= 1)
    # What is not used is not loaded: less than Kubernetes' client alone would take.
    assert figures["client.import_mptraining_cpu_seconds"]["value"] < 0.5


def test_sizes_are_those_of_the_records(tmp_path: Path) -> None:
    for name, rows in {
        "obstore-0.12.1": "obstore/a.py,sha256=x,1000\nobstore-0.12.1.dist-info/RECORD,,\n",
        "typing_extensions-4.0": '"a,b.py",sha256=x,7\n../../bin/x,sha256=y,3\n',
    }.items():
        (tmp_path / f"{name}.dist-info").mkdir()
        (tmp_path / f"{name}.dist-info" / "RECORD").write_text(rows)
    assert installed(tmp_path) == {"obstore": 1000, "typing-extensions": 10}


def test_the_pins_are_colabs() -> None:
    found = pins(PINS.read_text(encoding="utf-8"))
    # What the project's facts say of Colab, and what it lacks.
    expected = {"keras": "3.13.2", "google-cloud-storage": "3.13.1", "requests": "2.32.4", "rich": "13.9.4"}
    assert expected.items() <= found.items()
    assert not {"kubernetes", "obstore", "pathspec", "mptraining"} & found.keys()
