"""The jobs of a chaos run: twenty and a sweep's four, whose workers wait and exit as planned, and each planned end.

A worker's behaviour depends only on its attempt and index, so that a restart which a fault forces changes nothing about
the end: an attempt that a fault hit is charged to the infrastructure, and the next one does what is planned for it.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mptraining_api import outcomes
from mptraining_api.outcomes import Outcome
from tests.testbed.kubernetes.operator_namespace import document

COUNT = 20
# The sweep of a run: the jobs of its trials are sweep-1 and so on.
SWEEP, TRIALS = "sweep", 4
# The loss that each trial reports.
LOSS = 0.5
# Chaos hits a job more often than any cluster does.
_INFRASTRUCTURE_RETRIES = 1000
# For which the workers of a job run.
_SECONDS = (1.0, 4.0)


@dataclass(frozen=True)
class Behaviour:
    """`codes`: exit codes by attempt, then by worker; the last attempt's hold for all that follow. None: runs until it
    is told to stop. `outcomes`: the permitted outcomes of the attempts, the last of them again for all that follow.
    """

    codes: tuple[tuple[int | None, ...], ...]
    outcomes: tuple[frozenset[Outcome], ...]
    phase: str = "Succeeded"
    backoff_limit: int = 3
    # As a share of the other jobs' time.
    times: float = 1.0


_GOOD, _BAD = frozenset({outcomes.SUCCEEDED}), frozenset({outcomes.PROGRAM_FAILED})
BEHAVIOURS: Mapping[str, Behaviour] = {
    "succeeds": Behaviour(((0,),), (_GOOD,)),
    "pair": Behaviour(((0, 0),), (_GOOD,)),
    "slow": Behaviour(((0, 0),), (_GOOD,), times=4),
    "fails": Behaviour(((1,),), (_BAD,), phase="Failed", backoff_limit=1),
    "fails-once": Behaviour(((1,), (0,)), (_BAD, _GOOD)),
    # Worker 0 is told to stop because worker 1 failed, and exits with 75: that is no preemption.
    "one-of-two": Behaviour(((None, 1), (0, 0)), (_BAD, _GOOD)),
    "preempted": Behaviour(((75,), (0,)), (frozenset({outcomes.PREEMPTED}), _GOOD)),
    # 76 decides nothing, 75 does; unless the Job's controller sees 76 first, and ends the other worker before it has
    # exited.
    "peer-lost": Behaviour(((76, 75), (0, 0)), (frozenset({outcomes.PREEMPTED, outcomes.NODE_LOST}), _GOOD)),
    "refused": Behaviour(((2,),), (frozenset({outcomes.INVALID_SPEC}),), phase="Failed"),
    "diverged": Behaviour(((3,),), (frozenset({outcomes.DIVERGED}),), phase="Failed"),
}


@dataclass(frozen=True)
class Stub:
    """One job: its workers exit after `seconds`."""

    name: str
    kind: str
    seconds: float

    @property
    def behaviour(self) -> Behaviour:
        return BEHAVIOURS[self.kind]

    @property
    def workers(self) -> int:
        return len(self.behaviour.codes[0])

    @property
    def phase(self) -> str:
        """The phase in which the job ends."""
        return self.behaviour.phase

    def code(self, attempt: int, worker: int) -> int | None:
        codes = self.behaviour.codes
        return codes[min(attempt, len(codes)) - 1][worker]

    def outcomes(self, attempt: int) -> frozenset[Outcome]:
        """The permitted outcomes of an attempt that no fault hit."""
        judged = self.behaviour.outcomes
        return judged[min(attempt, len(judged)) - 1]

    def document(self, **spec: Any) -> dict[str, Any]:
        """Return the MPTrainingJob with these sections; its program is never run."""
        policy = {"backoffLimit": self.behaviour.backoff_limit, "infrastructureRetries": _INFRASTRUCTURE_RETRIES}
        return document(self.name, workers=self.workers, runPolicy=policy, **spec)


def trials() -> tuple[Stub, ...]:
    """Return what the workers of the sweep's trials do."""
    return tuple(Stub(f"{SWEEP}-{number}", "succeeds", 2.0) for number in range(1, TRIALS + 1))


def sweep(**spec: Any) -> dict[str, Any]:
    """Return the MPTrainingSweep: four trials, two at a time, of a job with these sections."""
    document = trials()[0].document(**spec)
    return {
        **document,
        "kind": "MPTrainingSweep",
        "metadata": {"name": SWEEP},
        "spec": {
            "objective": {"metric": "loss", "direction": "Minimize"},
            "algorithm": {"name": "Random", "seed": 5},
            "parameters": [{"path": "training.batchSize.global", "int": {"low": 32, "high": 512, "step": 32}}],
            "trials": {"max": TRIALS, "parallel": 2},
            "job": document["spec"],
        },
    }


def draw(seed: int) -> tuple[Stub, ...]:
    """Return twenty jobs, each behaviour twice; the seed decides order and length."""
    chance = random.Random(f"chaos jobs {seed}")
    kinds = [kind for kind in BEHAVIOURS for _ in range(COUNT // len(BEHAVIOURS))]
    chance.shuffle(kinds)
    return tuple(
        Stub(f"{kind}-{number}", kind, round(chance.uniform(*_SECONDS) * BEHAVIOURS[kind].times, 3))
        for number, kind in enumerate(kinds)
    )
