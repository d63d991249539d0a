"""Sweeps for tests, and a cluster of fake jobs that a driver of `plan` works on, killed anywhere."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from typing import Any

from mptraining_api.sweep.actions import CreateJob, DeleteJob, Refusal, SuspendJob, SweepPlan, TrialJob
from mptraining_api.sweep.plan import plan
from mptraining_api.sweep.proposals import Propose, propose
from mptraining_api.sweep.spec import MPTrainingSweep
from mptraining_api.sweep.status import SweepStatus

JOB: dict[str, Any] = {
    "accelerator": {"type": "cpu"},
    "program": {"application": {"name": "mlp", "classes": 10}},
    "data": {"train": ["gs://bucket/train-*"], "validation": ["gs://bucket/validation-*"]},
    "training": {"epochs": 9, "batchSize": {"global": 64}, "optimizer": {"className": "Adam"}},
    "output": {"uri": "gs://bucket/digits"},
}
RATE = {"path": "training.optimizer.config.learning_rate", "logUniform": {"low": 1e-5, "high": 1e-1}}
WIDTH = {"path": "training.batchSize.global", "int": {"low": 32, "high": 512, "step": 32}}
POLICY = {"path": "precision.policy", "values": ["float32", "mixed_bfloat16"]}


def document(**spec: Any) -> dict[str, Any]:
    """Return a sweep's document with these sections instead of the usual ones; None removes one."""
    whole = {
        "objective": {"metric": "val_accuracy", "direction": "Maximize"},
        "algorithm": {"name": "Random", "seed": 7},
        "parameters": [RATE, WIDTH, POLICY],
        "trials": {"max": 12, "parallel": 3, "maxFailed": 12},
        "job": JOB,
    } | spec
    return {
        "apiVersion": "mptraining.dev/v1alpha1",
        "kind": "MPTrainingSweep",
        "metadata": {"name": "digits", "uid": "u-1", "namespace": "team", "generation": 1},
        "spec": {name: section for name, section in whole.items() if section is not None},
    }


def sweep(**spec: Any) -> MPTrainingSweep:
    return MPTrainingSweep.parse_document(document(**spec))


class Killed(Exception):
    """The process of the driver ended."""


@dataclasses.dataclass
class FakeCluster:
    """Stored status and jobs; `step` lets one thing happen, `drive` plans once. Both draw from `chance`."""

    sweep: MPTrainingSweep
    chance: random.Random
    score: Callable[[dict[str, Any]], float]
    propose: Propose = propose
    kills: float = 0.0
    # Of the jobs that end, these fail for their own fault, or for a machine's.
    failures: float = 0.0
    lost: float = 0.0
    refused: float = 0.0
    # Of the running jobs, these are deleted by somebody.
    deleted: float = 0.0
    now: float = 1_000_000.0
    status: SweepStatus | None = None
    jobs: dict[str, TrialJob] = dataclasses.field(default_factory=dict)
    documents: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    created: list[str] = dataclasses.field(default_factory=list)
    killed: int = 0
    deleted_sweep: bool = False
    # What the driver last saw of the jobs; a new driver looks afresh.
    view: dict[str, TrialJob] | None = None

    def drive(self) -> None:
        """Plan once, from a view of the jobs that may be old; the process may be killed before every write."""
        if self.view is None or self.chance.random() < 0.7:
            self.view = dict(self.jobs)
        refusals = {
            each.job: Refusal("quota", final=self.chance.random() < 0.2)
            for each in (self.status.trials if self.status and self.status.trials else ())
            if each.job not in self.jobs and self.chance.random() < self.refused
        }
        try:
            self._apply(plan(self.sweep, self.status, self.view, self.now, propose=self.propose, refusals=refusals))
        except Killed:
            self.killed += 1
            self.view = None

    def _apply(self, found: SweepPlan) -> None:
        self._may_be_killed()
        # As the API server stores it.
        self.status = SweepStatus.read(found.status.to_json())
        for action in found.actions:
            self._may_be_killed()
            if isinstance(action, CreateJob):
                # A job that exists is left as it is; one that was deleted would be created again.
                if action.name not in self.jobs:
                    self.created.append(action.name)
                    self.documents[action.name] = action.document
                    self.jobs[action.name] = TrialJob(action.name, "Pending")
            elif isinstance(action, SuspendJob):
                self.jobs[action.name] = dataclasses.replace(self.jobs[action.name], suspended=action.suspend)
            elif isinstance(action, DeleteJob):
                self.jobs.pop(action.name, None)
            else:
                self.deleted_sweep = True

    def _may_be_killed(self) -> None:
        if self.chance.random() < self.kills:
            raise Killed

    def step(self) -> None:
        """Let a job start or end."""
        self.now += 1
        waiting = [each for each in self.jobs.values() if each.state in ("Pending", "Running") and not each.suspended]
        if not waiting:
            return
        job = self.chance.choice(waiting)
        if job.state == "Pending":
            self.jobs[job.name] = dataclasses.replace(job, state="Running")
            return
        known = {each.job for each in (self.status.trials if self.status else None) or () if each.state == "Running"}
        if job.name in known and self.chance.random() < self.deleted:
            del self.jobs[job.name]
            return
        lot = self.chance.random()
        if lot < self.lost:
            ended = dataclasses.replace(job, state="Failed", infrastructure=True, message="the machine was lost")
        elif lot < self.lost + self.failures:
            ended = dataclasses.replace(job, state="Failed", message="the loss is not finite")
        else:
            metrics = {self.sweep.spec.objective.metric: self.score(self.documents[job.name]["spec"])}
            ended = dataclasses.replace(job, state="Succeeded", metrics=metrics, completion=self.now)
        self.jobs[job.name] = ended

    @property
    def active(self) -> int:
        return sum(job.state in ("Pending", "Running") for job in self.jobs.values())

    @property
    def finished(self) -> bool:
        return any(each.type == "Finished" for each in (self.status.conditions if self.status else None) or ())

    def run(self, *, most_steps: int = 5000) -> SweepStatus:
        """Drive until the sweep has finished; `parallel` is checked after every step."""
        trials = self.sweep.spec.trials
        parallel = (trials.parallel if trials else None) or 1
        for _ in range(most_steps):
            self.drive()
            assert self.active <= parallel
            if self.finished and not self.active:
                assert self.status is not None
                return self.status
            self.step()
        raise AssertionError(f"not finished after {most_steps} steps: {self.status}")
