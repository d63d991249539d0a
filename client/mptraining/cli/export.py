"""`mptj export`: a run's metrics to TensorBoard, MLflow or Weights & Biases, afterwards or while it trains."""

from __future__ import annotations

import os
import time
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from mptraining_api.problems import InvalidSpec, Problem, StorageUnavailable

if TYPE_CHECKING:
    from mptraining.tracking.export import Server
    from mptraining_api.resolved_job import ResolvedJob


class To(StrEnum):
    """What takes a run."""

    TENSORBOARD = "tensorboard"
    MLFLOW = "mlflow"
    WANDB = "wandb"


def export(
    run: Annotated[str, typer.Argument(help="Run folder, local or gs://.", metavar="RUN")],
    to: Annotated[To, typer.Option(help="What takes the run.")],
    uri: Annotated[str | None, typer.Option(help="MLflow's tracking server; default: the job's.")] = None,
    experiment: Annotated[str | None, typer.Option(help="MLflow's experiment; default: the job's name.")] = None,
    project: Annotated[str | None, typer.Option(help="W&B's project; default: the job's name.")] = None,
    output: Annotated[str | None, typer.Option(help="Folder for TensorBoard's files.", metavar="DIR")] = None,
    follow: Annotated[str | None, typer.Option(help="Until this launch has finished.", hidden=True)] = None,
) -> None:
    """Send a run's metrics, parameters and outcome to a tracking server, or write TensorBoard's files.

    The same command completes an export that was interrupted, and adds later attempts to the same run.
    """
    from mptraining.tracking.export import Export, describe, read_job
    from mptraining.tracking.export import follow as follow_run

    if to is To.TENSORBOARD:
        _tensorboard(run, output)
        return
    job = read_job(run) if follow is None else None
    try:
        server = _server(to, job, uri=uri, experiment=experiment, project=project)
    except Problem:
        raise
    except Exception as error:
        raise InvalidSpec("--uri", describe(error), expected="the address of a tracking server") from error
    sending = Export(run, to, server)
    if follow is not None:
        follow_run(
            sending, incarnation=follow, wait=time.sleep, on_error=lambda text: typer.echo(f"{to}: {text}", err=True)
        )
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
    typer.echo(f"{to}: run {sending.state.run_id}, up to step {sending.state.step}")
    if sending.state.url:
        typer.echo(f"  {sending.state.url}")


def _tensorboard(run: str, output: str | None) -> None:
    from mptraining.tracking.tensorboard import export_tensorboard

    if output is None:
        step = f"A run has its scalars already: tensorboard --logdir {run.rstrip('/')}/tensorboard"
        raise InvalidSpec("--output", "not given", expected="a folder for TensorBoard's files", next_step=step)
    typer.echo(f"tensorboard: {export_tensorboard(run, output):,} values; view with: tensorboard --logdir {output}")


def _server(to: To, job: ResolvedJob | None, *, uri: str | None, experiment: str | None, project: str | None) -> Server:
    tracking = job.tracking if job is not None else None
    name = job.name if job is not None else ""
    if to is To.WANDB:
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
