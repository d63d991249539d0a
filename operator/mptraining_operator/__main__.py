"""`python -m mptraining_operator run | check | settings`."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from time import time
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

if TYPE_CHECKING:
    from mptraining_api.model import Model


# Their news is every handler and every request; what goes wrong is a warning.
_CHATTY = ("kopf", "aiohttp", "asyncio", "urllib3", "kubernetes")
# One warns at every start that it runs beside the main thread, as it is meant to; the other says four times a second
# that the API server is away, which our own calls say in plainer words. Refusals end the streams, and `watch` says so.
_QUIET = ("kopf._core.reactor.running", "kopf._cogs.clients")
_ORDINARY = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


class JsonLines(logging.Formatter):
    """time, level, message, whatever `extra` carries (job, attempt, …), and the traceback as `error`."""

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
    """For a person at a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).strftime("%H:%M:%S")
        extras = "".join(f" {name}={value}" for name, value in _extras(record).items())
        line = f"{at} {record.levelname:<7} {record.getMessage()}{extras}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def set_up(level: str, style: str, stream: TextIO | None = None) -> None:
    """Sends all loggers to `stream` (standard error); `level` and `style` as in the settings."""
    formats: dict[str, logging.Formatter] = {"json": JsonLines(), "text": PlainLines()}
    threshold = logging.getLevelNamesMapping()[level]
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(formats[style])
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(threshold)
    for name in _CHATTY:
        logging.getLogger(name).setLevel(max(threshold, logging.WARNING))
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.CRITICAL)


def _extras(record: logging.LogRecord) -> dict[str, Any]:
    extras = {name: value for name, value in record.__dict__.items() if name not in _ORDINARY}
    # kopf's own, a mapping that repeats the object.
    for name in ("k8s_skip", "k8s_ref", "settings"):
        extras.pop(name, None)
    return extras


app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, help="The operator.")

SettingsFile = Annotated[Path | None, typer.Option("--settings", help="YAML file; without one, the defaults.")]


@app.command()
def run(settings: SettingsFile = None) -> None:
    """Watches MPTrainingJobs and keeps a gang of trainer pods running for each, until SIGTERM."""
    start(settings)


def start(settings: Path | None, *, clock: Callable[[], float] = time) -> None:
    """What `run` does; `clock` is this machine's, in seconds since 1970."""
    import gc
    import os
    import signal
    import socket
    import threading

    from mptraining_api.problems import Problem
    from mptraining_operator.settings import Identity, OperatorSettings

    try:
        chosen = OperatorSettings.load(settings)
        set_up(chosen.log_level, chosen.log_format)
    except Problem as problem:
        typer.echo(str(problem), err=True)
        raise typer.Exit(2) from None

    from mptraining_operator.app import Operator, die
    from mptraining_operator.cluster import ApiProblem, Cluster, ServerTime
    from mptraining_operator.metrics import Metrics

    metrics = Metrics()
    now = ServerTime(clock)
    try:
        # Workers, and beside them progress, lists and events.
        cluster = Cluster.connect(connections=chosen.workers + 8, count=metrics.count_call, server_time=now)
        # Its own connection, and short of patience: a leader that waits is a leader no more.
        patience = chosen.lease.duration_seconds * 0.4
        leases = Cluster.connect(connections=1, count=metrics.count_call, read_seconds=patience)
    except ApiProblem as problem:
        typer.echo(problem.message, err=True)
        raise typer.Exit(2) from None
    # What was imported stays for good. To search it for cycles again and again, which the parsing of every watch event
    # sets off, was a fifth of the CPU time of an event (parsed and handled, without the network).
    gc.collect()
    gc.freeze()
    identity = Identity.from_environment(os.environ, host=socket.gethostname())
    stop = threading.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda *_: stop.set())
    try:
        Operator(chosen, identity, cluster, leases, metrics, lost=die, clock=now).run(stop)
    except OSError as error:
        typer.echo(f"healthPort: {error}", err=True)
        raise typer.Exit(1) from None


@app.command()
def check(settings: SettingsFile = None, seconds: Annotated[int, typer.Option(help="Patience.")] = 60) -> None:
    """Says whether the operator that was installed with these settings works; `helm test` runs this beside it."""
    import os
    import socket
    import threading
    from time import monotonic

    from mptraining_api.problems import Problem
    from mptraining_operator.cluster import ApiProblem, Cluster
    from mptraining_operator.helm_test import findings, reach
    from mptraining_operator.settings import Identity, OperatorSettings

    try:
        chosen = OperatorSettings.load(settings)
        cluster = Cluster.connect(connections=1)
    except (Problem, ApiProblem) as problem:
        typer.echo(str(problem), err=True)
        raise typer.Exit(2) from None
    namespace = Identity.from_environment(os.environ, host=socket.gethostname()).namespace
    wait = threading.Event().wait
    until = monotonic() + seconds
    while True:
        found = list(findings(chosen, namespace, cluster, reach=reach, wait=wait))
        good = all(each.good for each in found)
        if good or monotonic() > until:
            typer.echo("\n".join(str(each) for each in found))
            raise typer.Exit(0 if good else 1)


@app.command("settings")
def show_settings() -> None:
    """Prints the default settings as YAML, each with its meaning."""
    from mptraining_operator.settings import OperatorSettings

    typer.echo("\n".join(_lines(OperatorSettings())))


def _lines(settings: Model, indent: str = "") -> Iterator[str]:
    import json

    from mptraining_api.model import Model

    for name, field in type(settings).model_fields.items():
        value = getattr(settings, name)
        yield f"{indent}# {field.description}"
        if isinstance(value, Model):
            yield f"{indent}{field.alias}:"
            yield from _lines(value, f"{indent}  ")
        else:
            # JSON is YAML, and quotes what must be.
            yield f"{indent}{field.alias}: {json.dumps(value)}"


if __name__ == "__main__":
    app()
