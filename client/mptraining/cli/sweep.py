"""Command `mptj sweep FILE`, and `mptj sweep status | best | compare | apply` for a sweep here or on a cluster."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from mptraining.cli.jobs import Plain, columns, with_cluster_options
from mptraining.cli.shell import completion
from mptraining_api.problems import InvalidSpec

if TYPE_CHECKING:
    from mptraining.cluster.connection import Cluster
    from mptraining.sweeps.cluster import ClusterSweep
    from mptraining.sweeps.view import SweepView

_RUN = "run"


class FileOrVerb(TyperGroup):
    """A group whose first argument may be a file: `mptj sweep FILE` is `mptj sweep run FILE`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ("-h", "--help"):
            args = [_RUN, *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=FileOrVerb,
    subcommand_metavar="FILE | COMMAND [ARGS]...",
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Search hyperparameters: `mptj sweep FILE` runs a sweep here; the commands show one, here or on a cluster.",
)

Sweep = Annotated[
    str,
    typer.Argument(
        help="A sweep's folder, its file, or its name on a cluster.", metavar="SWEEP", autocompletion=completion.sweeps
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
TrialNumber = Annotated[int | None, typer.Option("--trial", help="Another trial than the best.", min=1, metavar="N")]


@app.command(_RUN, short_help="Run the sweep in FILE here; the word `run` may be left out.")
def run(
    file: Annotated[
        str,
        typer.Argument(
            help="The sweep: an MPTrainingSweep in YAML.", metavar="FILE", autocompletion=completion.job_files
        ),
    ],
    parallel: Annotated[int, typer.Option(help="Trials at a time on this machine.", min=1, metavar="N")] = 1,
    output: Annotated[
        str | None, typer.Option(help="Folder of the sweep, instead of the job's own.", metavar="DIR")
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Print the size of the search and its cost; run nothing.")
    ] = False,
    plain: Plain = False,
) -> None:
    """Run the sweep in FILE on this machine; `mptj submit FILE` sends it to a cluster. `run` may be left out.

    The folder is the job's output.uri or runs/NAME. After Ctrl-C the same command continues with the same proposals.
    """
    from mptraining.sweeps.display import sweep_display_here
    from mptraining.sweeps.start import explain as explain_cost
    from mptraining.sweeps.start import open_sweep, run_sweep

    opened = open_sweep(Path(file), parallel=parallel, output=output)
    if explain:
        for text in explain_cost(opened):
            typer.echo(text)
        return
    code, _ = run_sweep(opened, display=sweep_display_here(plain=plain))
    raise typer.Exit(code)


def status(sweep: Sweep, as_json: Json = False, *, cluster: Cluster) -> None:
    """Show the state of a sweep, its best trial, and why trials failed."""
    from mptraining.sweeps import view

    found = find_sweep(sweep, cluster)
    if as_json:
        typer.echo(json.dumps({"name": found.name, **found.status.to_document()}, indent=2))
        return
    for text in view.lines(found):
        typer.echo(text)
    if found.finished is None and (named := stopped_sweep(found)) is not None:
        typer.echo(f"  {'stopped':<10}  to continue it: mptj sweep {named}")


def stopped_sweep(found: SweepView) -> str | None:
    """Return the arguments of `mptj sweep` that continue a sweep in which no driver is at work; None for others."""
    from mptraining.sweeps.best_job import SWEEP_FILE
    from mptraining.sweeps.folder import SweepFolder, is_sweep_folder

    folder = Path(found.place)
    if not is_sweep_folder(folder) or SweepFolder(folder).is_driven():
        return None
    file = (found.sweep.metadata.annotations or {}).get(SWEEP_FILE)
    named = [_shown(Path(file)) if file else "FILE"]
    if folder.absolute() != Path.cwd() / "runs" / found.name:
        named += ["--output", _shown(folder.absolute())]
    return shlex.join(named)


def best(sweep: Sweep, as_json: Json = False, *, cluster: Cluster) -> None:
    """Show the best trial: its objective, its parameters, and its run folder."""
    from mptraining.display.text import number
    from mptraining.sweeps.best_job import best_trial_number
    from mptraining.sweeps.view import value_text
    from mptraining_api.sweep.trial_job import output_uri

    found = find_sweep(sweep, cluster)
    trial = found.trial(best_trial_number(found))
    folder = output_uri(found.sweep, trial.number)
    if as_json:
        document = {"number": trial.number, "objective": trial.objective, "parameters": trial.parameters}
        typer.echo(json.dumps({**document, **({"folder": folder} if folder else {})}, indent=2))
        return
    typer.echo(f"trial {trial.number}: {found.metric} {number(trial.objective or 0.0)}")
    rows = [(path, value_text(value)) for path, value in trial.parameters.items()]
    for text in columns([*rows, *([("run folder", folder)] if folder else [])]):
        typer.echo(f"  {text}")


def compare(
    sweep: Sweep,
    as_json: Json = False,
    most: Annotated[int, typer.Option("--most", help="Trials to show, the best first.", min=1, metavar="N")] = 20,
    *,
    cluster: Cluster,
) -> None:
    """Show the trials of a sweep, the best first, and the importance of its parameters."""
    from mptraining.sweeps import view
    from mptraining.sweeps.importance import FEWEST, importance

    found = find_sweep(sweep, cluster)
    shares = importance(found)
    if as_json:
        trials = [each.to_document() for each in found.ranked()]
        typer.echo(json.dumps({"name": found.name, "trials": trials, "importance": shares}, indent=2))
        return
    typer.echo(view.one_line(found))
    ranked = found.ranked()
    for text in columns([view.heads(found), *(view.row(found, each) for each in ranked[:most])]):
        typer.echo(text)
    if len(ranked) > most:
        typer.echo(f"and {len(ranked) - most} more: --most {len(ranked)}")
    if shares:
        typer.echo("importance (how much a parameter decides whether a trial is among the best):")
        for text in columns([(path, f"{100 * share:.0f}%") for path, share in shares.items()]):
            typer.echo(f"  {text}")
    else:
        typer.echo(f"importance: unknown with fewer than {FEWEST} trials that trained to their end")


def apply(
    sweep: Sweep,
    to: Annotated[
        str | None,
        typer.Option(help="The job file to write; default: NAME-best.yaml beside the sweep's file.", metavar="FILE"),
    ] = None,
    trial: TrialNumber = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
    *,
    cluster: Cluster,
) -> None:
    """Write the job file of the best trial, to train it again, longer, or on a cluster."""
    from mptraining.job_file.check import check_job_file
    from mptraining.sweeps import best_job
    from mptraining_api.validation.mistakes import InvalidJobFile
    from mptraining_storage import local

    found = find_sweep(sweep, cluster)
    document = best_job.trial_job(found, trial)
    path = Path(to) if to else best_job.default_file(found, document, Path.cwd())
    if path.exists() and not force:
        raise InvalidSpec(str(path), "exists", next_step="Choose another name with --to, or replace it with --force.")
    document = best_job.with_relative_output(document, path.absolute().parent)
    local.write(path, best_job.text(found, document, trial).encode())
    typer.echo(f"wrote {_shown(path)}")
    try:
        check_job_file(path)
    except InvalidJobFile as problem:
        # The file is right for the folder of the sweep's file, where its records and its program are.
        typer.echo(f"note: as it is, `mptj check` refuses it: {problem}", err=True)
    typer.echo(f"  mptj run {_shown(path)}       trains here\n  mptj submit {_shown(path)}    trains on a cluster")


def _shown(path: Path) -> str:
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def find_sweep(text: str, cluster: Cluster) -> SweepView:
    """Return the sweep in a folder, of a file, or of a name: below runs/, else on the cluster. Raises Problem."""
    from mptraining.sweeps.folder import SWEEP, SweepFolder, is_sweep_folder
    from mptraining.sweeps.start import open_sweep
    from mptraining.sweeps.view import SweepView

    path = Path(text)
    if path.is_file() and path.name != SWEEP:
        opened = open_sweep(path)
        stored = opened.folder.read()
        # As it is: with changed limits it continues only when it runs again.
        return opened.view if stored is None else SweepView(*stored, str(opened.folder.path))
    folder = next((each for each in (path, path.parent, Path("runs", text)) if is_sweep_folder(each)), None)
    if folder is not None and (folder != path.parent or path.name == SWEEP):
        stored = SweepFolder(folder).read()
        assert stored is not None
        return SweepView(*stored, str(folder))
    if path.is_dir() or "/" in text.removeprefix("mpts/"):
        found = f"holds no {SWEEP}" if path.is_dir() else "no such folder"
        raise InvalidSpec(text, found, expected="the folder or the file of a sweep, or its name on a cluster")
    from mptraining.sweeps.cluster import attach_sweep

    return attach_sweep(text, cluster).view()


def follow_sweep(sweep: ClusterSweep, *, timeout: float | None = None) -> None:
    """Print each trial of a cluster's sweep when it ends, and exit with 0 if the sweep succeeded, else with 1.

    Exits with 130 after Ctrl-C, which does not stop the sweep; raises StillRunning after `timeout` seconds.
    """
    from mptraining.sweeps import view
    from mptraining.sweeps.display import PlainLines

    try:
        last = sweep.follow(PlainLines(), timeout=timeout)
    except KeyboardInterrupt:
        again, cancel = (sweep.server.command(verb, f"mpts/{sweep.name}") for verb in ("wait", "cancel"))
        typer.echo(f"Detached; the sweep continues. {again}   Cancel it: {cancel}", err=True)
        raise typer.Exit(130) from None
    for text in view.lines(last):
        typer.echo(text)
    raise typer.Exit(0 if last.succeeded else 1)


for _command, _short in (
    (status, "Show the state of a sweep, and why trials failed."),
    (best, "Show the best trial."),
    (compare, "Show the trials, the best first, and the important parameters."),
    (apply, "Write the job file of the best trial."),
):
    app.command(short_help=_short)(with_cluster_options(_command))
