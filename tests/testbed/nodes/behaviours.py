"""What a pod does once it is on a node: the scripts that `Kubelet` plays.

`after` is seconds from Running to the end. A pod that is asked to go (deleted or evicted) ends with `stop_code`
`stop_after` seconds later, as the trainer's handler of SIGTERM makes it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.testbed.nodes.pods import Pod


@dataclass(frozen=True, kw_only=True)
class Stopping:
    """How it answers SIGTERM; 75 is the trainer's code for a preemption."""

    stop_code: int = 75
    stop_after: float = 0


@dataclass(frozen=True)
class Run(Stopping):
    """Runs until it is asked to go or told something else."""


@dataclass(frozen=True)
class Exit(Stopping):
    """Ends by itself with `code`, `message` in its termination log."""

    code: int = 0
    after: float = 0
    message: str = ""


@dataclass(frozen=True)
class OutOfMemory(Stopping):
    """Is killed at its memory limit."""

    after: float = 0


@dataclass(frozen=True)
class Disrupted(Stopping):
    """Is ended by the cluster, with the condition DisruptionTarget; `code` None: nobody saw its containers end."""

    after: float = 0
    reason: str = "TerminationByKubelet"
    code: int | None = 143


@dataclass(frozen=True)
class Waiting(Stopping):
    """Never starts: the image cannot be pulled, a secret is missing."""

    reason: str = "ImagePullBackOff"
    message: str = "Back-off pulling image"


@dataclass(frozen=True)
class Unscheduled(Stopping):
    """No node takes it."""

    message: str = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."


@dataclass(frozen=True)
class Lost(Stopping):
    """Its node has gone silent: whatever state it is in stays, also when it is deleted."""


Behaviour = Run | Exit | OutOfMemory | Disrupted | Waiting | Unscheduled | Lost
Script = Callable[[Pod], Behaviour]


def keep_running(pod: Pod) -> Behaviour:
    """The script of a cluster in which nothing happens."""
    return Run()
