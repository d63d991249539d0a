"""Output of `mptj`: problems on standard error with their exit codes, tables, and documents in kubectl's formats."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from mptraining_api import outcomes
from mptraining_api.problems import ArgumentPlace, Place, Problem
from mptraining_api.validation.job_text import KIND

if TYPE_CHECKING:
    from rich.console import Console


def report(problem: Problem) -> int:
    """Print the problem on standard error, one line for each mistake; return the exit code."""
    from mptraining.display.text import wrapped
    from mptraining_api.validation.mistakes import InvalidJobFile

    problem.renamed(lambda location: location.option if isinstance(location, ArgumentPlace) else location)
    if isinstance(problem, InvalidJobFile) and len(problem.mistakes) > 1:
        note(f"{problem}\nmptj: {len(problem.mistakes)} mistakes; nothing was started")
    else:
        note(wrapped(f"mptj: {problem}", sys.stderr))
    return exit_code(problem)


def exit_code(problem: Problem) -> int:
    """Return the exit code of a command that ends with the problem."""
    code = getattr(problem, "exit_code", None)
    return code if isinstance(code, int) else outcomes.by_reason(problem.reason).exit_code


def for_each(names: Iterable[str], act: Callable[[str], object]) -> int:
    """Call `act` for every name, report its problems, and return the highest exit code."""
    from mptraining_api import launch

    worst = 0
    for name in names:
        try:
            act(name)
        except Problem as problem:
            if os.environ.get(launch.DEBUG):
                raise
            worst = max(worst, report(problem))
    return worst


def note(text: str) -> None:
    """Print a line on standard error, which keeps it out of documents and tables."""
    click.echo(text, err=True)


def print_table(table: Iterable[Sequence[str]], indent: str = "") -> None:
    """Print rows as lines, each column as wide as its longest cell."""
    rows = list(table)
    wide = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    for row in rows:
        click.echo(indent + "   ".join(map(str.ljust, row, wide)).rstrip())


def print_objects(documents: Sequence[Mapping[str, Any]], form: str, *, many: bool = False) -> None:
    """Print Kubernetes objects as `kubectl get` does: one as it is, several, or with `many` any number, as a List."""
    if form == "name":
        for document in documents:
            kind = str(document.get("kind", KIND)).lower()
            group = "" if document.get("apiVersion") == "v1" else ".mptraining.dev"
            click.echo(f"{kind}{group}/{document['metadata']['name']}")
    else:
        is_list = many or len(documents) != 1
        print_document({"apiVersion": "v1", "kind": "List", "items": [*documents]} if is_list else documents[0], form)


def print_document(document: object, form: str) -> None:
    if form == "json":
        click.echo(json.dumps(document, indent=2))
        return
    from mptraining.job_file.yaml_writer import to_yaml

    click.echo(to_yaml(document), nl=False)


def without_limit(console: Console) -> Console:
    """Return the console with unlimited width if it is a pipe, so that rich does not cut lines at 80 columns."""
    if not console.is_terminal:
        console.width = 10_000
    return console


def typed_command() -> str:
    """Return the command line of this process, for the text that says how to continue."""
    return shlex.join(["mptj", *sys.argv[1:]])


def named(options: Mapping[str, str], location: Place) -> str | Place:
    """Return the option or argument that sets a field of the command's job; the place itself for another one."""
    return options.get(re.sub(r"\[\d+\]$", "", str(location)), location)


@contextmanager
def fields_named(options: Mapping[str, str]) -> Iterator[None]:
    """In the block, name the fields of the command's job by its options in the problems raised."""
    try:
        yield
    except Problem as problem:
        problem.renamed(partial(named, options))
        raise
