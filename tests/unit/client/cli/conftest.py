"""`mptj` in this process, which a test of its output needs no interpreter of its own for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from mptraining.cli.main import main


@dataclass(frozen=True)
class Ended:
    """The end of a command, with the names of `subprocess.CompletedProcess`."""

    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def mptj(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ended]:
    """Runs a command line through the entry point of `mptj`."""

    def call(*arguments: str) -> Ended:
        capsys.readouterr()
        with pytest.raises(SystemExit) as raised:
            main(arguments)
        printed = capsys.readouterr()
        assert isinstance(raised.value.code, int)
        return Ended(raised.value.code, printed.out, printed.err)

    return call
