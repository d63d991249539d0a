"""`mptj track`: a run's metrics to MLflow, Weights & Biases or TensorBoard, afterwards or while it trains."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import click
from cloup import option

from mptraining.cli import options
from mptraining.cli.output import note
from mptraining_api.problems import InvalidSpec, Problem, StorageUnavailable

if TYPE_CHECKING:
    from mptraining.tracking.export import Server
    from mptraining_api.resolved_job import ResolvedJob


@options.command()
@options.runs_argument("run", "RUN", "Run folder, local or gs://.")
@option("--to", required=True, type=options.choice("mlflow", "wandb", "tensorboard"), help="The tracker.")
@option("--uri", metavar="URI", help="MLflow: the tracking server; default: the job's, or MLFLOW_TRACKING_URI.")
@option("--experiment", metavar="NAME", help="MLflow: the experiment; default: the job's name.")
@option("--project", metavar="NAME", help="W&B: the project; default: the job's name.")
@option("--folder", metavar="FOLDER", help="TensorBoard: the folder for its files.")
@option("--follow", metavar="INCARNATION", hidden=True, help="Until this launch has finished.")
def track(
    run: str,
    to: str,
    uri: str | None,
    experiment: str | None,
    project: str | None,
    folder: str | None,
    follow: str | None,
) -> None:
    """Send a run to MLflow, W&B or TensorBoard.

    Metrics, parameters and the outcome are sent. The same command completes what was interrupted, and adds later
    attempts to the same run.
    """
    from mptraining.tracking.export import Export, describe, read_job
    from mptraining.tracking.export import follow as follow_run

    if to != "mlflow":
        options.refuse_with(f"--to {to}", uri=uri, experiment=experiment)
    if to != "wandb":
        options.refuse_with(f"--to {to}", project=project)
    if to == "tensorboard":
        _write_tensorboard(run, folder)
        return
    options.refuse_with(f"--to {to}", folder=folder)
    job = read_job(run) if follow is None else None
    try:
        server = _server(to, job, uri=uri, experiment=experiment, project=project)
    except Problem:
        raise
    except Exception as error:
        raise InvalidSpec("--uri", describe(error), expected="the address of a tracking server") from error
    sending = Export(run, to, server)
    if follow is not None:
        follow_run(sending, incarnation=follow, wait=time.sleep, on_error=lambda text: note(f"{to}: {text}"))
        return
    sending.read()
    try:
        sending.send(final=True)
    except Problem:
        raise
    except Exception as error:
        kept = f"up to step {sending.state.step}" if sending.state is not None else "nothing of the run"
        step = f"The server has {kept}; the same command continues."
        raise StorageUnavailable(f"--to {to}", describe(error), next_step=step) from error
    assert sending.state is not None
    click.echo(f"{to}: run {sending.state.run_id}, up to step {sending.state.step}")
    if sending.state.url:
        click.echo(f"  {sending.state.url}")


def _write_tensorboard(run: str, folder: str | None) -> None:
    from mptraining.tracking.tensorboard import export_tensorboard

    if folder is None:
        step = f"A run has its scalars already: tensorboard --logdir {run.rstrip('/')}/tensorboard"
        raise InvalidSpec("--folder", "not given", expected="a folder for TensorBoard's files", next_step=step)
    click.echo(f"tensorboard: {export_tensorboard(run, folder):,} values; view with: tensorboard --logdir {folder}")


def _server(
    to: str, job: ResolvedJob | None, *, uri: str | None, experiment: str | None, project: str | None
) -> Server:
    tracking = job.tracking if job is not None else None
    name = job.name if job is not None else ""
    if to == "wandb":
        from mptraining.tracking.wandb import WandBServer

        return WandBServer(project or (tracking.wandb.project if tracking and tracking.wandb else name))
    from mptraining.tracking.mlflow import MLflowServer

    written = tracking.mlflow if tracking else None
    server = uri or (written.uri if written else None) or os.environ.get("MLFLOW_TRACKING_URI")
    if server is None:
        raise InvalidSpec(
            "--uri", "not given", expected="MLflow's tracking server", next_step="Or set spec.tracking.mlflow.uri."
        )
    return MLflowServer(server, experiment or (written.experiment if written else None) or name)
