"""Command `mptj ensemble`: a job that averages the best of some runs."""

from __future__ import annotations

import math
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mptraining.cli.jobs import Format, Plain, print_documents
from mptraining.cli.shell import completion
from mptraining_api.problems import InvalidData, InvalidSpec, nearest

if TYPE_CHECKING:
    from mptraining.runs import Run


def ensemble(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", autocompletion=completion.run_folders)],
    top: Annotated[int, typer.Option(help="Number of members, the best of the runs.", min=2, metavar="N")] = 5,
    monitor: Annotated[str, typer.Option(help="Metric that orders the runs.", metavar="METRIC")] = "val_loss",
    mode: Annotated[str | None, typer.Option(help="Better direction of the metric.", metavar="min|max")] = None,
    weights: Annotated[str, typer.Option(help="score: by the metric.", metavar="equal|score")] = "equal",
    name: Annotated[str, typer.Option(help="Name of the ensemble's run.", metavar="NAME")] = "ensemble",
    output: Annotated[str | None, typer.Option(help="Run folder; default: runs/NAME.", metavar="DIR")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the job; average nothing.")] = False,
    plain: Plain = False,
) -> None:
    """Average the best of some runs, local or gs://, in one exported model, evaluated with its best member.

    Its run folder is one that compare, board, fetch, predict and export take.
    """
    from mptraining.display.choice import display_here
    from mptraining.job_file.paths import absolute_path
    from mptraining.local.run import LocalRunner
    from mptraining.runs import load_run

    if weights not in ("equal", "score"):
        raise InvalidSpec("--weights", repr(weights), expected="equal or score")
    here = Path.cwd()
    folder = absolute_path(output or f"runs/{name}", here)
    members, better = choose([load_run(absolute_path(run, here)) for run in runs], monitor, mode)
    document = job_document(name, members[:top], weights, better, folder)
    if dry_run:
        return print_documents([document], Format.YAML, many=False)
    for run, value in members[:top]:
        typer.echo(f"member: {run.folder}  {monitor} {value:.6g}")
    again = shlex.join(["mptj", *sys.argv[1:]])
    if code := LocalRunner(again=again).run(document, display_here(plain=plain)).exit_code:
        raise typer.Exit(code)
    metrics = load_run(folder).metrics
    for key in (key for key in metrics if f"best_member_{key}" in metrics):
        typer.echo(f"{key}: {metrics[key]:.6g}, best member {metrics[f'best_member_{key}']:.6g}")
    return typer.echo(f"next: mptj compare {shlex.quote(folder)}")


def choose(runs: Sequence[Run], monitor: str, mode: str | None) -> tuple[list[tuple[Run, float]], str]:
    """Return the runs that can be members with their values of `monitor`, the best first, and the better direction.

    The value is that of the exported weights. Raises InvalidSpec and InvalidData.
    """
    from mptraining_api.run_folder import metric_direction

    members: dict[str, tuple[Run, float]] = {}
    for run in runs:
        best = run.result.best if run.result is not None else None
        # With `export.checkpoint: Best` the last metrics are not those of the exported weights.
        value = run.metrics.get(monitor) if best is None else best.value if best.monitor == monitor else None
        if run.result is None or run.result.model is None:
            typer.echo(f"note: {run.folder} has no exported model", err=True)
        elif value is None or not math.isfinite(value):
            typer.echo(f"note: {run.folder} has no {monitor} of its exported weights", err=True)
        else:
            members[run.folder.rstrip("/")] = run, value
    if len(members) < 2:
        known = sorted({metric for run in runs for metric in run.metrics})
        step = nearest(monitor, known)
        raise InvalidData("RUN", f"{len(members)} runs can be members", expected="two or more", next_step=step)
    better = mode or {"down": "min", "up": "max"}.get(metric_direction(monitor) or "")
    if better not in ("min", "max"):
        found = f"no direction in which {monitor!r} is better" if mode is None else repr(mode)
        raise InvalidSpec("--mode", found, expected="min or max")
    return sorted(members.values(), key=lambda member: member[1], reverse=better == "max"), better


def job_document(
    name: str, members: Sequence[tuple[Run, float]], weights: str, better: str, folder: str
) -> dict[str, Any]:
    """Return the document of the job, with the records of the best member. Raises InvalidSpec."""
    from mptraining.prediction_job import OF_RECORDS, accelerator_document, document

    best = members[0][0]
    if best.job is None or best.job.data is None or not best.job.data.validation:
        found = f"the job of {best.folder} has no data.validation to evaluate the ensemble on"
        raise InvalidSpec("RUN", found, next_step="Train the members with data.validation.")
    program: dict[str, Any] = {"members": [run.folder for run, _ in members]}
    if weights == "score":
        if any(value <= 0 for _, value in members):
            raise InvalidSpec("--weights", "score with a value that is not above 0", next_step="Write --weights equal.")
        program["weights"] = [value if better == "max" else 1 / value for _, value in members]
    described = best.job.data.to_document()
    data = {key: described[key] for key in ("train", "validation", *OF_RECORDS) if described.get(key) is not None}
    if ":" not in best.job.data.preprocess:
        # That of an application comes with its model.
        data.pop("preprocess", None)
    accelerator = accelerator_document(best.job.accelerator)
    return document(name, accelerator=accelerator, program={"ensemble": program}, data=data, output=folder)
