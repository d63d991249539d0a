"""The replacement of IPython in a notebook's program; tests/unit/client/packaging/test_notebooks.py runs whole ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from mptraining_trainer.notebook_shell import get_ipython

colour = "red"


def test_variables_of_the_program_are_filled_in(capfd: pytest.CaptureFixture[str]) -> None:
    shell = get_ipython()
    assert shell.getoutput("echo {colour} $colour ${colour:-none} {nothing} $nothing.") == ["red red none {nothing} ."]
    assert shell.getoutput("echo 1; echo 2 >&2; exit 3") == ["1", "2"]
    # What a command prints is the program's.
    for command in ("echo {colour}", "pip install of-no-use", "python3 -m pip  install of-no-use"):
        shell.system(command)
    assert capfd.readouterr().out == "red\n"


def test_line_magics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLOWER", "rose")
    shell = get_ipython()
    assert shell.run_line_magic("env", "FLOWER") == "rose"
    shell.run_line_magic("env", "FLOWER=tulip")
    assert shell.run_line_magic("env", "FLOWER") == "tulip"
    shell.run_line_magic("set_env", "FLOWER {colour}")
    assert shell.magic("%env FLOWER") == "red"
    shell.magic("mkdir below")
    shell.run_line_magic("cd", "below")
    assert shell.run_line_magic("pwd", "") == str(tmp_path / "below")
    assert shell.run_line_magic("time", "1 + len(colour)") == 4
    with pytest.raises(ZeroDivisionError):
        shell.run_line_magic("time", "1 / 0")
    with pytest.raises(FileNotFoundError):
        shell.run_line_magic("cd", "nowhere")


def test_cell_magics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    shell = get_ipython()
    shell.run_cell_magic("writefile", "{colour}.txt", "a\n")
    shell.run_cell_magic("writefile", "-a red.txt", "{colour}\n")
    assert (tmp_path / "red.txt").read_text() == "a\n{colour}\n"
    shell.run_cell_magic("script", "cat -n", "x\n")
    shell.run_cell_magic("sh", "", "cat red.txt\n")
    shell.run_cell_magic("html", "", "<b>")
    shell.run_cell_magic("R", "", "plot(1)")
    said = capfd.readouterr()
    assert said.out == "     1\tx\na\n{colour}\n"
    assert said.err == "%%R is not known here, and is passed over\n"
