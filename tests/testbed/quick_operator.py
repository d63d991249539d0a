"""The operator's own program with short waits: `python -m tests.testbed.quick_operator SETTINGS [RELIST_SECONDS]`."""

from __future__ import annotations

import sys
from dataclasses import replace

from mptraining_operator import app
from mptraining_operator.__main__ import run
from mptraining_operator.jobs.plan.snapshot import Limits
from mptraining_operator.runtime import informer
from mptraining_operator.settings import Identity, OperatorSettings


def main() -> None:
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
    if len(sys.argv) > 2:
        informer.RELIST_SECONDS = float(sys.argv[2])
    run(["--settings", sys.argv[1]])


if __name__ == "__main__":
    main()
