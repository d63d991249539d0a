"""A container's command line as `program.script`: which Python file it runs, and with which arguments."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

_INTERPRETER = re.compile(r"python[0-9.]*")
_SHELLS = ("sh", "bash", "dash", "ash", "zsh")
# Options of the interpreter without a value, such as -u and -OO.
_OPTION = re.compile(r"-[bBdEiIOqsSuvx]+")
_VARIABLE = re.compile(r"\$\$|\$\(([^()]+)\)")
# What a shell would expand or run.
_SHELL_SYNTAX = re.compile(r"[`$*?\[\]{}~\\]")


@dataclass(frozen=True, slots=True)
class CommandLine:
    """The Python file that is run, as the container names it; `folder` is the one that `cd` changes to."""

    file: str
    arguments: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    folder: str | None = None


class NoScript(Exception):
    """The command line runs no Python file; the first argument is what it is, the second what to do."""

    def __init__(self, found: str, next_step: str) -> None:
        super().__init__(found)
        self.found = found
        self.next_step = next_step


_NAME_IT = "Name the Python file that trains: --script train.py."


def expanded(words: Sequence[str], environment: Mapping[str, str | None]) -> list[str]:
    """Return the words with $(NAME) replaced, as the kubelet does. A value of None is known in the pod alone.

    Raises NoScript for such a value.
    """

    def value(found: re.Match[str]) -> str:
        if found[1] is None:
            return "$"
        if found[1] not in environment:
            return found[0]
        text = environment[found[1]]
        if text is None:
            raise NoScript(
                f"$({found[1]}) has its value from elsewhere, and is known in the pod alone",
                f"Let the script read {found[1]} from its environment, and take the argument out.",
            )
        return text

    return [_VARIABLE.sub(value, word) for word in words]


def parse(command: Sequence[str], arguments: Sequence[str]) -> CommandLine:
    """Return the Python file that `command` and `args` of a container run. Raises NoScript."""
    words = [*command, *arguments]
    if not words:
        raise NoScript("no command: the entrypoint of the image is what runs, and it is not in this file", _NAME_IT)
    name = PurePosixPath(words[0]).name
    if name in _SHELLS:
        return _of_shell(words)
    if _INTERPRETER.fullmatch(name):
        return _of_python(words[1:])
    if name.endswith(".py"):
        return CommandLine(words[0], tuple(words[1:]))
    if not command:
        raise NoScript("arguments of the image's entrypoint, which is not in this file", _NAME_IT)
    raise NoScript(f"{words[0]!r} is no Python program", _NAME_IT)


def _of_shell(words: Sequence[str]) -> CommandLine:
    rest = list(words[1:])
    while rest and rest[0].startswith("-") and not re.fullmatch(r"-[a-z]*c", rest[0]):
        rest.pop(0)
    if not rest or not rest[0].startswith("-"):
        raise NoScript("a shell script", f"A job runs a Python file. {_NAME_IT}")
    rest.pop(0)
    if rest and rest[0] == "--":
        rest.pop(0)
    found = "a line of a shell, which does more than to start one Python file"
    step = f"Move what comes before it into the image or the script. {_NAME_IT}"
    if len(rest) != 1 or _SHELL_SYNTAX.search(rest[0]):
        raise NoScript(found, step)
    try:
        lexer = shlex.shlex(rest[0], posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        parts = list(lexer)
    except ValueError:
        raise NoScript(found, step) from None
    folder = None
    if parts[:1] == ["cd"] and parts[2:3] == ["&&"]:
        folder, parts = parts[1], parts[3:]
    if parts[:1] == ["exec"]:
        parts = parts[1:]
    if not parts or any(set(part) <= set("();<>|&") for part in parts):
        raise NoScript(found, step)
    line = parse(parts[:1], parts[1:])
    return CommandLine(line.file, line.arguments, line.options, folder)


def _of_python(words: Sequence[str]) -> CommandLine:
    rest, options = list(words), list[str]()
    while rest and rest[0].startswith("-"):
        option = rest.pop(0)
        if option == "-m":
            module = rest[0] if rest else ""
            raise NoScript(f"python -m {module}: a module", f"Name its file: --script {module.replace('.', '/')}.py.")
        if option in ("-X", "-W") and rest:
            options += [option, rest.pop(0)]
        elif _OPTION.fullmatch(option):
            options.append(option)
        else:
            raise NoScript(f"python {option}: no file", _NAME_IT)
    if not rest:
        raise NoScript("an interpreter without a file", _NAME_IT)
    return CommandLine(rest[0], tuple(rest[1:]), tuple(options))
