"""Commands of `mptj` (also `kubectl mptj`) for cluster jobs: list, status, logs, wait, cancel, suspend, resume.

The module also has the options that select the cluster, output formats, and helpers for `submit` and `compare`.
"""

from __future__ import annotations

import functools
import inspect
import json
import time
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from mptraining_api.validation.job_text import KIND

if TYPE_CHECKING:
    from mptraining.cluster.connection import Cluster
    from mptraining.cluster.job import Job
    from mptraining.comparison import Comparison
    from mptraining.sweeps.cluster import ClusterSweep


_KIND = f"{KIND.lower()}.mptraining.dev/"
_OPTIONS = {
    "context": typer.Option("--context", help="Context of the kubeconfig.", metavar="NAME"),
    "namespace": typer.Option("--namespace", "-n", help="Namespace; default: the context's.", metavar="NAME"),
    "kubeconfig": typer.Option("--kubeconfig", help="Replaces KUBECONFIG and ~/.kube/config.", metavar="FILE"),
    "gke": typer.Option("--gke", help="GKE without kubeconfig.", metavar="PROJECT/LOCATION/CLUSTER"),
}


def with_cluster_options(command: Callable[..., None]) -> Callable[..., None]:
    """Wrap a command function so that its last parameter, `cluster`, is replaced by the four cluster options.

    The wrapper raises NoCluster if the options do not go together.
    """
    *own, cluster = inspect.signature(command).parameters.values()
    assert cluster.name == "cluster"
    hints = get_type_hints(command, localns={"Cluster": Any}, include_extras=True)
    options = {name: Annotated[str | None, option] for name, option in _OPTIONS.items()}
    options_last = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=hint)
        for name, hint in options.items()
    ]

    @functools.wraps(command)
    def called(**given: Any) -> None:
        command(
            **{each.name: given[each.name] for each in own}, cluster=_cluster({name: given[name] for name in options})
        )

    signature = inspect.Signature([*(each.replace(annotation=hints[each.name]) for each in own), *options_last])
    # typer reads the signature and the annotations of a function.
    called.__signature__ = signature  # type: ignore[attr-defined]
    called.__annotations__ = {name: each.annotation for name, each in signature.parameters.items()}
    return called


def _cluster(options: dict[str, Any]) -> Cluster:
    from mptraining.cluster.connection import Cluster

    return Cluster(**options)


def job_names(context: typer.Context, incomplete: str) -> list[str]:
    """Return the job names for shell completion; empty instead of an error."""
    from mptraining_api.problems import Problem

    try:
        from mptraining.cluster.connection import connect
        from mptraining_api.kubernetes_api import JOBS

        found = connect(_cluster({name: context.params.get(name) for name in _OPTIONS})).items(JOBS)
    except Problem:
        return []
    return [name for each in found if (name := str(each["metadata"]["name"])).startswith(incomplete)]


Name = Annotated[str, typer.Argument(help="The job's name.", metavar="NAME", autocompletion=job_names)]
Names = Annotated[list[str], typer.Argument(help="The jobs' names.", metavar="NAME...", autocompletion=job_names)]


class Format(StrEnum):
    """Machine-readable output format."""

    JSON = "json"
    YAML = "yaml"
    NAME = "name"


OutputFormat = Annotated[Format | None, typer.Option("--output", "-o", help="Output format instead of text.")]
Plain = Annotated[bool, typer.Option("--plain", help="Print plain lines, also on a terminal.")]


def show_list(
    everywhere: Annotated[bool, typer.Option("--all-namespaces", "-A", help="List jobs of all namespaces.")] = False,
    output: OutputFormat = None,
    *,
    cluster: Cluster,
) -> None:
    """List the jobs of a namespace, the newest last, and its sweeps."""
    from mptraining.cluster.connection import connect
    from mptraining.cluster.job_view import HEADINGS, row, view
    from mptraining.sweeps.cluster import list_sweeps
    from mptraining_api.kubernetes_api import JOBS

    def by_time(document: Mapping[str, Any]) -> tuple[str, str]:
        return str(document["metadata"].get("creationTimestamp")), str(document["metadata"]["name"])

    server = connect(cluster)
    found = sorted(server.items(JOBS, everywhere=everywhere), key=by_time)
    sweeps = sorted(list_sweeps(server, everywhere=everywhere), key=by_time)
    if output is not None:
        print_documents([*found, *sweeps], output, many=True)
        return
    if sweeps:
        _print_table(_sweep_table(sweeps, server.name), sweeps, everywhere=everywhere)
        typer.echo()
    if not found:
        there = "any namespace" if everywhere else f"namespace {server.namespace!r}"
        typer.echo(f"no jobs in {there} of {server.name}")
        return
    table = [HEADINGS, *(row(view(each), time.time()) for each in found)]
    _print_table(table, found, everywhere=everywhere)


def _print_table(table: Sequence[Sequence[str]], documents: Sequence[Mapping[str, Any]], *, everywhere: bool) -> None:
    """Print a table with its headings; its rows are about `documents`, whose namespaces are shown if `everywhere`."""
    if everywhere:
        places = ["NAMESPACE", *(str(each["metadata"].get("namespace")) for each in documents)]
        table = [(place, *row) for place, row in zip(places, table, strict=True)]
    for text in columns(table):
        typer.echo(text)


def _sweep_table(documents: Sequence[Mapping[str, Any]], cluster: str) -> list[list[str]]:
    """Return the table of the sweeps on a cluster, with its headings."""
    from mptraining.cluster.errors import ClusterProblem
    from mptraining.cluster.job_view import age
    from mptraining.sweeps.cluster import view
    from mptraining.sweeps.view import HEADINGS, summary_row

    table = [[*HEADINGS, "AGE"]]
    for each in documents:
        try:
            row = summary_row(view(each, cluster))
        except ClusterProblem:
            row = [str(each["metadata"]["name"]), "cannot be read: update mptraining here", "", "", ""]
        table.append([*row, age(each["metadata"], time.time())])
    return table


def show_status(name: Name, output: OutputFormat = None, *, cluster: Cluster) -> None:
    """Show a job's phase, its reason, progress, attempts and advice; of a sweep, its best trial."""
    from mptraining.cluster.errors import ClusterProblem
    from mptraining.cluster.job import Job
    from mptraining.cluster.job_view import lines, no_operator_text
    from mptraining.cluster.submit import waiting_job_warning

    job = job_or_sweep(name, cluster)
    if not isinstance(job, Job):
        _show_sweep(job, output)
        return
    seen = job.status()
    if output is not None:
        print_documents([seen.document], output, many=False)
        return
    more = [no_operator_text(seen, time.time()), waiting_job_warning(job.server, seen)]
    try:
        warned = [each for each in job.events() if each.type == "Warning"]
    except ClusterProblem:
        warned = []
    for text in lines(seen, more=[each for each in more if each]):
        typer.echo(text)
    for each in warned[-3:]:
        typer.echo(f"  {'event':<10}  {each}")
    if not seen.finished:
        logs, wait = (job.server.command(verb, job.name) for verb in ("logs -f", "wait"))
        typer.echo(f"  {'next':<10}  {logs}   {wait}")


def logs(
    name: Annotated[
        str, typer.Argument(help="The job's name, or a run folder.", metavar="NAME", autocompletion=job_names)
    ],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow the logs until the job has ended.")] = False,
    worker: Annotated[int | None, typer.Option(help="Only logs of this worker.", metavar="INDEX", min=0)] = None,
    attempt: Annotated[int | None, typer.Option(help="Logs of this attempt; default: the last.", min=1)] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Print events as JSON, as in the log.")] = False,
    *,
    cluster: Cluster,
) -> None:
    """Print the logs of a job's workers, or the program's output that a run folder holds."""
    from pathlib import Path

    from mptraining.cluster.wait import detached_text

    if "/" in name.removeprefix(_KIND).removeprefix("mptj/") or Path(name).is_dir():
        _print_run_logs(name, follow=follow, worker=worker, attempt=attempt)
        return
    job = attach_job(name, cluster)
    try:
        for line in job.log_lines(follow=follow, worker=worker, attempt=attempt, raw=raw):
            typer.echo(line)
    except KeyboardInterrupt:
        typer.echo(detached_text(job.server, job.name), err=True)
        raise typer.Exit(130) from None


def _print_run_logs(folder: str, *, follow: bool, worker: int | None, attempt: int | None) -> None:
    from mptraining import run_logs

    lines = (
        run_logs.follow_lines(folder, attempt=attempt, worker=worker, wait=time.sleep)
        if follow
        else run_logs.log_lines(folder, attempt=attempt, worker=worker)
    )
    try:
        for line in lines:
            typer.echo(line)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def wait(
    name: Name,
    timeout: Annotated[
        float | None, typer.Option(help="Longest time to wait; exit code 124 after it.", metavar="SECONDS")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Folder to save the trained model in.", metavar="FOLDER")] = None,
    plain: Plain = False,
    *,
    cluster: Cluster,
) -> None:
    """Follow a job or a sweep until it has ended; the exit code is the job's."""
    from mptraining.cli.sweep import follow_sweep
    from mptraining.cluster.job import Job

    job = job_or_sweep(name, cluster)
    if not isinstance(job, Job):
        follow_sweep(job, timeout=timeout)
        return
    follow_until_ended(job, timeout=timeout, model=model, plain=plain)


def cancel(names: Names, *, cluster: Cluster) -> None:
    """Delete jobs or sweeps: their workers save a checkpoint and exit. Run folders are kept."""
    from mptraining.cluster.job import Job

    for name in names:
        job = job_or_sweep(name, cluster)
        if not isinstance(job, Job):
            job.cancel()
            typer.echo(f"cancelled: sweep {job.name}, with the jobs of its trials")
            continue
        folder = job.status().output
        job.cancel()
        typer.echo(f"cancelled: {name}" + (f"; its run folder stays: {folder}" if folder else ""))


def suspend(names: Names, *, cluster: Cluster) -> None:
    """Suspend jobs or sweeps until `mptj resume`. They save a checkpoint and release their machines."""
    for name in names:
        job = job_or_sweep(name, cluster)
        _refuse_ended(job)
        job.suspend()
        typer.echo(f"suspended: {name}; to continue it: {job.server.command('resume', name)}")


def resume(names: Names, *, cluster: Cluster) -> None:
    """Resume suspended jobs or sweeps from their last checkpoint."""
    for name in names:
        job = job_or_sweep(name, cluster)
        _refuse_ended(job)
        job.resume()
        typer.echo(f"resumed: {name}")


def compare_runs(
    runs: Sequence[str], cluster: Cluster, *, metrics: Sequence[str] | None = None, sort: str | None = None
) -> Comparison:
    """Compare run folders, and jobs if no folder of that name exists. Raises Problem."""
    from pathlib import Path

    from mptraining.cluster.errors import NoCluster
    from mptraining.comparison import compare
    from mptraining.runs import load_run

    def load(run: str) -> Any:
        if "/" in run or Path(run).exists():
            return load_run(run)
        try:
            return attach_job(run, cluster).run()
        except NoCluster:
            return load_run(run)

    return compare([load(run) for run in runs], metrics=metrics, sort=sort)


def follow_until_ended(job: Job, *, timeout: float | None, model: str | None, plain: bool) -> None:
    """Follow the job and exit with its exit code; with 130 after Ctrl-C, which does not stop the job."""
    from mptraining.cluster.wait import detached_text
    from mptraining.display.choice import display_here

    display = display_here(plain=plain)
    try:
        seen = job.follow(display, timeout=timeout, fetch=model is not None)
        if model is not None and seen.succeeded:
            typer.echo(f"model: {job.save_model(model)}")
    except KeyboardInterrupt:
        typer.echo(detached_text(job.server, job.name), err=True)
        raise typer.Exit(130) from None
    raise typer.Exit(seen.exit_code or 0)


def print_documents(documents: Sequence[Mapping[str, Any]], format: Format, *, many: bool) -> None:
    """Print objects in kubectl's formats; with `many` as a List."""
    if format is Format.NAME:
        for each in documents:
            typer.echo(f"{str(each.get('kind', KIND)).lower()}.mptraining.dev/{each['metadata']['name']}")
        return
    whole = {"apiVersion": "v1", "kind": "List", "items": list(documents)} if many else documents[0]
    if format is Format.JSON:
        typer.echo(json.dumps(whole, indent=2))
        return
    from mptraining.job_file.yaml_writer import to_yaml

    typer.echo(to_yaml(whole), nl=False)


def columns(table: Sequence[Sequence[str]]) -> list[str]:
    """Format rows as lines, each column as wide as its longest cell."""
    wide = [max(len(cell) for cell in column) for column in zip(*table, strict=True)]
    return ["   ".join(cell.ljust(width) for cell, width in zip(each, wide, strict=True)).rstrip() for each in table]


def register_commands(app: typer.Typer) -> None:
    """Register the commands with `app`."""
    app.command("list")(with_cluster_options(show_list))
    app.command("status")(with_cluster_options(show_status))
    for command in (logs, wait, cancel, suspend, resume):
        app.command()(with_cluster_options(command))


def _refuse_ended(job: Job | ClusterSweep) -> None:
    from mptraining.cluster.errors import ClusterProblem
    from mptraining.cluster.job import Job

    if isinstance(job, Job):
        seen = job.status()
        ended, phase = seen.finished, seen.phase
        again = f"{job.server.command('cancel', job.name)}, then submit it"
        step = f"To run it again: {again}; with output.uri it resumes from a checkpoint."
    else:
        found = job.view()
        ended, phase = found.finished is not None, found.phase
        step = f"`{job.server.command('sweep compare', job.name)}` shows its trials."
    if ended:
        raise ClusterProblem(
            job.name, f"the {'job' if isinstance(job, Job) else 'sweep'} has ended ({phase})", next_step=step
        )


def _show_sweep(sweep: ClusterSweep, output: Format | None) -> None:
    from mptraining.sweeps.view import lines

    if output is not None:
        print_documents([sweep.document()], output, many=False)
        return
    seen = sweep.view()
    for text in lines(seen):
        typer.echo(text)
    if seen.finished is None:
        wait, compare = (sweep.server.command(verb, f"mpts/{sweep.name}") for verb in ("wait", "sweep compare"))
        typer.echo(f"  {'next':<10}  {wait}   {compare}")


def job_or_sweep(name: str, cluster: Cluster) -> Job | ClusterSweep:
    """Return the job of that name, and if there is none the sweep; with `mpts/` before it, the sweep.

    Raises ClusterProblem.
    """
    from mptraining.cluster.errors import ClusterProblem, NotFound
    from mptraining.sweeps.cluster import attach_sweep, sweep_name

    if sweep_name(name) is not None:
        return attach_sweep(name, cluster)
    try:
        return attach_job(name, cluster)
    except NotFound as no_job:
        try:
            return attach_sweep(name, cluster)
        except ClusterProblem:
            raise no_job from None


def attach_job(name: str, cluster: Cluster) -> Job:
    """Return the job; accepts names as `kubectl get -o name` and `mptj list -o name` print them."""
    from mptraining.cluster.job import attach

    plain = name.removeprefix(_KIND).removeprefix("mptj/")
    return attach(plain, cluster)
