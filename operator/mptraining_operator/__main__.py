"""Command line and log formats of the operator: `python -m mptraining_operator run | check | settings`."""

from __future__ import annotations

import faulthandler
import gc
import json
import logging
import os
import secrets
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, TextIO

import click

if TYPE_CHECKING:
    from mptraining_api.model import Model

# At INFO these loggers report every handler and request; only their warnings are logged.
_WARNINGS_ONLY = ("kopf", "aiohttp", "asyncio", "urllib3", "kubernetes")
# The first warns at every start that kopf is not in the main thread, which is intended. The second reports four times a
# second that the API server does not respond, which the operator's own calls report as well. A rejected watch ends
# kopf, which the third reports with a traceback and `watch.kopf_streams` in a line.
_DISABLED = ("kopf._core.reactor.running", "kopf._cogs.clients", "kopf._core.reactor.orchestration")
_STANDARD_FIELDS = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


class JsonLines(logging.Formatter):
    """JSON lines: time, level, logger, message, the fields of `extra` (job, attempt, …), the traceback as `error`."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC)
        line: dict[str, Any] = {
            "time": at.strftime("%Y-%m-%dT%H:%M:%S.") + f"{at.microsecond // 1000:03d}Z",
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= _extras(record)
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


class PlainLines(logging.Formatter):
    """Text lines for a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).strftime("%H:%M:%S")
        extras = "".join(f" {name}={value}" for name, value in _extras(record).items())
        line = f"{at} {record.levelname:<7} {record.getMessage()}{extras}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def set_up(level: str, style: str, stream: TextIO | None = None) -> None:
    """Write all logs to `stream` (default: standard error); `level` and `style` as in the settings."""
    formats: dict[str, logging.Formatter] = {"json": JsonLines(), "text": PlainLines()}
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(formats[style])
    logging.getLogger().handlers[:] = [handler]
    threshold = logging.getLevelNamesMapping()[level]
    logging.getLogger().setLevel(threshold)
    for name in _WARNINGS_ONLY:
        logging.getLogger(name).setLevel(max(threshold, logging.WARNING))
    for name in _DISABLED:
        logging.getLogger(name).setLevel(logging.CRITICAL)


def _extras(record: logging.LogRecord) -> dict[str, Any]:
    extras = {name: value for name, value in record.__dict__.items() if name not in _STANDARD_FIELDS}
    # Fields of kopf, which repeat the object.
    for name in ("k8s_skip", "k8s_ref", "settings"):
        extras.pop(name, None)
    return extras


@click.group(no_args_is_help=True)
def app() -> None:
    """The operator."""


_settings_file = click.option(
    "--settings", type=click.Path(path_type=Path), metavar="FILE", help="YAML file; without one, the defaults."
)


@contextmanager
def _refusals() -> Iterator[None]:
    """Report a mistake in the settings, or a missing cluster, without a traceback."""
    from mptraining_api.kubernetes_api import ApiProblem
    from mptraining_api.problems import Problem

    try:
        yield
    except Problem as problem:
        click.echo(str(problem), err=True)
        sys.exit(2)
    except ApiProblem as problem:
        click.echo(problem.message, err=True)
        sys.exit(2)


@app.command()
@_settings_file
def run(settings: Path | None) -> None:
    """Run the operator until SIGTERM: watch MPTrainingJobs and run the trainer pods of each."""
    from mptraining_operator.settings import Identity, OperatorSettings

    with _refusals():
        chosen = OperatorSettings.load(settings)
        set_up(chosen.log_level, chosen.log_format)

        from mptraining_operator.app import WORKERS, Operator, exit_process
        from mptraining_operator.runtime.cluster import Cluster
        from mptraining_operator.runtime.leader_election import request_seconds
        from mptraining_operator.runtime.metrics import Metrics

        metrics = Metrics(monotonic=monotonic)
        # One connection per worker, and more for progress, lists and events.
        cluster = Cluster.connect(connections=WORKERS + 8, count=metrics.count_call)
        leases = Cluster.connect(connections=1, count=metrics.count_call, read_seconds=request_seconds(chosen.lease))
        # Imported modules are never freed. Without freeze, the garbage collector scans them repeatedly while watch
        # events are parsed, which took a fifth of the CPU time of an event (parsed and handled, without the network).
        gc.collect()
        gc.freeze()
        # Two processes on one host are two replicas.
        identity = Identity.from_environment(os.environ, host=f"{socket.gethostname()}-{secrets.token_hex(4)}")
        stop = threading.Event()
        for name in (signal.SIGTERM, signal.SIGINT):
            signal.signal(name, lambda *_: stop.set())
        # The stacks of all threads on SIGUSR2 and after a crash, without Python code.
        faulthandler.enable()
        faulthandler.register(signal.SIGUSR2, all_threads=True)
        try:
            Operator(chosen, identity, cluster, leases, metrics, on_stuck=exit_process).run(stop)
        except OSError as error:
            click.echo(f"healthPort: {error}", err=True)
            sys.exit(1)


@app.command()
@_settings_file
@click.option("--seconds", default=60, metavar="N", help="Timeout; default: 60.")
def check(settings: Path | None, seconds: int) -> None:
    """Check that the operator installed with these settings works; `helm test` runs this in its namespace."""
    from mptraining_api.kubernetes_api import ApiProblem
    from mptraining_operator.helm_test import CheckFailed, probe_endpoint, run_checks
    from mptraining_operator.progress.certificate import InvalidCertificate
    from mptraining_operator.runtime.cluster import Cluster
    from mptraining_operator.settings import Identity, OperatorSettings

    with _refusals():
        chosen = OperatorSettings.load(settings)
        cluster = Cluster.connect(connections=1)
    namespace = Identity.from_environment(os.environ, host=socket.gethostname()).namespace
    wait = threading.Event().wait
    until = monotonic() + seconds
    while True:
        try:
            lines = list(run_checks(chosen, namespace, cluster, probe=probe_endpoint, wait=wait))
        except (ApiProblem, CheckFailed, InvalidCertificate) as problem:
            # An operator takes some seconds to start.
            if monotonic() <= until:
                wait(1.0)
                continue
            click.echo(f"{problem}. Look at the logs of the operator's replicas.", err=True)
            sys.exit(1)
        click.echo("\n".join(lines))
        return


@app.command("settings")
def show_settings() -> None:
    """Print the default settings as YAML, each with its description."""
    from mptraining_operator.settings import OperatorSettings

    click.echo("\n".join(_lines(OperatorSettings())))


def _lines(settings: Model, indent: str = "") -> Iterator[str]:
    from mptraining_api.model import Model

    for name, field in type(settings).model_fields.items():
        value = getattr(settings, name)
        yield f"{indent}# {field.description}"
        if isinstance(value, Model):
            yield f"{indent}{field.alias}:"
            yield from _lines(value, f"{indent}  ")
        else:
            # JSON is valid YAML with all necessary quotes.
            yield f"{indent}{field.alias}: {json.dumps(value)}"


if __name__ == "__main__":
    app()
