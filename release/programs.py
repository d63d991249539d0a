"""The programs that a release runs: those of `make release-tools`, else of PATH; and its progress for people."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from kind.engine import ROOT, Failed

TOOLS = ROOT / "build" / "release-tools"
_KEPT_LINES = 15


def program(name: str) -> str:
    """Return the path of cosign, oras, helm or uv. Raises Failed with the command that provides it."""
    for folder in (TOOLS, ROOT / "build" / "bin", Path(sys.executable).parent):
        if (folder / name).is_file():
            return str(folder / name)
    found = shutil.which(name)
    if found is None:
        raise Failed(f"no {name} here: make release-tools")
    return found


def run(
    *command: str | Path,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
    text: str | None = None,
) -> str:
    """Run a program and return its standard output. Raises Failed with the last lines of what it said."""
    done = attempt(*command, folder=folder, environment=environment, text=text)
    if done.returncode != 0:
        said = "\n".join((done.stdout + done.stderr).strip().splitlines()[-_KEPT_LINES:])
        shown = " ".join([Path(command[0]).name, *map(str, command[1:4])])
        raise Failed(f"{shown} … ended with {done.returncode}:\n{said}")
    return done.stdout


def attempt(
    *command: str | Path,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
    text: str | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a program and return how it ended."""
    return subprocess.run(
        [str(each) for each in command],
        cwd=folder or ROOT,
        env=os.environ | dict(environment or {}),
        input=text,
        capture_output=True,
        text=True,
        check=False,
    )


def say(text: str) -> None:
    print(f"release: {text}", flush=True)
