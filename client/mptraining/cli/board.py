"""Command `mptj board`: a web page over runs and jobs."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mptraining_api.problems import InvalidSpec

if TYPE_CHECKING:
    from mptraining.board.sources import JobSource, Source
    from mptraining.cluster.connection import Cluster

# `mptj run` writes there.
_RUNS = "runs"


def board(
    places: Annotated[
        list[str] | None,
        typer.Argument(help="Run folders, folders with runs, gs:// URIs, or jobs. Default: runs/.", metavar="WHERE"),
    ] = None,
    jobs: Annotated[bool, typer.Option("--jobs", help="Show the jobs of the cluster's namespace.")] = False,
    everywhere: Annotated[bool, typer.Option("--all-namespaces", "-A", help="Show jobs of all namespaces.")] = False,
    port: Annotated[
        int | None, typer.Option(help="Port; default: the first free one from 8666.", min=0, max=65535)
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen at; others can then reach the board.")] = "127.0.0.1",
    open_browser: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
    export: Annotated[str | None, typer.Option(help="Write one offline page instead.", metavar="FILE")] = None,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Start TensorBoard over the runs.")] = False,
    *,
    cluster: Cluster,
) -> None:
    """Show runs and jobs in the browser: live curves, comparisons, logs. Read only; Ctrl-C ends it.

    WHERE is a run folder, a folder with runs at any depth, a gs:// URI, or the name of a job in the cluster.
    """
    if export is not None:
        typer.echo(f"page: {write_page(export, places or [], cluster, jobs=jobs, everywhere=everywhere)}")
        return
    _require_extra()
    from mptraining.board import access, serve
    from mptraining.board.board import Board

    sources, clusters = _sources(places or [], cluster, jobs=jobs or everywhere, everywhere=everywhere)
    shown = Board(sources, clusters)
    if not access.is_loopback(host):
        text = f"warning: {host} is reached from other machines; the connection is not encrypted, the token is the key"
        typer.echo(text, err=True)
    listening = serve.bind(host, port)

    def ready(url: str, once: str) -> None:
        typer.echo(f"board: {url}")
        typer.echo("Ctrl-C ends it.")
        if open_browser:
            import webbrowser

            webbrowser.open(once)

    if not tensorboard:
        serve.serve(shown, listening, host=host, ready=ready)
        return
    from mptraining.cli.tensorboard import running_over

    folders = [each.where for each in sources]
    with running_over(folders, say=typer.echo):
        serve.serve(shown, listening, host=host, ready=ready)


def write_page(file: str, places: list[str], cluster: Cluster, *, jobs: bool = False, everywhere: bool = False) -> Path:
    """Write the offline page of runs and jobs; jobs without a reachable run folder have the curves of their logs."""
    _require_extra()
    from mptraining.board import export
    from mptraining.board.board import Board

    sources = _sources(places, cluster, jobs=jobs or everywhere, everywhere=everywhere, read_logs=True)
    return export.write_page(Path(file), Board(*sources))


def _require_extra() -> None:
    """Raise InvalidSpec if the packages of the extra are not installed."""
    from importlib.util import find_spec

    missing = [name for name in ("jinja2", "msgspec", "starlette", "uvicorn") if find_spec(name) is None]
    if missing:
        step = "pip install 'mptraining[board]'"
        raise InvalidSpec("", f"mptj board needs packages that are not installed: {', '.join(missing)}", next_step=step)


def _sources(
    places: list[str], cluster: Cluster, *, jobs: bool, everywhere: bool, read_logs: bool = False
) -> tuple[list[Source], list[JobSource]]:
    """Return the folders and the jobs to show. Raises Problem for a job if there is no cluster."""
    from mptraining.board.sources import folder_source

    folders = [each for each in places if "/" in each or Path(each).exists()]
    names = [each for each in places if each not in folders]
    if not places and not jobs:
        folders = [_RUNS if Path(_RUNS).is_dir() else "."]
    clusters: list[JobSource] = []
    if jobs or names:
        from mptraining.board.cluster_jobs import ClusterJobs
        from mptraining.cluster.connection import connect

        chosen = [] if jobs else names
        server = connect(cluster)
        clusters.append(
            ClusterJobs(
                server, clock=time.time, names=chosen, everywhere=everywhere, flags=cluster.flags(), read_logs=read_logs
            )
        )
    return [folder_source(each) for each in folders], clusters
