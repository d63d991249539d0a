"""Help of the commands in the words of a shell's user, without the names of Python's types."""

from __future__ import annotations

import re
from typing import Any

import typer
from typer.core import TyperCommand

_TYPES = re.compile(r" <(str|int|float|int range|float range|list\[str\])>")


class PlainCommand(TyperCommand):
    """A command whose help shows `FILE...` instead of `{FILE...}... <list[str]>`."""

    def get_help(self, ctx: Any) -> str:
        return plain(super().get_help(ctx))

    def get_usage(self, ctx: Any) -> str:
        return plain(super().get_usage(ctx))


def plain(text: str) -> str:
    """Return the help text without types, its columns unchanged, and with the usual notation of arguments."""
    text = _TYPES.sub(lambda match: " " * len(match[0]), text)
    text = re.sub(r"\{([^{}\n]+?)\.\.\.\}\.\.\.", r"\1...", text)
    text = re.sub(r"\[\[(\w+)\]\]\.\.\.", r"[\1...]", text)
    return re.sub(r"(?<=[ \n])\{([A-Z_]+)\}", r"\1", text)


def use_plain_help(app: typer.Typer) -> None:
    """Give every command of `app` plain help."""
    for each in app.registered_commands:
        each.cls = PlainCommand
