"""Commands that reach into a running job: a command in a worker's container, a debugger of its program."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import click
import cloup

from mptraining.cli import options
from mptraining.cli.output import note

if TYPE_CHECKING:
    from mptraining.cluster.connection import Cluster

_worker = cloup.option(
    "--worker", type=click.IntRange(min=0), default=0, metavar="N", help="Index of the worker; default: 0, the chief."
)


@options.command("exec")
@options.job_name
@cloup.argument(
    "words", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND...]", help="Default: an interactive shell."
)
@_worker
@options.cluster_options
def exec_(name: str, words: tuple[str, ...], worker: int, cluster: Cluster) -> int:
    """Run a command in a worker's container, or a shell.

    On a terminal it has a terminal; else standard input, output and errors are pipes. The exit code is the command's.

    \b
      mptj exec digits -- nvidia-smi
      mptj exec digits --worker 1 -- df -h /dev/shm
    """
    from mptraining.cluster import worker_container
    from mptraining.cluster.job import attach

    job = attach(options.plain_name(name), cluster)
    pod = worker_container.running_pod(job.server, job.status(), worker)
    return worker_container.execute(job.server, pod.name, words or worker_container.SHELL)


@options.command()
@options.job_name
@_worker
@cloup.option(
    "--port", type=click.IntRange(1, 65535), default=5678, metavar="PORT", help="The debugger's port; default: 5678."
)
@options.cluster_options
def debug(name: str, worker: int, port: int, cluster: Cluster) -> int:
    """Attach a debugger to the program of a worker.

    Waits until the program listens (debugpy.listen), then forwards a local port to it until Ctrl-C or the program's
    end, and prints the configuration for VS Code. debugpy has to be in the job's requirements or image.
    """
    from mptraining.cluster import worker_container
    from mptraining.cluster.job import attach

    job = attach(options.plain_name(name), cluster)
    pause = threading.Event().wait
    try:
        pod, source = worker_container.wait_for_debugger(job.server, job.name, worker, port, say=note, pause=pause)
        with worker_container.forwarded(job.server, pod.name, port) as local:
            note(f"worker {worker} listens on port {port}: connect to localhost:{local}; Ctrl-C ends the forwarding")
            note('VS Code, in "configurations" of .vscode/launch.json:')
            click.echo(worker_container.attach_text(job.name, local, source))
            worker_container.wait_for_end(job.server, job.uid, pod, pause=pause)
        note(f"the container of worker {worker} has ended: {job.server.command('logs', job.name)}")
    except KeyboardInterrupt:
        note("")
    return 0
