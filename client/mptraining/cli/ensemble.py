"""Command `mptj ensemble`: a job that averages the best of some runs."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from cloup import option

from mptraining.cli import options
from mptraining.cli.output import note, print_document, typed_command
from mptraining_api.problems import InvalidData, InvalidSpec, nearest

if TYPE_CHECKING:
    from mptraining.runs import Run


@options.command()
@options.runs_argument("runs", "RUN...", "Run folders.", nargs=-1, required=True)
@options.count("--top", "Number of members; default: 5.", least=2, default=5)
@option("--monitor", metavar="METRIC", default="val_loss", help="Metric that orders the runs; default: val_loss.")
@option("--mode", type=options.choice("min", "max"), help="Better direction of the metric.")
@option(
    "--weights",
    type=options.choice("equal", "score"),
    default="equal",
    help="Weights of the members: all the same, or by the metric; default: equal.",
)
@option("--name", metavar="NAME", default="ensemble", help="Name of the new run; default: ensemble.")
@option("--run-folder", metavar="FOLDER", help="Run folder of the new run; default: runs/NAME.")
@options.dry_run
@options.plain
def ensemble(
    runs: tuple[str, ...],
    top: int,
    monitor: str,
    mode: str | None,
    weights: str,
    name: str,
    run_folder: str | None,
    dry_run: bool,
    plain: bool,
) -> int | None:
    """Average the best of some runs in one model.

    The model is exported, and evaluated together with its best member. The run folder is one that compare, board,
    predict and track take.
    """
    from mptraining.display.choice import display_here
    from mptraining.job_file.paths import absolute_path
    from mptraining.local.runner import LocalRunner
    from mptraining.runs import load_run

    options.refuse_with("--dry-run", plain=plain and dry_run)
    here = Path.cwd()
    folder = absolute_path(run_folder or f"runs/{name}", here)
    members, better = choose([load_run(absolute_path(run, here)) for run in runs], monitor, mode)
    document = job_document(name, members[:top], weights, better, folder)
    if dry_run:
        print_document(document, "yaml")
        return None
    for run, value in members[:top]:
        click.echo(f"member: {run.folder}  {monitor} {value:.6g}")
    if code := LocalRunner(again=typed_command()).run(document, display_here(plain=plain)).exit_code:
        return code
    metrics = load_run(folder).metrics
    for key in (key for key in metrics if f"best_member_{key}" in metrics):
        click.echo(f"{key}: {metrics[key]:.6g}, best member {metrics[f'best_member_{key}']:.6g}")
    click.echo(f"next: mptj compare {shlex.quote(folder)}")
    return 0


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
            note(f"note: {run.folder} has no exported model")
        elif value is None or not math.isfinite(value):
            note(f"note: {run.folder} has no {monitor} of its exported weights")
        else:
            members[run.folder.rstrip("/")] = run, value
    if len(members) < 2:
        known = sorted({metric for run in runs for metric in run.metrics})
        step = nearest(monitor, known)
        raise InvalidData("RUN", f"{len(members)} runs can be members", expected="two or more", next_step=step)
    better = mode or {"down": "min", "up": "max"}.get(metric_direction(monitor) or "")
    if better is None:
        raise InvalidSpec("--mode", f"no direction in which {monitor!r} is better", expected="min or max")
    return sorted(members.values(), key=lambda member: member[1], reverse=better == "max"), better


def job_document(
    name: str, members: Sequence[tuple[Run, float]], weights: str, better: str, folder: str
) -> dict[str, Any]:
    """Return the document of the job, with the records of the best member. Raises InvalidSpec."""
    from mptraining.prediction_job import OF_RECORDS, accelerator_document, document

    best = members[0][0]
    if best.job is None or best.job.data is None or not best.job.data.validation:
        missing = f"the job of {best.folder} has no data.validation to evaluate the ensemble on"
        raise InvalidSpec("RUN", missing, next_step="Train the members with data.validation.")
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
