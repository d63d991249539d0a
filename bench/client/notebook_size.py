"""The packages that pip adds to Colab's in a notebook, in bytes as installed.

pip resolves the wheel of this checkout for Colab's Python under the pins of tests/requirements-colab.lock; a package
that has no pin there is an additional one. Its size is that of its RECORD.
"""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.rounds import ROOT

PINS = ROOT / "tests" / "requirements-colab.lock"
# googlecolab/backend-info, os-info.txt of 2026-08-19: Python 3.13 on Ubuntu 22.04, whose glibc is 2.35.
_PLATFORMS = ("manylinux_2_34_x86_64", "manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")
_COLAB = ["--python-version=3.13", "--only-binary=:all:", *(f"--platform={each}" for each in _PLATFORMS)]


def newcomers() -> dict[str, int]:
    """Return the bytes of each package that Colab lacks, including mptraining itself. Needs a package index."""
    with tempfile.TemporaryDirectory(prefix="mptraining-bench-") as name:
        folder = Path(name)
        _call(sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder / "wheels"))
        (wheel,) = (folder / "wheels").glob("*.whl")
        pinned = pins(PINS.read_text(encoding="utf-8"))
        (folder / "pins.txt").write_text("".join(f"{name}=={version}\n" for name, version in pinned.items()))
        target = folder / "installed"
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(target), *_COLAB]
        report = folder / "report.json"
        _call(*pip, "--dry-run", "--ignore-installed", f"--report={report}", "-c", str(folder / "pins.txt"), str(wheel))
        resolved = {
            canonical(each["metadata"]["name"]): each["metadata"]["version"]
            for each in json.loads(report.read_text(encoding="utf-8"))["install"]
        }
        changed = {name: version for name, version in resolved.items() if pinned.get(name, version) != version}
        assert not changed, f"pip would change what Colab has: {changed}"
        wanted = [f"{name}=={resolved[name]}" for name in resolved.keys() - pinned.keys() - {"mptraining"}]
        _call(*pip, "--no-deps", "--no-compile", *wanted, str(wheel))
        return installed(target)


def pins(lock: str) -> dict[str, str]:
    """Return name and version of each line of a lock."""
    return {canonical(name): version for name, version in re.findall(r"^([\w.-]+)==([\w.+!]+)", lock, re.MULTILINE)}


def installed(folder: Path) -> dict[str, int]:
    """Return the bytes of each distribution in a folder, by its RECORD."""
    sizes = {}
    for record in sorted(folder.glob("*.dist-info/RECORD")):
        with record.open(encoding="utf-8", newline="") as file:
            sizes[canonical(record.parent.name.split("-", maxsplit=1)[0])] = sum(
                int(size) for _, _, size in csv.reader(file) if size
            )
    return sizes


def canonical(name: str) -> str:
    """Return the name in the form in which packages are compared: PEP 503."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _call(*command: str) -> None:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command[:6])} …: {done.stderr[-2000:]}")
