"""Commands for the jobs and sweeps of a cluster: list, status, logs, wait, fetch, suspend, resume, cancel."""

from __future__ import annotations

import shlex
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

import click
from cloup import argument, option

from mptraining.cli import options
from mptraining.cli.output import for_each, note, print_objects, print_table

if TYPE_CHECKING:
    from mptraining.cluster.connection import Cluster
    from mptraining.cluster.job import Job
    from mptraining.sweeps.cluster import ClusterSweep


@options.command("list", aliases=["ls", "ps"])
@option("-A", "--all-namespaces", is_flag=True, help="List those of all namespaces.")
@options.output_format("json", "yaml", "name")
@options.cluster_options
def list_jobs(all_namespaces: bool, form: str | None, cluster: Cluster) -> None:
    """List the jobs and sweeps of a namespace, the newest last."""
    from mptraining.cluster.connection import connect
    from mptraining.cluster.job_view import HEADINGS, by_creation, row, view
    from mptraining.sweeps.cluster import list_sweeps
    from mptraining_api.kubernetes_api import JOBS

    options.refuse_together(all_namespaces=all_namespaces, namespace=cluster.namespace)
    server = connect(cluster)
    jobs = sorted(server.items(JOBS, everywhere=all_namespaces), key=by_creation)
    sweeps = sorted(list_sweeps(server, everywhere=all_namespaces), key=by_creation)
    if form is not None:
        print_objects([*jobs, *sweeps], form, many=True)
        return
    if sweeps:
        _print_table(_sweep_table(sweeps, server.name), sweeps, everywhere=all_namespaces)
        click.echo()
    if not jobs:
        there = "any namespace" if all_namespaces else f"namespace {server.namespace!r}"
        click.echo(f"no jobs in {there} of {server.name}")
        return
    table = [HEADINGS, *(row(view(job), time.time()) for job in jobs)]
    _print_table(table, jobs, everywhere=all_namespaces)


def _print_table(table: Sequence[Sequence[str]], documents: Sequence[Mapping[str, Any]], *, everywhere: bool) -> None:
    """Print a table with its headings; its rows are about `documents`, whose namespaces are shown if `everywhere`."""
    if everywhere:
        namespaces = ["NAMESPACE", *(str(document["metadata"].get("namespace")) for document in documents)]
        table = [(namespace, *row) for namespace, row in zip(namespaces, table, strict=True)]
    print_table(table)


def _sweep_table(documents: Sequence[Mapping[str, Any]], cluster: str) -> list[list[str]]:
    from mptraining.cluster.errors import ClusterProblem
    from mptraining.cluster.job_view import age
    from mptraining.sweeps.cluster import view
    from mptraining.sweeps.view import HEADINGS, summary_row

    table = [[*HEADINGS, "AGE"]]
    for document in documents:
        try:
            row = summary_row(view(document, cluster))
        except ClusterProblem:
            row = [str(document["metadata"]["name"]), "cannot be read: update mptraining here", "", "", ""]
        table.append([*row, age(document["metadata"], time.time())])
    return table


@options.command(aliases=["describe"])
@options.job_name
@options.output_format("json", "yaml", "name")
@options.cluster_options
def status(name: str, form: str | None, cluster: Cluster) -> None:
    """Show a job's phase, its reason, and advice.

    For a sweep it shows the best trial. `mptj list` prints the names.
    """
    from mptraining.cluster.errors import ClusterProblem
    from mptraining.cluster.job import Job
    from mptraining.cluster.job_view import lines, no_operator_text
    from mptraining.cluster.submission import waiting_job_warning

    job = job_or_sweep(name, cluster)
    if not isinstance(job, Job):
        _show_sweep(job, form)
        return
    seen = job.status()
    if form is not None:
        print_objects([seen.document], form)
        return
    more = [no_operator_text(seen, time.time()), waiting_job_warning(job.server, seen)]
    try:
        warnings = [event for event in job.events() if event.type == "Warning"]
    except ClusterProblem:
        warnings = []
    for text in lines(seen, more=[text for text in more if text]):
        click.echo(text)
    for event in warnings[-3:]:
        click.echo(f"  {'event':<10}  {event}")
    if not seen.finished:
        logs, wait = (job.server.command(verb, job.name) for verb in ("logs -f", "wait"))
        click.echo(f"  {'next':<10}  {logs}   {wait}")


def _show_sweep(sweep: ClusterSweep, form: str | None) -> None:
    from mptraining.sweeps.view import lines

    if form is not None:
        print_objects([sweep.document()], form)
        return
    seen = sweep.view()
    for text in lines(seen):
        click.echo(text)
    if seen.finished is None:
        wait, compare = (sweep.server.command(verb, f"mpts/{sweep.name}") for verb in ("wait", "sweep compare"))
        click.echo(f"  {'next':<10}  {wait}   {compare}")


@options.command()
@argument(
    "name",
    metavar="NAME",
    help="The job's name; or a run folder, which has a slash, such as ./NAME.",
    shell_complete=options.complete_jobs,
)
@option("-f", "--follow", is_flag=True, help="Follow the logs until the job has ended.")
@options.count("--worker", "Only the logs of this worker, from 0.", least=0)
@options.count("--attempt", "Logs of this attempt; default: the last.")
@option("--raw", is_flag=True, help="Print events as JSON, as in the log of a pod.")
@options.cluster_options
def logs(name: str, follow: bool, worker: int | None, attempt: int | None, raw: bool, cluster: Cluster) -> int | None:
    """Print the logs of a job, or of a run folder.

    A run folder has the output of the program of each worker.
    """
    from mptraining import run_logs
    from mptraining.cluster.wait import detached_text

    detached = ""
    if options.names_folder(name):
        options.refuse_with("a run folder", raw=raw)
        only = {"attempt": attempt, "worker": worker}
        lines = run_logs.follow_lines(name, **only, wait=time.sleep) if follow else run_logs.log_lines(name, **only)
    else:
        job = attach_job(name, cluster)
        lines = job.log_lines(follow=follow, worker=worker, attempt=attempt, raw=raw)
        detached = detached_text(job.server, job.name)
    try:
        for line in lines:
            click.echo(line)
    except KeyboardInterrupt:
        if detached:
            note(detached)
        return 130
    return None


@options.command()
@options.job_name
@option("--timeout", type=float, metavar="SECONDS", help="Longest time to wait; exit code 124 after it.")
@option("--model", metavar="FOLDER", help="Save the trained model in this folder at the end.")
@options.plain
@options.cluster_options
def wait(name: str, timeout: float | None, model: str | None, plain: bool, cluster: Cluster) -> int:
    """Wait until a job or a sweep has ended, and show it.

    The exit code is the job's. Ctrl-C ends the command, not the job.
    """
    from mptraining.cluster.job import Job

    job = job_or_sweep(name, cluster)
    if isinstance(job, Job):
        return wait_for_job(job, timeout=timeout, model=model, plain=plain)
    options.refuse_with("a sweep", model=model, plain=plain)
    return wait_for_sweep(job, timeout=timeout)


def wait_for_job(job: Job, *, timeout: float | None, model: str | None, plain: bool) -> int:
    """Wait for the job and return its exit code; 130 after Ctrl-C, which does not stop the job."""
    from mptraining.cluster.wait import detached_text
    from mptraining.display.choice import display_here

    display = display_here(plain=plain)
    try:
        seen = job.wait(timeout, display=display, fetch=model is not None, on_interrupt="Raise")
        if model is not None and seen.succeeded:
            click.echo(f"model: {job.save_model(model)}")
    except KeyboardInterrupt:
        note(detached_text(job.server, job.name))
        return 130
    return seen.exit_code or 0


def wait_for_sweep(sweep: ClusterSweep, *, timeout: float | None = None) -> int:
    """Print each trial of a cluster's sweep when it ends; return 0 if the sweep succeeded, else 1.

    Returns 130 after Ctrl-C, which does not stop the sweep; raises StillRunning after `timeout` seconds.
    """
    from mptraining.sweeps import view
    from mptraining.sweeps.display import SweepDisplay

    try:
        last = sweep.wait(timeout, display=SweepDisplay())
    except KeyboardInterrupt:
        again, cancel = (sweep.server.command(verb, f"mpts/{sweep.name}") for verb in ("wait", "cancel"))
        note(f"Detached; the sweep continues. {again}   Cancel it: {cancel}")
        return 130
    for text in view.lines(last):
        click.echo(text)
    return 0 if last.succeeded else 1


@options.command()
@options.job_name
@option("--to", metavar="FOLDER", help="Folder to write; default: NAME, or NAME-model.")
@option("--model-only", is_flag=True, help="Only the trained model.")
@options.overwrite
@options.plain
@options.cluster_options
def fetch(name: str, to: str | None, model_only: bool, overwrite: bool, plain: bool, cluster: Cluster) -> int | None:
    """Copy a job's run folder, or its model, here.

    From a bucket, from a claim by a pod that is deleted afterwards, or from worker 0 of a job without output.uri, which
    then ends. An interrupted fetch leaves nothing; the same command starts again.
    """
    from mptraining.display.transfer import transfer_here

    job = attach_job(name, cluster)
    try:
        with _signals_as_interrupt(), transfer_here(plain=plain) as display:
            folder = job.fetch(to, model_only=model_only, overwrite=overwrite, display=display)
    except KeyboardInterrupt as interrupt:
        given = [*(["--to", to] if to else []), *(["--model-only"] if model_only else [])]
        again = job.server.command("fetch", job.name, *given, *(["--overwrite"] if overwrite else []))
        note(f"Stopped. Nothing is kept; to fetch again: {again}")
        return int(interrupt.args[0]) if interrupt.args else 130
    click.echo(f"{'model' if model_only else 'run folder'}: {folder}")
    if not model_only:
        # A word without a slash is a job's name.
        click.echo(f"next: {shlex.join(['mptj', 'compare', str(folder) if '/' in str(folder) else f'./{folder}'])}")
    return None


@contextmanager
def _signals_as_interrupt() -> Iterator[None]:
    """Raise KeyboardInterrupt, with the exit code, on SIGTERM and SIGHUP, so that the pod is deleted then too."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        del frame
        raise KeyboardInterrupt(128 + number)

    before = {caught: signal.signal(caught, interrupt) for caught in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for caught, handler in before.items():
            signal.signal(caught, handler)


@options.command()
@options.job_names
@options.cluster_options
def suspend(names: tuple[str, ...], cluster: Cluster) -> int:
    """Stop jobs at a checkpoint, until `mptj resume`.

    They release their machines. A sweep stops its trials.
    """

    def stop(name: str) -> None:
        job = job_or_sweep(name, cluster)
        _refuse_ended(job)
        job.suspend()
        click.echo(f"suspended: {name}; to continue it: {job.server.command('resume', name)}")

    return for_each(names, stop)


@options.command()
@options.job_names
@options.cluster_options
def resume(names: tuple[str, ...], cluster: Cluster) -> int:
    """Resume suspended jobs from their last checkpoint."""

    def start(name: str) -> None:
        job = job_or_sweep(name, cluster)
        _refuse_ended(job)
        job.resume()
        click.echo(f"resumed: {name}")

    return for_each(names, start)


@options.command(aliases=["delete", "rm"])
@options.job_names
@options.cluster_options
def cancel(names: tuple[str, ...], cluster: Cluster) -> int:
    """Delete jobs or sweeps; run folders are kept.

    Their workers save a checkpoint first.
    """
    from mptraining.cluster.job import Job

    def delete(name: str) -> None:
        job = job_or_sweep(name, cluster)
        if not isinstance(job, Job):
            job.cancel()
            click.echo(f"cancelled: sweep {job.name}, with the jobs of its trials")
            return
        folder = job.status().output
        job.cancel()
        click.echo(f"cancelled: {name}" + (f"; its run folder stays: {folder}" if folder else ""))

    return for_each(names, delete)


def _refuse_ended(job: Job | ClusterSweep) -> None:
    from mptraining.cluster.errors import ClusterProblem
    from mptraining.cluster.job import Job

    if isinstance(job, Job):
        if (seen := job.status()).finished:
            again = f"{job.server.command('cancel', job.name)}, then submit it"
            step = f"To run it again: {again}; with output.uri it resumes from a checkpoint."
            raise ClusterProblem(job.name, f"the job has ended ({seen.phase})", next_step=step)
    elif (sweep := job.view()).finished is not None:
        step = f"`{job.server.command('sweep compare', job.name)}` shows its trials."
        raise ClusterProblem(job.name, f"the sweep has ended ({sweep.phase})", next_step=step)


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

    with options.folder_suggested(name):
        return attach(options.plain_name(name), cluster)
