"""The versions that a run of the tests used, for docs/compatibility.md.

With MPTRAINING_COMPATIBILITY=FILE pytest adds to FILE a row for each tier with the versions of Python, TensorFlow,
Keras and Kubernetes, and how many tests passed and failed. `make compatibility` merges files of build/compatibility.
"""

from __future__ import annotations

import json
import platform
import subprocess
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from kind.kubectl import kubectl
from tests.testbed.binaries import binary

VARIABLE = "MPTRAINING_COMPATIBILITY"
OLDER = "older Keras"
_TIERS = ("kind", "training", "cluster", "browser", "integration")
_OLDER_PYTHON = Path(__file__).parents[1] / "build" / "keras-older" / "bin" / "python"
_TRAINS = ("training", OLDER)
_ASK = "import importlib.metadata as m, json; print(json.dumps({n: m.version(n) for n in ('tensorflow-cpu', 'keras')}))"


class Recorder:
    """A pytest plugin that counts the tests of each tier and writes their rows at the end."""

    def __init__(self, file: Path, versions: Callable[[str], Mapping[str, str]]) -> None:
        """`versions` returns those that the tests of a tier used."""
        self._file = file
        self._versions = versions
        self._counts: Counter[tuple[str, str]] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.outcome in ("passed", "failed"):
            self._counts[tier(report.nodeid, report.keywords), report.outcome] += 1

    def pytest_sessionfinish(self) -> None:
        rows = [
            {"tests": each, **self._versions(each), **{name: self._counts[each, name] for name in ("passed", "failed")}}
            for each in sorted({name for name, _ in self._counts})
        ]
        if rows:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            # `make soak` starts pytest several times with one file.
            if self._file.exists():
                # Every run of the tests imports this module, and few record.
                from tools.compatibility import merge

                rows = merge(json.loads(self._file.read_text(encoding="utf-8")), rows)
            self._file.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def tier(nodeid: str, keywords: Collection[str] | Mapping[str, Any]) -> str:
    """Return the tier of a test by its markers; tests with the environment build/keras-older are one of their own."""
    if "an_older_keras" in nodeid:
        return OLDER
    return next((each for each in _TIERS if each in keywords), "unit")


def versions(tier: str) -> dict[str, str]:
    """Return the date and the versions that the tests of a tier use on this machine."""
    found = {"date": datetime.now(UTC).strftime("%Y-%m-%d"), "python": platform.python_version()}
    if tier in _TRAINS:
        found |= {"tensorflow": metadata.version("tensorflow-cpu"), "keras": metadata.version("keras")}
        found["tf_keras"] = metadata.version("tf-keras")
    if tier == OLDER:
        done = subprocess.run([_OLDER_PYTHON, "-c", _ASK], capture_output=True, text=True, check=True)
        older = json.loads(done.stdout)
        found |= {"tensorflow": older["tensorflow-cpu"], "keras": older["keras"]}
        del found["tf_keras"]
    if tier == "cluster":
        done = subprocess.run([binary("kube-apiserver"), "--version"], capture_output=True, text=True, check=True)
        found["kubernetes"] = done.stdout.split()[-1].removeprefix("v")
    if tier == "kind":
        answer = json.loads(kubectl("version", "--output=json"))
        found["kubernetes"] = answer["serverVersion"]["gitVersion"].removeprefix("v")
    return found


def register(config: pytest.Config, file: str) -> None:
    """Count in this process, unless it is a worker of xdist, whose reports the first process gets."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Recorder(Path(file).absolute(), versions), "compatibility")
