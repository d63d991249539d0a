"""Command line `mptj`: the app with its commands, error reporting and exit codes.

Commands import their modules when they run, so that `--help` is fast.

Exit codes: 0; 2 for an error of the user, reported in one line; 75 if the cluster does not answer; 130 after Ctrl-C,
which ends `mptj board` with 0; 124 if `mptj wait --timeout` expires; 128 plus the signal number after a signal, as in a
shell. `mptj run` and `mptj wait` exit with the code of the worker that failed (`mptraining_api.outcomes`).
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NoReturn

import typer

from mptraining.cli import (
    accelerators,
    board,
    convert_tfjob,
    ensemble,
    export,
    fetch,
    init,
    jobs,
    records,
    runtimes,
    submit,
    sweep,
    trained_models,
)
from mptraining.cli.jobs import with_cluster_options
from mptraining.cli.shell import command_groups, completion, help_text, verbs
from mptraining_api import outcomes
from mptraining_api.problems import ArgumentPlace, Place, Problem

if TYPE_CHECKING:
    from rich.console import Console

    from mptraining.cluster.connection import Cluster

# rich_markup_mode=None: importing rich would triple the time of `--help`.
app = typer.Typer(
    name="mptj",
    cls=command_groups.GroupedCommands,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Mixed-precision Keras training jobs: on this machine or on Kubernetes.",
)
app.add_typer(records.app, name="records")
app.add_typer(sweep.app, name="sweep")
app.command()(with_cluster_options(submit.submit))
app.command()(with_cluster_options(board.board))
app.command()(with_cluster_options(trained_models.predict))
app.command()(ensemble.ensemble)
jobs.register_commands(app)
app.command()(with_cluster_options(fetch.fetch))
app.command()(export.export)
app.command()(init.init)
app.command()(init.schema)
app.command()(accelerators.accelerators)
app.command()(with_cluster_options(runtimes.runtimes))
app.command("convert-tfjob")(convert_tfjob.convert_tfjob)


def _version(show: bool) -> None:
    if show:
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
    """Declare the global options; `main` handles --debug itself."""


@app.command()
def run(
    file: Annotated[
        str,
        typer.Argument(help="The job: an MPTrainingJob in YAML.", metavar="FILE", autocompletion=completion.job_files),
    ],
    local: Annotated[
        bool, typer.Option("--local", hidden=True, help="Accepted for older commands: a run is always on this machine.")
    ] = False,
    output: Annotated[str | None, typer.Option(help="Run folder, instead of the job's own.", metavar="DIR")] = None,
    plain: Annotated[bool, typer.Option("--plain", help="Print plain lines, also on a terminal.")] = False,
) -> None:
    """Train the job in FILE on this machine; `mptj submit` sends it to a cluster.

    Paths in FILE are relative to its folder. The run folder is output.uri or runs/NAME; the same command resumes
    an interrupted run.
    """
    from mptraining.display.choice import display_here
    from mptraining.local.run import LocalRunner

    first = None if local else _on_this_machine(file)
    runner = LocalRunner(output=output, first_line=first)
    raise typer.Exit(runner.run(file, display_here(plain=plain)).exit_code)


def _on_this_machine(file: str) -> str:
    """Return the line that says where a run trains, and how to send the job to a cluster instead."""
    from mptraining.cluster.connection import current_context

    context = current_context(os.environ)
    cluster = f"the cluster of context {context!r}" if context else "a cluster"
    return f"training on this machine; {cluster} takes the job with: {shlex.join(['mptj', 'submit', file])}"


@app.command()
def check(
    files: Annotated[
        list[str], typer.Argument(help="Job files.", metavar="FILE...", autocompletion=completion.job_files)
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, one line per job.")] = False,
    known: Annotated[
        str | None,
        typer.Option("--runtimes", help="File with the runtimes of the cluster: mptj runtimes --yaml.", metavar="FILE"),
    ] = None,
    node_labels: Annotated[
        Literal["GKE", "EKS", "AKS", "NVIDIA"],
        typer.Option(
            "--node-labels", help="The platform of the cluster's nodes, as the operator's setting nodeLabels."
        ),
    ] = "GKE",
) -> None:
    """Validate jobs and show their resolved defaults with reasons; of a sweep, its search. Needs no cluster."""
    from rich.console import Console

    from mptraining.cli import check as checking
    from mptraining_api.validation.job_text import holds_sweep

    console = _wide(Console(highlight=False))
    found: list[tuple[str, Problem]] = []
    for number, file in enumerate(files):
        if number and not as_json:
            typer.echo()
        try:
            if holds_sweep(file):
                _check_sweep(file, as_json=as_json)
                continue
            report = checking.check(file, runtimes=known, node_labels=node_labels)
            if as_json:
                typer.echo(json.dumps(checking.to_document(report)))
            else:
                checking.show(report, console)
        except Problem as problem:
            found.append((file, problem))
            if as_json:
                typer.echo(json.dumps(checking.mistakes_document(file, problem)))
            else:
                typer.echo("\n".join(checking.mistake_lines(file, problem)), err=True)
    if found and not as_json:
        typer.echo(checking.count_text(found, len(files)), err=True)
    raise typer.Exit(max((_exit_code(problem) for _, problem in found), default=0))


def _check_sweep(file: str, *, as_json: bool) -> None:
    from mptraining.sweeps.start import explain, open_checked
    from mptraining.sweeps.sweep_file import check_sweep_file

    checked = check_sweep_file(Path(file))
    if as_json:
        typer.echo(json.dumps({"file": file, "sweep": checked.sweep.to_document(), "advice": list(checked.notes)}))
        return
    for text in explain(open_checked(Path(file), checked)):
        typer.echo(text)
    for text in checked.notes:
        typer.echo(f"advice: {text}")


@app.command()
@with_cluster_options
def compare(
    runs: Annotated[
        list[str],
        typer.Argument(
            help="Run folders, local or gs://, or jobs.", metavar="RUN...", autocompletion=completion.run_folders
        ),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    html: Annotated[str | None, typer.Option(help="Write a page, as mptj board --export.", metavar="FILE")] = None,
    sort: Annotated[
        str | None, typer.Option(help="Order the runs by this column, the best first.", metavar="COLUMN")
    ] = None,
    metric: Annotated[
        list[str] | None, typer.Option(help="Compare this metric; may be repeated.", metavar="NAME")
    ] = None,
    *,
    cluster: Cluster,
) -> None:
    """Show finished and unfinished runs side by side: a column per run, or a row per run if they are many.

    Green marks the best values; values within 1 % of the best one are ties.
    """
    from mptraining.comparison import TEXT_WIDTH, table

    comparison = jobs.compare_runs(runs, cluster, metrics=metric, sort=sort)
    if html is not None:
        board.write_page(html, runs, cluster)
    if as_json:
        typer.echo(json.dumps(comparison.to_document(), indent=2))
        return
    from rich.console import Console

    console = Console(highlight=False)
    width = console.width if console.is_terminal or os.environ.get("COLUMNS") else TEXT_WIDTH
    _wide(console).print(table(comparison, width))
    for note in comparison.notes:
        typer.echo(f"note: {note}")
    if html is not None:
        typer.echo(f"page: {html}")


def _commands() -> list[str]:
    """Return the names of all commands, also of groups."""
    own = [each.name or str(getattr(each.callback, "__name__", "")) for each in app.registered_commands]
    return [*own, *(each.name for each in app.registered_groups if isinstance(each.name, str))]


def _wide(console: Console) -> Console:
    """Return the console with unlimited width if it is a pipe, so that rich does not cut lines at 80 columns."""
    if not console.is_terminal:
        console.width = 10_000
    return console


def _report(problem: Problem) -> int:
    """Print the problem on standard error, one line for each mistake; return the exit code."""
    from mptraining.display.text import wrapped
    from mptraining_api.validation.mistakes import InvalidJobFile

    if isinstance(problem, InvalidJobFile) and len(problem.mistakes) > 1:
        typer.echo(str(problem), err=True)
        typer.echo(f"mptj: {len(problem.mistakes)} mistakes; nothing was started", err=True)
    else:
        typer.echo(wrapped(f"mptj: {problem.renamed(_option)}", sys.stderr), err=True)
    return _exit_code(problem)


def _exit_code(problem: Problem) -> int:
    code = getattr(problem, "exit_code", None)
    return code if isinstance(code, int) else outcomes.by_reason(problem.reason).exit_code


def _option(place: Place) -> str | Place:
    return place.option if isinstance(place, ArgumentPlace) else place


help_text.use_plain_help(app)
help_text.use_plain_help(records.app)
help_text.use_plain_help(sweep.app)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    # --debug is accepted at any position, since users append it to the failed command.
    debug = "--debug" in given
    given = [each for each in given if each != "--debug"]
    if debug:
        from mptraining_api import launch

        # The variable makes the workers of `mptj run` show tracebacks too.
        os.environ[launch.DEBUG] = "1"
    called = Path(sys.argv[0]).name
    try:
        given, note = verbs.translate(given, _commands())
        if note:
            typer.echo(f"note: {note}", err=True)
        app(args=given, prog_name="kubectl mptj" if called.startswith("kubectl") else "mptj")
    except Problem as problem:
        if debug:
            raise
        sys.exit(_report(problem))
    except KeyboardInterrupt:
        sys.exit(130)
    sys.exit(0)
