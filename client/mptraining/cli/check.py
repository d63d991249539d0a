"""Report of `mptj check FILE`: the job with its defaults resolved for a cluster, their reasons, and advice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from mptraining.display.text import program_text
from mptraining.local.run import absolute_path, source_folder
from mptraining.packaging.keras_choice import with_keras_of_folder
from mptraining_api.problems import Problem
from mptraining_api.resolve.resolve import ClusterSettings, resolve
from mptraining_api.resolved_job import ResolvedJob
from mptraining_api.spec import MPTrainingJob


@dataclass(frozen=True, slots=True)
class Report:
    """A valid job file: the resolved job, and advice for its author."""

    path: str
    job: ResolvedJob
    advice: tuple[str, ...]


def check(path: str) -> Report:
    """Load, validate and resolve the job in the file at `path`. Raises InvalidSpec."""
    from mptraining_api.resolve.advice import advise

    written = MPTrainingJob.load(Path(path))
    folder = source_folder(written.spec, Path(path).absolute().parent)
    document, notes = with_keras_of_folder(written.to_document(), folder)
    job = resolve(MPTrainingJob.parse(document), ClusterSettings())
    return Report(path, job, (*notes, *advise(job), *_advice_on_records(job, Path(path).absolute().parent)))


def _advice_on_records(job: ResolvedJob, folder: Path) -> Sequence[str]:
    """Return what the manifests of local records say about their order; without --deep no bucket is read."""
    from mptraining_records.tfrecord import manifest, sorted_labels

    patterns = [absolute_path(each, folder) for each in job.data.train] if job.data else []
    if job.data is None or any("://" in each for each in patterns):
        return ()
    try:
        found = sorted_labels.report(manifest.find(patterns), job.data)
    except Problem:
        # Damaged manifests are the subject of `mptj run` and `--deep`, which read the records.
        return ()
    return () if found is None else (f"data.train: {found.text}",)


def summary(report: Report) -> str:
    """Return one line with the program and the accelerators."""
    job = report.job
    accelerator = job.accelerator
    nodes = f"{job.processes} nodes with " if job.processes > 1 else ""
    shape = accelerator.topology or str(accelerator.count_per_node)
    return f"{report.path}: {job.name} trains {program_text(job)} on {nodes}{shape} x {accelerator.title}"


def rows(job: ResolvedJob) -> Sequence[tuple[str, str, str]]:
    """Return (field, value, reason) of every default that was resolved."""
    shown = [(each.field.removeprefix("spec."), each.value, each.because) for each in job.choices]
    if job.output is not None:
        return shown
    # The choices are for a cluster, but a local run comes next for most users, with another run folder.
    here = f"; `mptj run --local` writes runs/{job.name} instead"
    return [(field, value, because + here * (field == "output.uri")) for field, value, because in shown]


def to_document(report: Report) -> dict[str, Any]:
    """Return the report as JSON: the file, the resolved job with its choices, the advice."""
    return {"file": report.path, "job": report.job.to_document(), "advice": list(report.advice)}


def show(report: Report, console: Console) -> None:
    """Print the report as text and a table."""
    console.print(Text(summary(report), style="bold"), soft_wrap=True)
    table = Table(show_edge=False, pad_edge=False, header_style="bold")
    table.add_column("decided")
    table.add_column("value", style="green", overflow="fold")
    table.add_column("because", overflow="fold")
    for field, value, because in rows(report.job):
        table.add_row(Text(field), Text(value), Text(because))
    console.print(table)
    for each in report.advice:
        console.print(Text(f"advice: {each}", style="yellow"), soft_wrap=True)
