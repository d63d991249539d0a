"""Command line of the board in a cluster: `python -m mptraining.board.in_cluster --settings FILE`."""

from __future__ import annotations

import argparse
import logging
import sys
import time
from contextlib import closing
from pathlib import Path

from mptraining.board.in_cluster.settings import BoardSettings
from mptraining_api.problems import Problem


def main(arguments: list[str] | None = None) -> int:
    """Serve the board until SIGTERM; return the exit code, 2 if the settings cannot be used."""
    parser = argparse.ArgumentParser(prog="python -m mptraining.board.in_cluster", description="Serve the board.")
    parser.add_argument("--settings", type=Path, required=True, help="YAML file of settings")
    parser.add_argument("--kubeconfig", help="kubeconfig, outside of a cluster")
    parser.add_argument("--host", default="", help="address to listen at; default: all")
    chosen = parser.parse_args(arguments)
    try:
        settings = BoardSettings.load(chosen.settings)
        logging.basicConfig(
            level=settings.log_level, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr
        )
        return _serve(settings, kubeconfig=chosen.kubeconfig, host=chosen.host)
    except Problem as problem:
        sys.stderr.write(f"{problem}\n")
        return 2


def _serve(settings: BoardSettings, *, kubeconfig: str | None, host: str) -> int:
    from mptraining.board.in_cluster import serve
    from mptraining.cluster.connection import Where, connect

    serve.limit_retries()
    where = Where(kubeconfig=kubeconfig) if kubeconfig else Where(in_cluster=True)
    server = connect(where)
    with closing(serve.listen(settings.port, host)) as listening:
        board = serve.ClusterBoard(settings, server, listening, clock=time.time, monotonic=time.monotonic)
        scheme = "HTTPS" if settings.certificate else "HTTP"
        logging.getLogger(__name__).info("listening on port %d, %s", settings.port, scheme)
        board.run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
