"""The operator's own program with short waits: `python -m tests.testbed.quick_operator SETTINGS`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from time import time

from mptraining_operator import app
from mptraining_operator.__main__ import start
from mptraining_operator.plan.snapshot import Limits
from mptraining_operator.settings import Identity, OperatorSettings


def run(settings: Path, *, clock: Callable[[], float] = time) -> None:
    """Run the operator; `clock` is this machine's, in seconds since 1970."""
    usual = app.limits

    def quick(chosen: OperatorSettings, identity: Identity) -> Limits:
        return replace(
            usual(chosen, identity),
            program_backoff=0.2,
            infrastructure_backoff=0.1,
            settle=0.5,
            stuck_pod=1.0,
            elastic_wait=10.0,
        )

    app.limits = quick  # type: ignore[assignment]
    start(settings, clock=clock)


if __name__ == "__main__":
    run(Path(sys.argv[1]))
