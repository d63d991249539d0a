"""`mptj`: what can be typed. Commands import what they need when they run, so that `--help` is quick.

Exit codes: 0; 2 for a mistake of the user, told in one line; 75 when the cluster does not answer; 130 after Ctrl-C;
`mptj run` and `mptj wait` mirror the worker that failed (outcomes); 124 when the time to wait is over, 128 and the
number of a signal after a signal, as a shell does.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from mptraining.cli import jobs, records, submit
from mptraining.cli.jobs import placed
from mptraining_api import outcomes
from mptraining_api.problems import InvalidSpec, Problem

if TYPE_CHECKING:
    from rich.console import Console

    from mptraining.cluster.connection import Where
    from mptraining_api.model_report import Report

# Without markup the help is plain text: rich would triple the time it takes.
app = typer.Typer(
    name="mptj",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Mixed-precision Keras training jobs: on this machine or on Kubernetes.",
)
app.add_typer(records.app, name="records")
app.command()(placed(submit.submit))
jobs.add_to(app)


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import PackageNotFoundError, version

        try:
            typer.echo(f"mptj {version('mptraining')}")
        except PackageNotFoundError:
            typer.echo("mptj (from a source tree)")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """What holds for every command; `main` reads --debug itself."""


@app.command()
def run(
    file: Annotated[str, typer.Argument(help="The job: an MPTrainingJob in YAML.", metavar="FILE")],
    local: Annotated[bool, typer.Option("--local", help="Train on this machine, without a cluster.")] = False,
    output: Annotated[str | None, typer.Option(help="Run folder, instead of the job's own.", metavar="DIR")] = None,
    plain: Annotated[bool, typer.Option("--plain", help="Plain lines, also on a terminal.")] = False,
) -> None:
    """Train the job in FILE on this machine.

    Paths in FILE count from its own folder. The run folder is output.uri or runs/NAME; the same command goes
    on where it was interrupted.
    """
    if not local:
        step = f"Train on this machine with: mptj run {file} --local"
        found = f"a cluster takes it with: mptj submit {file}"
        raise InvalidSpec("", found, next_step=step)
    from mptraining.display.choice import display_here
    from mptraining.local.run import run_local

    raise typer.Exit(run_local(file, output=output, display=display_here(plain=plain)))


@app.command()
def check(
    files: Annotated[list[str], typer.Argument(help="Job files.", metavar="FILE...")],
    deep: Annotated[bool, typer.Option("--deep", help="Build the model and look at it, layer by layer.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, a line for each job.")] = False,
) -> None:
    """Validate jobs and show what would be decided for them, and why. Needs no cluster.

    With --deep the trainer builds each model, trains nothing, and tells what computes in which precision, what is
    padded, and how large a batch fits. Needs TensorFlow, no accelerator, and no data where the job names its features.
    """
    from rich.console import Console

    from mptraining.cli import check as checking

    console = _wide(Console(highlight=False))
    worst = 0
    for number, file in enumerate(files):
        if number and not as_json:
            typer.echo()
        try:
            report = checking.check(file)
            if not as_json:
                checking.show(report, console)
            found = _look_deep(file, console, quiet=as_json) if deep else None
            if as_json:
                document = checking.to_document(report)
                typer.echo(json.dumps(document | ({"model": found.to_document()} if found else {})))
        except Problem as problem:
            if len(files) == 1:
                raise
            worst = max(worst, _tell(problem, prefix=f"{file}: " if file not in str(problem) else ""))
    raise typer.Exit(worst)


def _look_deep(file: str, console: Console, *, quiet: bool) -> Report:
    from mptraining.cli import deep_check

    found = deep_check.deep_check(file, say=lambda line: typer.echo(line, err=quiet))
    if not quiet:
        deep_check.show(found, console)
    return found


@app.command()
@placed
def compare(
    runs: Annotated[list[str], typer.Argument(help="Run folders, local or gs://, or jobs.", metavar="RUN...")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    html: Annotated[str | None, typer.Option(help="Write a page with curves.", metavar="FILE")] = None,
    *,
    where: Where,
) -> None:
    """Show finished and unfinished runs side by side."""
    from mptraining.compare import table

    comparison = jobs.comparison(runs, where)
    if html is not None:
        from mptraining.compare_html import page

        try:
            Path(html).write_text(page(comparison), encoding="utf-8")
        except OSError as error:
            raise InvalidSpec("--html", f"{html}: {error.strerror}") from error
    if as_json:
        typer.echo(json.dumps(comparison.to_document(), indent=2))
        return
    from rich.console import Console

    _wide(Console(highlight=False)).print(table(comparison))
    for note in comparison.notes:
        typer.echo(f"note: {note}")
    if html is not None:
        typer.echo(f"page: {html}")


def _wide(console: Console) -> Console:
    """In a pipe nothing is cut to the 80 columns that nobody sees."""
    if not console.is_terminal:
        console.width = 10_000
    return console


def _tell(problem: Problem, *, prefix: str = "") -> int:
    """One line on standard error; returns the exit code."""
    typer.echo(f"mptj: {prefix}{problem}", err=True)
    code = getattr(problem, "exit_code", None)
    return code if isinstance(code, int) else outcomes.by_reason(problem.reason).exit_code


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """The command line; leaves with the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    # Wherever it stands: who meets an error adds it at the end.
    debug = "--debug" in given
    given = [each for each in given if each != "--debug"]
    if debug:
        from mptraining_api import launch

        # The workers of `mptj run` show theirs too.
        os.environ[launch.DEBUG] = "1"
    called = Path(sys.argv[0]).name
    try:
        app(args=given, prog_name="kubectl mptj" if called.startswith("kubectl") else "mptj")
    except Problem as problem:
        if debug:
            raise
        sys.exit(_tell(problem))
    except KeyboardInterrupt:
        sys.exit(130)
    sys.exit(0)
