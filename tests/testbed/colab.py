"""A virtual environment with Colab's packages, and the wheel of this checkout for its `%pip install mptraining`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
LOCK = ROOT / "tests" / "requirements-colab.lock"


def environment(folder: Path) -> Path:
    """Create the environment in `folder`; return its Python."""
    call(sys.executable, "-m", "venv", str(folder))
    python = folder / "bin" / "python"
    install = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", str(python)]
    call(*install, "--require-hashes", "--no-deps", "--compile-bytecode", "-r", str(LOCK))
    check(python)
    return python


def index(wheels: Path) -> dict[str, str]:
    """Build the wheel in `wheels`; return the variables with which pip finds it."""
    call(sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(wheels))
    links = f"{os.environ.get('PIP_FIND_LINKS', '')} {wheels}".strip()
    # A checkout has a development version, which pip installs only when it is named.
    return {"PIP_FIND_LINKS": links, "PIP_PRE": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


def check(python: Path) -> None:
    """Fail if a package lacks another one, or has a version of it that it does not allow."""
    call(str(python), "-m", "pip", "check")


def packages(python: Path) -> dict[str, str]:
    """Return name and version of all installed packages."""
    listed = json.loads(call(str(python), "-m", "pip", "list", "--format=json"))
    return {each["name"].lower(): each["version"] for each in listed}


def call(*command: str) -> str:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"
    return done.stdout
