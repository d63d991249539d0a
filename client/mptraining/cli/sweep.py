"""Commands `mptj sweep status | compare | job` for a sweep here or on a cluster; `mptj run` and `submit` start one."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click
from cloup import argument, option

from mptraining.cli import options
from mptraining.cli.output import note, print_document, print_table
from mptraining.cli.shell import completion
from mptraining.cli.shell.verbs import Commands
from mptraining_api.problems import InvalidSpec

if TYPE_CHECKING:
    from mptraining.cluster.connection import Cluster
    from mptraining.sweeps.view import SweepView

_sweep = argument(
    "name",
    metavar="SWEEP",
    help="A sweep's folder (runs/NAME), its file, or its name on a cluster.",
    shell_complete=completion.sweeps,
)
_form = options.output_format("json", "yaml")


@options.command()
@_sweep
@_form
@options.cluster_options
def status(name: str, form: str | None, cluster: Cluster) -> None:
    """Show the state of a sweep, and its best trial.

    Trials that failed are listed with their reason.
    """
    from mptraining.sweeps import view

    sweep = find_sweep(name, cluster)
    if form is not None:
        print_document({"name": sweep.name, **sweep.status.to_document()}, form)
        return
    for text in view.lines(sweep):
        click.echo(text)
    if sweep.finished is None and (again := _stopped(sweep)) is not None:
        click.echo(f"  {'stopped':<10}  to continue it: {again}")


def _stopped(sweep: SweepView) -> str | None:
    """Return the command that continues a sweep in which no driver is at work; None for others."""
    from mptraining.sweeps.best_job import SWEEP_FILE
    from mptraining.sweeps.folder import SweepFolder, is_sweep_folder

    folder = Path(sweep.where)
    if not is_sweep_folder(folder) or SweepFolder(folder).is_driven():
        return None
    file = (sweep.sweep.metadata.annotations or {}).get(SWEEP_FILE)
    words = ["mptj", "run", _shown(Path(file)) if file else "FILE"]
    if folder.absolute() != Path.cwd() / "runs" / sweep.name:
        words += ["--run-folder", _shown(folder.absolute())]
    return shlex.join(words)


@options.command()
@_sweep
@options.count("--most", "Trials to show; default: 20.", default=20)
@_form
@options.cluster_options
def compare(name: str, most: int, form: str | None, cluster: Cluster) -> None:
    """Show the trials of a sweep, the best first.

    The importance of a parameter is how much it decides whether a trial is among the best.
    """
    from mptraining.sweeps import view
    from mptraining.sweeps.importance import FEWEST, importance

    sweep = find_sweep(name, cluster)
    shares, ranked = importance(sweep), sweep.ranked()
    if form is not None:
        trials = [trial.to_document() for trial in ranked]
        print_document({"name": sweep.name, "trials": trials, "importance": shares}, form)
        return
    click.echo(view.one_line(sweep))
    print_table([view.heads(sweep), *(view.row(sweep, trial) for trial in ranked[:most])])
    if len(ranked) > most:
        click.echo(f"and {len(ranked) - most} more: --most {len(ranked)}")
    if shares:
        click.echo("importance (how much a parameter decides whether a trial is among the best):")
        print_table([(path, f"{100 * share:.0f}%") for path, share in shares.items()], indent="  ")
    else:
        click.echo(f"importance: unknown with fewer than {FEWEST} trials that trained to their end")


@options.command()
@_sweep
@option("--to", metavar="FILE", help="File to write; default: NAME-best.yaml in the folder of the sweep's file.")
@options.count("--trial", "Another trial than the best.")
@options.overwrite
@options.cluster_options
def job(name: str, to: str | None, trial: int | None, overwrite: bool, cluster: Cluster) -> None:
    """Write the job file of the best trial.

    It trains the trial again, with all its epochs: here, or on a cluster.
    """
    from mptraining.cli.init import refuse_existing, write_in_one_step
    from mptraining.job_file.checked_job import check_job_file
    from mptraining.sweeps import best_job
    from mptraining_api.validation.mistakes import InvalidJobFile

    sweep = find_sweep(name, cluster)
    document = best_job.trial_job(sweep, trial)
    path = Path(to) if to else best_job.default_file(sweep, document, Path.cwd())
    refuse_existing(path, overwrite=overwrite)
    document = best_job.with_relative_output(document, path.absolute().parent)
    write_in_one_step(path, best_job.text(sweep, document, trial))
    click.echo(f"wrote {_shown(path)}")
    try:
        check_job_file(path)
    except InvalidJobFile as problem:
        # The file is right for the folder of the sweep's file, where its records and its program are.
        note(f"note: as it is, `mptj check` refuses it: {problem}")
    click.echo(f"  mptj run {_shown(path)}       trains here\n  mptj submit {_shown(path)}    trains on a cluster")


def _shown(path: Path) -> str:
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def find_sweep(word: str, cluster: Cluster) -> SweepView:
    """Return the sweep in a folder, which has a slash, of a file, or of a name on the cluster. Raises Problem."""
    from mptraining.sweeps.cluster import attach_sweep, sweep_name
    from mptraining.sweeps.folder import SWEEP, SweepFolder, is_sweep_folder
    from mptraining.sweeps.start import open_sweep
    from mptraining.sweeps.view import SweepView

    path = Path(word)
    if path.suffix in (".yaml", ".yml"):
        opened = open_sweep(path)
        stored = opened.folder.read()
        # As it is: with changed limits it continues only when it runs again.
        return opened.view if stored is None else SweepView(*stored, str(opened.folder.path))
    if sweep_name(word) is not None or not options.names_folder(word):
        with options.folder_suggested(word):
            return attach_sweep(word, cluster).view()
    folder = path.parent if path.name == SWEEP else path
    if not is_sweep_folder(folder):
        why = f"holds no {SWEEP}" if folder.is_dir() else "no such folder"
        raise InvalidSpec(word, why, expected="the folder or the file of a sweep, or its name on a cluster")
    stored = SweepFolder(folder).read()
    assert stored is not None
    return SweepView(*stored, str(folder))


sweep = Commands(
    "sweep",
    commands=[status, compare, job],
    context_settings=options.SETTINGS,
    no_args_is_help=True,
    help="Show a sweep's trials; write its best job.\n\nStart one with `mptj run FILE` or `mptj submit FILE`.",
)
