"""Command `mptj check`: a job with its defaults resolved for a cluster, their reasons, and advice; a sweep's search."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from cloup import argument, option

from mptraining.cli import options
from mptraining.cli.output import exit_code, note, print_document, without_limit
from mptraining.cli.shell import completion
from mptraining_api.problems import InvalidSpec, Problem

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from mptraining_api.machines.node_labels import NodeLabels
    from mptraining_api.resolved_job import ResolvedJob
    from mptraining_api.validation.mistakes import Mistake


@options.command()
@argument("files", nargs=-1, metavar="FILE...", help="Files of jobs and sweeps.", shell_complete=completion.job_files)
@option("-f", "--filename", multiple=True, metavar="FILE", help="FILE, as kubectl takes it.")
@option("--runtimes", metavar="FILE", help="The cluster's runtimes, as written by `mptj runtimes -o yaml`.")
@option(
    "--node-labels",
    type=options.choice("gke", "eks", "aks", "nvidia"),
    help="Platform of the cluster's nodes, the operator's setting nodeLabels; default: gke.",
)
@options.output_format("json", "yaml")
def check(
    files: tuple[str, ...], filename: tuple[str, ...], runtimes: str | None, node_labels: str | None, form: str | None
) -> int:
    """Check job files, and show their defaults.

    Each default has its reason. For a sweep, the size of the search is shown. The command asks no cluster. It reports
    all mistakes, each with its line, and then exits with 2. With -o json each file is one line.
    """
    from rich.console import Console

    if not (given := [*filename, *files]):
        raise click.UsageError("Missing FILE, such as job.yaml.")
    platform: NodeLabels = node_labels.upper() if node_labels else "GKE"  # type: ignore[assignment]
    console = without_limit(Console(highlight=False))
    refused: list[tuple[str, Problem]] = []
    for number, file in enumerate(given):
        if number and form != "json":
            click.echo("---" if form else "")
        try:
            _check(file, console, runtimes=runtimes, platform=platform, form=form)
        except Problem as problem:
            refused.append((file, problem))
            if form:
                mistakes = [mistake.to_document() for mistake in mistakes_of(file, problem)]
                _print({"file": file, "mistakes": mistakes}, form)
            else:
                note("\n".join(mistake_lines(file, problem)))
    if refused and not form:
        note(count_text(refused, len(given)))
    return max((exit_code(problem) for _, problem in refused), default=0)


def _check(file: str, console: Console, *, runtimes: str | None, platform: NodeLabels, form: str | None) -> None:
    """Check one file and print its report. Raises Problem."""
    from mptraining_api.validation.job_text import holds_sweep

    if not holds_sweep(file):
        job, advice = check_job(file, runtimes=runtimes, node_labels=platform)
        if form:
            _print({"file": file, "job": job.to_document(), "advice": list(advice)}, form)
        else:
            show(file, job, advice, console)
        return
    from mptraining.sweeps.cost import lines
    from mptraining.sweeps.sweep_file import check_sweep_file
    from mptraining_api.resolve.resolve import ClusterSettings

    if runtimes:
        raise InvalidSpec("--runtimes", f"has no meaning for a sweep, as {file} is one", next_step="Leave it out.")
    checked = check_sweep_file(Path(file), settings=lambda _: ClusterSettings(node_labels=platform))
    if form:
        _print({"file": file, "sweep": checked.sweep.to_document(), "advice": list(checked.notes)}, form)
        return
    for text in (*lines(checked.sweep.metadata.name, checked.sweep.spec), *(f"advice: {n}" for n in checked.notes)):
        click.echo(text)


def _print(document: dict[str, Any], form: str) -> None:
    if form == "json":
        click.echo(json.dumps(document))
    else:
        print_document(document, form)


def check_job(
    path: str, *, runtimes: str | None = None, node_labels: NodeLabels = "GKE"
) -> tuple[ResolvedJob, Sequence[str]]:
    """Return the resolved job of the file at `path`, and advice for its author.

    `runtimes` is a file with the runtimes of the cluster and their limits; without it they are not known.
    `node_labels` is the platform of its nodes. Raises OutsideLimits, InvalidSpec, InvalidJobFile with every mistake.
    """
    from mptraining.job_file.advice import advise, without_effect
    from mptraining.job_file.checked_job import check_job_file
    from mptraining.job_file.runtimes_file import load
    from mptraining_api.limit_rules import check_limits
    from mptraining_api.resolve.resolve import ClusterSettings

    settings, known = ClusterSettings(node_labels=node_labels), None
    if runtimes is not None:
        known = load(Path(runtimes))
        settings = replace(settings, runtimes=known.runtimes, default_runtimes=known.default_runtimes)
    checked = check_job_file(Path(path), settings=lambda _: settings)
    if known is not None:
        check_limits(checked.written, checked.resolved, known.runtimes)
    records = _advice_on_records(checked.resolved, Path(path).absolute().parent)
    unused = without_effect(checked.written.spec, checked.resolved)
    return checked.resolved, (*checked.notes, *unused, *advise(checked.resolved), *records)


def _advice_on_records(job: ResolvedJob, folder: Path) -> Sequence[str]:
    """Return what the manifests of local records say about their order."""
    from mptraining.job_file.paths import absolute_path
    from mptraining_records.tfrecord import manifest, sorted_labels

    patterns = [absolute_path(pattern, folder) for pattern in job.data.train] if job.data else []
    if job.data is None or not patterns or any("://" in pattern for pattern in patterns):
        return ()
    try:
        sorting = sorted_labels.report(manifest.find(patterns), job.data)
    except Problem:
        # Damaged manifests are the subject of `mptj run`, which reads the records.
        return ()
    return () if sorting is None else (f"data.train: {sorting.text}",)


def summary(path: str, job: ResolvedJob) -> str:
    """Return one line with the program and the accelerators."""
    from mptraining.display.text import program_text

    accelerator = job.accelerator
    most = f"{job.workers} workers with " if job.workers > 1 else ""
    workers = f"{job.workers_range.min} to {most}" if job.workers_range is not None else most
    shape = accelerator.topology or str(accelerator.count_per_worker)
    return f"{path}: {job.name} trains {program_text(job)} on {workers}{shape} x {accelerator.title}"


def rows(job: ResolvedJob) -> Sequence[tuple[str, str, str]]:
    """Return (field, value, reason) of every default that was resolved."""
    shown = [(choice.field.removeprefix("spec."), choice.value, choice.because) for choice in job.choices]
    if job.output is not None:
        return shown
    # The choices are for a cluster, but a local run comes next for most users, with another run folder.
    here = f"; `mptj run` writes runs/{job.name} instead"
    return [(field, value, because + here * (field == "output.uri")) for field, value, because in shown]


def show(path: str, job: ResolvedJob, advice: Sequence[str], console: Console) -> None:
    """Print the job as text and a table of its defaults, and the advice."""
    from rich.table import Table
    from rich.text import Text

    console.print(Text(summary(path, job), style="bold"))
    if job.alternatives:
        console.print(_machines(job))
    table = Table(show_edge=False, pad_edge=False, header_style="bold")
    table.add_column("decided")
    table.add_column("value", style="green", overflow="fold")
    table.add_column("because", overflow="fold")
    for field, value, because in rows(job):
        table.add_row(Text(field), Text(value), Text(because))
    console.print(table)
    for text in advice:
        console.print(Text(f"advice: {text}", style="yellow"))


def machine_rows(job: ResolvedJob) -> Sequence[tuple[str, ...]]:
    """Return (machine, provisioning, strategy, policy, workers x replicas, examples per replica) of each machine."""
    from mptraining_api.resolve import attempt

    return [
        (
            f"{machine.accelerator.topology or machine.accelerator.count_per_worker} x {machine.accelerator.title}",
            machine.accelerator.provisioning,
            machine.strategy,
            machine.precision.policy,
            f"{machine.workers} x {machine.replicas_per_worker}",
            str(machine.per_replica_batch_size or ""),
        )
        for machine in attempt.machines(job)
    ]


def _machines(job: ResolvedJob) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(show_edge=False, pad_edge=False, header_style="bold")
    for name in (
        "tried in this order",
        "provisioning",
        "strategy",
        "precision",
        "workers x replicas",
        "examples per replica",
    ):
        table.add_column(name, overflow="fold")
    for row in machine_rows(job):
        table.add_row(*(Text(cell) for cell in row))
    return table


def mistakes_of(file: str, problem: Problem) -> tuple[Mistake, ...]:
    """Return the mistakes of a job file; another problem, such as a missing file, is one without a line."""
    from mptraining_api.validation.mistakes import InvalidJobFile, Mistake

    return problem.mistakes if isinstance(problem, InvalidJobFile) else (Mistake(file, None, problem),)


def mistake_lines(file: str, problem: Problem) -> list[str]:
    """Return one line for each mistake, with its file and line."""
    mistakes = mistakes_of(file, problem)
    return [str(mistake.problem if mistake.problem.where == file else mistake) for mistake in mistakes]


def count_text(refused: Sequence[tuple[str, Problem]], files: int) -> str:
    """Return the last line: the number of mistakes, and of files that have some."""
    count = sum(len(mistakes_of(file, problem)) for file, problem in refused)
    where = f" in {len(refused)} of {files} files" if files > 1 else ""
    return f"mptj: {count} mistake{'s' if count != 1 else ''}{where}"
