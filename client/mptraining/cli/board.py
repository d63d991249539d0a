"""Command `mptj board`: a web page over runs and jobs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mptraining_api.problems import InvalidSpec

if TYPE_CHECKING:
    from mptraining.board.sources import Source
    from mptraining.cluster.connection import Where

# `mptj run` writes there.
_RUNS = "runs"


def board(
    places: Annotated[
        list[str] | None,
        typer.Argument(
            help="Run folders, folders with runs, gs:// URIs, or jobs. Default: runs/.", metavar="[WHERE]..."
        ),
    ] = None,
    jobs: Annotated[bool, typer.Option("--jobs", help="Show the jobs of the cluster's namespace, too.")] = False,
    everywhere: Annotated[bool, typer.Option("--all-namespaces", "-A", help="Show jobs of all namespaces.")] = False,
    port: Annotated[int | None, typer.Option(help="Port; default: the first free one from 8666.", min=0)] = None,
    host: Annotated[str, typer.Option(help="Address to listen at; others can then reach the board.")] = "127.0.0.1",
    open_browser: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
    export: Annotated[str | None, typer.Option(help="Write one offline page instead.", metavar="FILE")] = None,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Start TensorBoard over the runs.")] = False,
    *,
    where: Where,
) -> None:
    """Show runs and jobs in the browser: live curves, comparisons, logs. Read only; Ctrl-C ends it.

    WHERE is a run folder, a folder with runs at any depth, a gs:// URI, or the name of a job in the cluster.
    """
    _require_extra()
    sources = _sources(places or [], where, jobs=jobs, everywhere=everywhere)
    if export is not None:
        from mptraining.board.export import write_page

        typer.echo(f"page: {write_page(export, sources)}")
        return
    from mptraining.board import access, serve
    from mptraining.board.board import Board

    if not access.is_loopback(host):
        text = f"warning: {host} is reached from other machines; the connection is not encrypted, the token is the key"
        typer.echo(text, err=True)
    listening = serve.bind(host, port)

    def ready(url: str) -> None:
        typer.echo(f"board: {url}")
        typer.echo("Ctrl-C ends it.")
        if open_browser:
            import webbrowser

            webbrowser.open(url)

    if not tensorboard:
        serve.serve(Board(sources), listening, host=host, ready=ready)
        return
    from mptraining.board.tensorboard import running_over

    with running_over([each.where for each in sources], say=typer.echo):
        serve.serve(Board(sources), listening, host=host, ready=ready)


def _require_extra() -> None:
    """Raise InvalidSpec if the packages of the extra are not installed."""
    from importlib.util import find_spec

    missing = [name for name in ("jinja2", "msgspec", "starlette", "uvicorn") if find_spec(name) is None]
    if missing:
        step = "pip install 'mptraining[board]'"
        raise InvalidSpec("", f"mptj board needs packages that are not installed: {', '.join(missing)}", next_step=step)


def _sources(places: list[str], where: Where, *, jobs: bool, everywhere: bool) -> list[Source]:
    from mptraining.board.sources import folder_source

    folders = [each for each in places if "/" in each or Path(each).exists()]
    if not places:
        folders = [_RUNS if Path(_RUNS).is_dir() else "."]
    return [folder_source(each) for each in folders]
