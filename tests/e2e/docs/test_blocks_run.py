"""Every block of code in the documents is parsed, resolved or run.

A block whose first line names a file (`# job.yaml`) becomes that file; other Python blocks are run, and so are the
`mptj` commands of bash blocks, in the order of the document, in one folder for each `##` section. A YAML block that is
no whole object is a part of `spec`. Blocks of `text` are ignored. A Python block that begins with a magic (`%pip`)
is a notebook's cell: it is parsed here.

A section with a `kubectl` command needs a cluster: nothing in it is run. Its files are parsed here, and its commands
are checked by test_commands.py.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.unit.docs.blocks import SECTIONS, Block


def _sections(*, training: bool) -> list[Any]:
    return [
        pytest.param(found, id=f"{document}: {section}")
        for (document, section), found in SECTIONS.items()
        if any(block.trains for block in found) == training and not any(block.on_a_cluster for block in found)
    ]


@pytest.mark.parametrize("section", _sections(training=False))
def test_section(section: list[Block], tmp_path: Path) -> None:
    _run(section, tmp_path)


@pytest.mark.parametrize("section", _sections(training=True))
def test_section_that_trains(section: list[Block], tmp_path: Path) -> None:
    _run(section, tmp_path)


def _run(section: list[Block], folder: Path) -> None:
    for block in section:
        if block.file is not None:
            (folder / block.file).write_text(block.text, encoding="utf-8")
        elif block.language == "python" and not block.is_cell:
            _call(block, [sys.executable, "-c", block.text], folder)
        elif block.language == "bash":
            for program, *arguments in block.commands:
                if program == "mptj":
                    _call(block, [sys.executable, "-m", "mptraining", *arguments], folder)


def _call(block: Block, command: list[str], folder: Path) -> None:
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, check=False, text=True, timeout=600
    )
    told = f"{block.document}:{block.line}: {shlex.join(command[1:])}\n{done.stdout}{done.stderr}"
    assert done.returncode == 0, told
