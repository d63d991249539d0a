"""Verbs that people know from other tools."""

from __future__ import annotations

from typing import Any

import pytest

from mptraining.cli.main import _commands
from mptraining.cli.shell.command_groups import GROUPS
from mptraining.cli.shell.verbs import translate
from mptraining_api.problems import InvalidSpec

KNOWN = ("run", "submit", "list", "status", "logs", "wait", "cancel", "suspend", "resume", "check", "records", "init")


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("ls", "list"), ("ps -A", "list -A"), ("get", "list"), ("get jobs", "list"),
        ("get mptj flowers", "status flowers"),
        ("get flowers -o json", "status flowers -o json"), ("get -o json", "list -o json"),
        ("describe flowers", "status flowers"), ("describe job flowers", "status flowers"),
        ("delete flowers roses", "cancel flowers roses"), ("rm flowers", "cancel flowers"),
        ("help", "--help"), ("help run", "run --help"), ("--version", "--version"), ("run ls", "run ls"),
    ],
)  # fmt: skip
def test_an_alias_is_the_command_that_does_the_same(typed: str, meant: str) -> None:
    assert translate(typed.split(), KNOWN) == (meant.split(), None)


def test_stop_keeps_the_job_and_says_so() -> None:
    arguments, note = translate(["stop", "flowers"], KNOWN)
    assert arguments == ["suspend", "flowers"]
    assert note == "stop is `mptj suspend`: it keeps the job; `mptj cancel` deletes it"


@pytest.mark.parametrize(
    ("verb", "hint"),
    [
        ("trian", "Here: `mptj run FILE`."), ("train", "Here: `mptj run FILE`."), ("apply", "`mptj submit FILE`"),
        ("validate", "`mptj check FILE`"), ("kill", "`mptj suspend NAME` keeps it"), ("chek", "Did you mean 'check'?"),
        ("xyzzy", "`mptj --help` lists the commands."),
    ],
)  # fmt: skip
def test_a_wrong_verb_gets_a_hint(verb: str, hint: str) -> None:
    with pytest.raises(InvalidSpec, match=f"there is no command '{verb}'") as caught:
        translate([verb, "x"], KNOWN)
    assert hint in str(caught.value)


def test_help_has_every_command_in_one_group_and_uncut_lines_of_80_columns(mptj: Any) -> None:
    grouped = [name for group in GROUPS.values() for name in group]
    assert sorted(grouped) == sorted(_commands())
    for command in ((), ("sweep",), ("records",)):
        shown = mptj(*command, "--help").stdout
        described = shown[shown.index("-h, --help") :].splitlines()
        assert all(len(line) <= 80 and not line.endswith("...") for line in described), shown
        assert all(line.startswith("  ") and line[2] != " " for line in described[2:] if line and line[-1] != ":"), (
            shown
        )
    assert next(iter(GROUPS.values())).keys() >= {"init", "check", "run"}


def test_usage_names_files_and_the_values_of_options(mptj: Any) -> None:
    for command, said in (
        (["sweep"], ["Usage: mptj sweep [OPTIONS] FILE | COMMAND [ARGS]..."]),
        (["records", "convert"], ["--label COLUMN", "--image-size HEIGHTxWIDTH"]),
    ):
        shown = mptj(*command, "--help").stdout
        assert all(text in shown for text in said)
