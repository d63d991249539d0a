"""Faults of a worker: a signal at a moment, or a checkpoint that omits a part of the state.

Nothing is simulated: the signal is sent by the kernel, from a thread that does not wait for the steps.
"""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import dataclass
from typing import Any, Literal

Mutation = Literal["", "position", "seed", "replicas"]


@dataclass(frozen=True)
class Fault:
    """`signal` of the system so many seconds after the first Progress at or past `step`; 0: no signal.

    `mutation` is the part that every checkpoint of this worker omits: the position in the data, the seed generators of
    the model, or the values of each replica.
    """

    signal: int = 0
    step: int = 0
    delay: float = 0.0
    mutation: Mutation = ""

    def arm(self) -> None:
        """Start the thread that sends the signal; call it in the worker's process, before it trains."""
        if self.signal:
            _signal_at(self)
        if self.mutation:
            _leave_out(self.mutation)

    def __str__(self) -> str:
        return f"{signal.Signals(self.signal).name} at step {self.step} + {self.delay * 1000:.0f} ms"


NO_FAULT = Fault()


def _signal_at(fault: Fault) -> None:
    from mptraining_api import events
    from mptraining_trainer.report.telemetry import Telemetry

    emit = Telemetry.emit
    sent = threading.Event()

    def send() -> None:
        os.kill(os.getpid(), fault.signal)

    def watched(self: Any, kind: Any, **fields: Any) -> None:
        emit(self, kind, **fields)
        if kind is events.Progress and fields["step"] >= fault.step and not sent.is_set():
            sent.set()
            threading.Timer(fault.delay, send).start()

    Telemetry.emit = watched  # type: ignore[method-assign]


def _leave_out(what: Mutation) -> None:
    from mptraining_trainer.checkpoints.checkpoint import Checkpointer, Contents
    from mptraining_trainer.devices.replica_variables import ReplicaValues, is_per_replica

    if what == "position":
        save = Checkpointer.save

        def without_position(self: Any, state: Any) -> None:
            save(self, state.model_copy(update={"epoch": 0, "examples": 0}))

        Checkpointer.save = without_position  # type: ignore[method-assign]
    elif what == "seed":
        variables = Contents.variables

        def without_seeds(self: Any) -> dict[str, list[Any]]:
            files = {name: list(of_file) for name, of_file in variables(self).items() if name != "random"}
            files["model"] = [file for file in files["model"] if "seed_generator" not in file.name]
            return files

        Contents.variables = without_seeds  # type: ignore[method-assign]
    else:
        assign = ReplicaValues.assign

        def together(self: Any, variables: Any, arrays: Any) -> None:
            # As one sum, which `variable.assign` distributes to the replicas equally.
            summed = [
                array.sum(axis=0) if is_per_replica(variable) else array
                for variable, array in zip(variables, arrays, strict=True)
            ]
            assign(self, variables, summed)

        ReplicaValues.assign = together  # type: ignore[method-assign]
