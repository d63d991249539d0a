"""Command line `mptj`: the app with its commands, error reporting and exit codes.

Commands import their modules when they run, so that `--help` is fast.

Exit codes: 0; 2 for an error of the user, reported in one line; 75 if the cluster does not answer; 130 after Ctrl-C,
which ends `mptj board` with 0; 124 if `mptj wait --timeout` expires; 128 plus the signal number after a signal, as in a
shell. `mptj run` and `mptj wait` exit with the code of the worker that failed (`mptraining_api.outcomes`). Of several
names or files the highest code counts.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import click
import cloup
from cloup import option

from mptraining.cli import (
    accelerators,
    board,
    check,
    compare,
    convert_tfjob,
    ensemble,
    exec_debug,
    init,
    jobs,
    options,
    output,
    predict,
    records,
    run,
    runtimes,
    submit,
    sweep,
    track,
)
from mptraining.cli.shell.verbs import Commands
from mptraining_api.problems import Problem, nearest


def _version(ctx: click.Context, _param: click.Parameter, show: bool) -> None:
    if not show:
        return
    from importlib.metadata import PackageNotFoundError, version

    try:
        click.echo(f"mptj {version('mptraining')}")
    except PackageNotFoundError:
        click.echo("mptj (from a source tree)")
    ctx.exit()


@cloup.group("mptj", cls=Commands, context_settings=options.SETTINGS | {"align_sections": True}, no_args_is_help=True)
@option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Print the version.")
@option("--debug", is_flag=True, expose_value=False, help="Show the traceback of an error.")
def app() -> None:
    """Mixed-precision Keras training jobs: on this machine or on Kubernetes."""


@app.result_callback()
def _exit(code: int | None) -> None:
    click.get_current_context().exit(code or 0)


app.section("Start and train here", init.init, check.check, run.run, sweep.sweep)
app.section("Data", records.records)
app.section("Look at runs", compare.compare, board.board, predict.predict, ensemble.ensemble, track.track)
app.section(
    "On a cluster",
    submit.submit,
    jobs.list_jobs,
    jobs.status,
    jobs.logs,
    jobs.wait,
    jobs.fetch,
    exec_debug.exec_,
    exec_debug.debug,
    jobs.suspend,
    jobs.resume,
    jobs.cancel,
)
app.section("Platform", accelerators.accelerators, runtimes.runtimes, init.schema, convert_tfjob.convert_tfjob)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    given = list(sys.argv[1:] if arguments is None else arguments)
    # --debug is accepted anywhere before the command of `mptj exec`, since users append it to what failed.
    end = given.index("--") if "--" in given else len(given)
    debug = "--debug" in given[:end]
    given = [*(word for word in given[:end] if word != "--debug"), *given[end:]]
    if debug:
        from mptraining_api import launch

        # The variable makes the workers of `mptj run` show tracebacks too.
        os.environ[launch.DEBUG] = "1"
    name = "kubectl mptj" if Path(sys.argv[0]).name.startswith("kubectl") else "mptj"
    try:
        code = app.main(given, prog_name=name, standalone_mode=False)
    except Problem as problem:
        if debug:
            raise
        sys.exit(output.report(problem))
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        output.note(f"mptj: {_message(error)} Help: {context.command_path if context else name} -h")
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
    sys.exit(code)


def _message(error: click.ClickException) -> str:
    """Return the message; an unknown option is compared without its dashes, which make `--lr` near `--help`."""
    if not isinstance(error, click.NoSuchOption):
        return error.format_message()
    given, parameters = error.option_name.strip("-"), error.ctx.command.params if error.ctx else ()
    close = [f"Did you mean {name!r}?" for name in error.possibilities or () if nearest(given, [name.strip("-")])]
    program = ["Arguments of the program follow ` -- `."] if any(p.name == "words" for p in parameters) else []
    return " ".join([error.message, *(close[:1] or program)])
