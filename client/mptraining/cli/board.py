"""Command `mptj board`: a web page over runs and jobs, with TensorBoard over the same folders if that is asked for."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
import webbrowser
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click
from cloup import option

from mptraining.cli import options
from mptraining.cli.output import note
from mptraining_api.problems import InvalidSpec

if TYPE_CHECKING:
    from mptraining.board.sources import Source
    from mptraining.cluster.connection import Cluster

# `mptj run` writes there.
_RUNS = "runs"
_LOCAL = "127.0.0.1"
# The line in which TensorBoard names its address.
_URL = re.compile(r"http://\S+")
STOP_SECONDS = 5.0


@options.command()
@options.runs_argument(
    "places",
    "[WHERE]...",
    "Folders with runs (with a slash: ./NAME), gs:// URIs, or jobs. Default: runs/.",
    nargs=-1,
)
@option("--jobs", is_flag=True, help="Show the jobs of the cluster's namespace.")
@option("-A", "--all-namespaces", is_flag=True, help="Show the jobs of all namespaces.")
@option("--to", metavar="FILE", help="Write one offline page instead.")
@option("--open", "open_browser", is_flag=True, help="Open the page in the browser.")
@option("--tensorboard", is_flag=True, help="Start TensorBoard over the runs, too.")
@option("--host", metavar="ADDRESS", help=f"Address to listen at; default: {_LOCAL}, for this machine alone.")
@option("--port", type=click.IntRange(0, 65535), metavar="PORT", help="Port; default: the first free one from 8666.")
@options.cluster_options
def board(
    places: tuple[str, ...],
    jobs: bool,
    all_namespaces: bool,
    to: str | None,
    open_browser: bool,
    tensorboard: bool,
    host: str | None,
    port: int | None,
    cluster: Cluster,
) -> None:
    """Show runs and jobs in the browser.

    Curves are live. The board only reads. Ctrl-C ends it.
    """
    options.refuse_together(all_namespaces=all_namespaces, namespace=cluster.namespace)
    shown = {"jobs": jobs or all_namespaces, "everywhere": all_namespaces}
    if to is not None:
        options.refuse_with("--to", open=open_browser, tensorboard=tensorboard, host=host, port=port)
        click.echo(f"page: {write_page(to, list(places), cluster, **shown)}")
        return
    _require_extra()
    from mptraining.board import access, serve
    from mptraining.board.state import Board

    sources, clusters = _sources(list(places), cluster, **shown)
    runs = Board([*sources, *clusters])
    if host is not None and not access.is_loopback(host):
        note(f"warning: {host} is reached from other machines; the connection is not encrypted, the token is the key")
    listening = serve.bind(host or _LOCAL, port)

    def ready(url: str, once: str) -> None:
        click.echo(f"board: {url}")
        click.echo("Ctrl-C ends it.")
        if open_browser:
            webbrowser.open(once)

    with ExitStack() as stack:
        if tensorboard:
            stack.enter_context(running_over([source.where for source in sources], say=click.echo))
        serve.serve(runs, listening, host=host or _LOCAL, ready=ready)


def write_page(file: str, places: list[str], cluster: Cluster, *, jobs: bool = False, everywhere: bool = False) -> Path:
    """Write the offline page of runs and jobs; jobs without a reachable run folder have the curves of their logs."""
    _require_extra()
    from mptraining.board import static_page
    from mptraining.board.state import Board

    folders, clusters = _sources(places, cluster, jobs=jobs, everywhere=everywhere, read_logs=True)
    return static_page.write_page(Path(file), Board([*folders, *clusters]))


def _require_extra() -> None:
    """Raise InvalidSpec if the packages of the extra are not installed."""
    missing = [name for name in ("starlette", "uvicorn") if find_spec(name) is None]
    if missing:
        step = "pip install 'mptraining[board]'"
        raise InvalidSpec("", f"mptj board needs packages that are not installed: {', '.join(missing)}", next_step=step)


def _sources(
    places: list[str], cluster: Cluster, *, jobs: bool, everywhere: bool, read_logs: bool = False
) -> tuple[list[Source], list[Source]]:
    """Return the folders and the jobs to show. Raises Problem for a job if there is no cluster."""
    from mptraining.board.sources import folder_source

    folders = [where for where in places if options.names_folder(where)]
    names = [where for where in places if where not in folders]
    if not places and not jobs:
        folders = [_RUNS if Path(_RUNS).is_dir() else "."]
    clusters: list[Source] = []
    if jobs or names:
        from mptraining.board.cluster_jobs import ClusterJobs
        from mptraining.cluster.connection import connect

        chosen = [] if jobs else names
        with options.folder_suggested(names[0] if names else ""):
            server = connect(cluster)
        clusters.append(
            ClusterJobs(
                server, clock=time.time, names=chosen, everywhere=everywhere, flags=cluster.flags(), read_logs=read_logs
            )
        )
    return [folder_source(folder) for folder in folders], clusters


def tensorboard_command(folders: Sequence[str]) -> list[str]:
    """Return the command line; TensorBoard chooses a free port and listens on this machine alone.

    Several folders are named by `--logdir_spec`, which separates them with commas.
    """
    where = ["--logdir", folders[0]] if len(folders) == 1 else ["--logdir_spec", ",".join(folders)]
    return [sys.executable, "-m", "tensorboard.main", *where, "--port", "0", "--reload_interval", "5"]


@contextmanager
def running_over(folders: Sequence[str], *, say: Callable[[str], None]) -> Iterator[None]:
    """Run TensorBoard until the end of the block; `say` gets its address. Raises InvalidSpec if it is not installed."""
    if not folders:
        raise InvalidSpec("--tensorboard", "there is no folder with runs", expected="WHERE with a run folder")
    if find_spec("tensorboard") is None:
        step = "pip install 'tensorboard>=2.20,<2.22' setuptools"
        raise InvalidSpec("--tensorboard", "TensorBoard is not installed here", next_step=step)
    # Its own session, so that Ctrl-C is for the board, which then stops it.
    process = subprocess.Popen(  # noqa: S603 - a fixed command, no shell
        tensorboard_command(folders),
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )

    def read() -> None:
        assert process.stderr is not None
        last = ""
        for line in process.stderr:
            last = line.strip() or last
            if match := _URL.search(line):
                say(f"TensorBoard: {match[0]}")
        if process.wait() > 0:
            say(f"TensorBoard ended with exit code {process.returncode}: {last}")

    thread = threading.Thread(target=read, daemon=True, name="tensorboard")
    thread.start()
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
        thread.join(STOP_SECONDS)
