"""Weights & Biases: one run of a project, whose id is the run's key; offline where WANDB_MODE says so."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from mptraining.tracking.export import Description, State, Status
from mptraining_api.outputs.scalars import Scalar
from mptraining_api.problems import InvalidSpec
from mptraining_storage import storage

_EXIT_CODE = {"running": 0, "succeeded": 0, "failed": 1, "stopped": 255}


class WandBServer:
    """A project. Raises InvalidSpec if wandb is not installed."""

    def __init__(self, project: str) -> None:
        try:
            import wandb
        except ImportError as error:
            step = "Install it with: pip install 'mptraining[wandb]'"
            raise InvalidSpec("--to", f"wandb is not installed here ({error})", next_step=step) from None
        self._wandb: Any = wandb
        self._project = project
        self._run: Any = None

    def begin(self, run: Description, state: State | None) -> State:
        if self._run is not None:
            self._run.finish(exit_code=1)
            self._run = None
        settings = self._wandb.Settings(
            # Neither code, console nor this machine is the run's.
            console="off",
            silent=True,
            disable_code=True,
            disable_git=True,
            x_disable_stats=True,
            x_disable_meta=True,
            init_timeout=30,
        )
        self._run = self._wandb.init(
            project=self._project,
            id=run.key,
            name=run.name,
            resume="allow",
            config=run.parameters | run.tags,
            dir=_local_files(run.folder),
            settings=settings,
        )
        return State(run_id=run.key, url=self._run.url or None, step=state.step if state else -1)

    def log(self, scalars: Sequence[Scalar]) -> None:
        """See `Server.log`. W&B accepts each step once."""
        for step, values in groupby(scalars, key=lambda scalar: scalar.step):
            row = {scalar.name: scalar.value for scalar in values}
            self._run.log(row, step=step)

    def finish(self, status: Status, summary: dict[str, str]) -> None:
        self._run.summary.update(summary)
        self._run.finish(exit_code=_EXIT_CODE[status])
        self._run = None


def _local_files(folder: str) -> str:
    """Return the folder of W&B's own files, from which `wandb sync` uploads a run that was offline."""
    if storage.is_remote(folder):
        return os.environ.get("WANDB_DIR") or str(Path.cwd())
    return str(Path(storage.local_path(folder)))
