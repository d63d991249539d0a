"""`mptj fetch`: the run folder or the model of a job."""

from __future__ import annotations

import shlex
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from mptraining.cli.jobs import Name, Plain, attach_job

if TYPE_CHECKING:
    from mptraining.cluster.connection import Cluster


def fetch(
    name: Name,
    to: Annotated[str | None, typer.Option("--to", help="Folder to write; default: NAME.", metavar="FOLDER")] = None,
    model_only: Annotated[
        bool, typer.Option("--model-only", help="Only the trained model; default folder: NAME-model.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the folder if it exists.")] = False,
    plain: Plain = False,
    *,
    cluster: Cluster,
) -> None:
    """Copy a job's run folder, or its model, to this machine.

    From a bucket, from a claim by a pod that is deleted afterwards, or from worker 0 of a job without output.uri, which
    then ends. An interrupted fetch leaves nothing; the same command starts again.
    """
    from mptraining.display.transfer import transfer_here

    job = attach_job(name, cluster)
    try:
        with _signals_as_interrupt(), transfer_here(plain=plain) as display:
            folder = job.fetch(to, model_only=model_only, overwrite=overwrite, display=display)
    except KeyboardInterrupt as interrupt:
        options = [*(["--to", to] if to else []), *(["--model-only"] if model_only else [])]
        again = job.server.command("fetch", job.name, *options, *(["--overwrite"] if overwrite else []))
        typer.echo(f"Stopped. Nothing is kept; to fetch again: {again}", err=True)
        raise typer.Exit(interrupt.args[0] if interrupt.args else 130) from None
    typer.echo(f"{'model' if model_only else 'run folder'}: {folder}")
    if not model_only:
        typer.echo(f"next: mptj compare {shlex.quote(str(folder))}")


@contextmanager
def _signals_as_interrupt() -> Iterator[None]:
    """Raise KeyboardInterrupt, with the exit code, on SIGTERM and SIGHUP, so that the pod is deleted then too."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        del frame
        raise KeyboardInterrupt(128 + number)

    before = {each: signal.signal(each, interrupt) for each in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
