"""IPython's shell for a notebook's program that runs without IPython: shell commands and a few magics.

The client converts a notebook into a program (`mptraining.packaging.notebooks`), whose magics call `get_ipython()` of
this module. `pip install` does nothing here: the packages were installed before the program began. `source_location`
maps a line of such a program to its notebook cell.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import CodeType
from typing import Any

_PIP = re.compile(r"\s*(?:\S+\s+-m\s+)?pip[\d.]*\s+install\b")
# IPython expands {name} and $name; names that are no variables of the program are left to the shell.
_VARIABLE = re.compile(r"(?<!\$)(?:\{(\w+)\}|\$(\w+))")
_BY_SHELL = frozenset({"ls", "mkdir", "cat", "cp", "mv", "rm"})
# Magics for display or for an editor, which a program does not need.
_SILENT = frozenset(
    {
        "matplotlib", "load_ext", "reload_ext", "autoreload", "tensorboard", "config", "pinfo", "pinfo2", "who", "whos",
        "history", "tensorflow_version", "reset", "precision", "autosave", "automagic",
        "html", "HTML", "javascript", "js", "markdown", "latex", "svg", "SVG",
    }
)  # fmt: skip


class Shell:
    """The part of IPython's shell that a training program needs."""

    def system(self, command: str) -> None:
        """Run `!command` with the program's stdout and stderr. As in a notebook, a failing command is no error."""
        if not _PIP.match(command):
            _run(_expanded(command, sys._getframe(1).f_globals))

    def getoutput(self, command: str) -> list[str]:
        """Run `x = !command` and return the lines of its output."""
        done = _run(_expanded(command, sys._getframe(1).f_globals), capture_output=True, text=True, errors="replace")
        return (done.stdout + done.stderr).splitlines()

    def run_line_magic(self, name: str, line: str) -> Any:
        """Run `%name line`; ignore an unknown magic with a message on stderr."""
        variables = sys._getframe(1).f_globals
        if name in ("time", "timeit"):
            return _execute(line, variables)
        line = _expanded(line, variables)
        if name in ("env", "set_env"):
            return _environment(line)
        if name == "cd":
            os.chdir(Path(line.strip() or "~").expanduser())
        elif name == "pwd":
            return str(Path.cwd())
        elif name in _BY_SHELL:
            _run(f"{name} {line}")
        elif name not in _SILENT and name != "pip":
            _report_ignored(f"%{name}")
        return None

    def run_cell_magic(self, name: str, line: str, cell: str) -> None:
        """Run `%%name line` with the cell below it; ignore an unknown magic with a message on stderr."""
        if name in ("writefile", "file"):
            _write(_expanded(line, sys._getframe(1).f_globals), cell)
        elif name in ("bash", "sh", "shell"):
            _run(cell)
        elif name == "script":
            subprocess.run(shlex.split(line), input=cell, text=True, check=False)  # noqa: S603 - the user's own program
        elif name not in _SILENT:
            _report_ignored(f"%%{name}")

    def magic(self, text: str) -> Any:
        """Run a line magic by IPython's older call."""
        name, _, line = text.strip().removeprefix("%").partition(" ")
        return self.run_line_magic(name, line)


_SHELL = Shell()


def get_ipython() -> Shell:
    return _SHELL


def _run(command: str, **options: Any) -> subprocess.CompletedProcess[str]:
    # The flush keeps the program's earlier output before the command's.
    sys.stdout.flush()
    bash = "/bin/bash" if Path("/bin/bash").exists() else None
    return subprocess.run(command, shell=True, executable=bash, check=False, **options)  # noqa: S602 - the user's own program


def _expanded(text: str, variables: Mapping[str, Any]) -> str:
    def value(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        return str(variables[name]) if name in variables else match[0]

    return _VARIABLE.sub(value, text)


def _execute(text: str, variables: dict[str, Any]) -> Any:
    try:
        code: CodeType = compile(text, "<%time>", "eval")
    except SyntaxError:
        exec(compile(text, "<%time>", "exec"), variables)  # noqa: S102 - the user's own program
        return None
    return eval(code, variables)  # noqa: S307 - the user's own program


def _environment(line: str) -> str | None:
    name, _, value = line.strip().partition("=") if "=" in line else line.strip().partition(" ")
    if value:
        os.environ[name.strip()] = value.strip()
        return None
    return os.environ.get(name.strip())


def _write(line: str, cell: str) -> None:
    words = shlex.split(line)
    append = bool({"-a", "--append"} & set(words))
    name = next(word for word in words if not word.startswith("-"))
    with Path(name).expanduser().open("a" if append else "w", encoding="utf-8") as file:
        file.write(cell)


def _report_ignored(magic: str) -> None:
    print(f"{magic} is not known here, and is passed over", file=sys.stderr, flush=True)  # noqa: T201


_CELL = re.compile(r"# %% (.+, cell \d+)")


def source_location(file: str, line: int) -> str:
    """Return `train.ipynb, cell 3, line 2` for a line of a notebook's program, `file:line` for any other."""
    try:
        lines = Path(file).read_text(encoding="utf-8").splitlines()[:line]
    except (OSError, UnicodeDecodeError):
        lines = []
    for above, text in enumerate(reversed(lines)):
        match = _CELL.fullmatch(text)
        if match:
            return f"{match[1]}, line {above}" if above else match[1]
    return f"{file}:{line}"
