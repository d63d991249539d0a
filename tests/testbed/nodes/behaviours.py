"""The behaviour of a pod on a node: the scripts that `Kubelet` runs.

`after` is seconds from Running to the end. A pod that is terminated (deleted or evicted) ends with `stop_code`
`stop_after` seconds later, as the trainer's handler of SIGTERM does.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

from tests.testbed.nodes.pods import Pod


def success_log(loss: float, attempt: int = 1) -> str:
    """Return the termination log of worker 0 of a job that has succeeded with that loss."""
    about = {"mptraining": 1, "kind": "Finished", "time": 0, "attempt": attempt, "incarnation": "stub", "worker": 0}
    return json.dumps({**about, "reason": "Succeeded", "exitCode": 0, "message": "", "metrics": {"loss": loss}})


@dataclass(frozen=True, kw_only=True)
class Stopping:
    """The response to SIGTERM; 75 is the trainer's code for a preemption."""

    stop_code: int = 75
    stop_after: float = 0


@dataclass(frozen=True)
class Run(Stopping):
    """Runs until it is terminated or gets another behaviour."""


@dataclass(frozen=True)
class Exit(Stopping):
    """Ends by itself with `code`, `message` in its termination log."""

    code: int = 0
    after: float = 0
    message: str = ""


@dataclass(frozen=True)
class Disrupted(Stopping):
    """Is ended by the cluster, with the condition DisruptionTarget; `code` None: its containers' end is unknown."""

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
    """Is never scheduled."""

    message: str = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."


@dataclass(frozen=True)
class Lost(Stopping):
    """Its node does not respond: its state does not change, even when it is deleted."""


Behaviour = Run | Exit | Disrupted | Waiting | Unscheduled | Lost
Script = Callable[[Pod], Behaviour]


def keep_running(pod: Pod) -> Behaviour:
    """The script of a cluster in which all pods keep running."""
    return Run()
