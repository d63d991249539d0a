"""All tutorials in one process, since a start of TensorFlow costs more than they do: `tutorial_runs.py SETTING`.

Each is preempted in its third epoch and run again; the test reads its run folder. SETTING is JSON:
folder, scripts, replicas, policy, keras.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from mptraining_api.launch import WorkerIdentity
from mptraining_api.resolve.resolve import ClusterSettings, resolve
from mptraining_api.spec import MPTrainingJob
from mptraining_trainer import train
from mptraining_trainer.distribution.preemption import Preemption
from mptraining_trainer.distribution.strategy import make_strategy
from mptraining_trainer.reporting.telemetry import as_whole_lines
from mptraining_trainer.run import run
from mptraining_trainer.scripts import run_script

TAKEN_AFTER = 2


class PreemptedAfterEpochs(Preemption):
    """Requests a preemption once so many epochs are saved."""

    def __init__(self, epochs: int | None) -> None:
        super().__init__(lambda: None)
        self.epochs, self.saved = epochs, 0

    def unblock_for_children(self) -> None:
        """Do nothing: no signal is sent here."""

    def stop_requested(self) -> bool:
        return self.epochs is not None and self.saved >= self.epochs


def main(setting: dict[str, Any]) -> None:
    folder = Path(setting["folder"])
    # As `__main__` does.
    sys.stdout = as_whole_lines(sys.stdout)
    strategies: list[Any] = []

    def one_strategy(*arguments: Any) -> Any:
        """Return the process's one strategy, as in a trainer: two of them would share their collective operations."""
        if not strategies:
            strategies.append(make_strategy(*arguments))
        return strategies[0]

    train.make_strategy = one_strategy
    save = run_script._Script.save

    def counted(self: Any, model: Any, fits: Any) -> None:
        save(self, model, fits)
        self._worker.preemption.saved += 1

    run_script._Script.save = counted
    for script in setting["scripts"]:
        name = Path(script).stem
        source = folder / f"{name}-source"
        source.mkdir()
        shutil.copy(script, source)
        for number, epochs in ((1, TAKEN_AFTER), (2, None)):
            spec = {
                "accelerator": {"type": "cpu", "countPerNode": setting["replicas"]},
                "keras": setting["keras"],
                "precision": {"policy": setting["policy"]},
                "program": {"script": {"path": f"{name}.py", "arguments": []}},
                "output": {"uri": str(folder / name)},
            }
            parsed = MPTrainingJob.parse({"metadata": {"name": name.replace("_", "-")}, "spec": spec})
            identity = WorkerIdentity(index=0, hosts=("localhost:0",), attempt=number, incarnation="a")
            os.environ["MPTRAINING_SOURCE_FOLDER"] = str(source)
            print(f"{name}, attempt {number}", file=sys.stderr, flush=True)
            run(
                resolve(parsed, ClusterSettings()),
                identity,
                str(folder / name),
                PreemptedAfterEpochs(epochs),
                os.environ,
            )


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
