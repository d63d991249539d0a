"""One or more sweeps in an API server in memory, and the operator's worker of sweeps over it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import msgspec

from mptraining_api.kubernetes_api import JOBS, PODS, SWEEPS
from mptraining_api.resolve.resolve import ClusterSettings
from mptraining_api.status import EventRecord
from mptraining_api.sweep.proposals import propose
from mptraining_api.sweep.spec import SweepSpec
from mptraining_api.sweep.status import Trial
from mptraining_operator.jobs.watch import parse as parse_jobs
from mptraining_operator.jobs.watch.cache import Cache
from mptraining_operator.jobs.watch.streams import JobStream
from mptraining_operator.runtime.controller import Controller
from mptraining_operator.runtime.metrics import Metrics
from mptraining_operator.runtime.values import Key
from mptraining_operator.runtime.work_queue import WorkQueue
from mptraining_operator.sweeps.cache import StoredSweep, Sweep, SweepCache, SweepStream, parse
from mptraining_operator.sweeps.reconciler import SweepReconciler
from tests.fakes import Clock

Raw = dict[str, Any]
JOB: Raw = {
    "accelerator": {"type": "cpu"},
    "workers": 1,
    "program": {"application": {"name": "mlp", "classes": 3}},
    "data": {"train": ["/data/train-*.tfrecord"]},
    "training": {"epochs": 1, "batchSize": {"global": 64}},
    "output": {"uri": "gs://bucket/sweep"},
}


def document(name: str = "lr", *, job: Raw | None = None, **spec: Any) -> Raw:
    """Return a sweep over a grid of three seeds; `spec` replaces sections of its spec."""
    sections = {
        "objective": {"metric": "loss", "direction": "Minimize"},
        "algorithm": {"name": "Grid"},
        "parameters": [{"path": "training.seed", "values": [1, 2, 3]}],
        "trials": {"parallel": 1},
        "job": job or JOB,
        **spec,
    }
    return {
        "apiVersion": "mptraining.dev/v1alpha1",
        "kind": "MPTrainingSweep",
        "metadata": {"name": name, "namespace": "team", "generation": 1},
        "spec": {key: value for key, value in sections.items() if value is not None},
        "status": {"observedGeneration": -1},
    }


def stored(raw: Raw) -> StoredSweep:
    return parse(msgspec.json.decode(json.dumps(raw).encode(), type=Sweep))


class Bench:
    """`proposed` lists the numbers of the trials that were proposed, `said` the Events as (sweep, reason)."""

    def __init__(
        self, api: Any, clock: Clock, *raws: Raw, most: int | None = None, proposal_seconds: float = 0.0
    ) -> None:
        self.api = api
        self.clock = clock
        self.queue = WorkQueue(clock)
        self.sweeps = SweepCache()
        self.stream = SweepStream(self.sweeps, self.queue)
        self.jobs = Cache(clock, self.stream.trial_changed)
        self.said: list[tuple[str, str]] = []
        self.gaps: list[float] = []
        self.proposed: list[tuple[str, int]] = []
        self.queued_jobs: list[Key] = []
        self.known = True
        self.mistakes: str | None = None
        self.checks = 0
        self.proposal_seconds = proposal_seconds
        self._pods = itertools.count(1)
        self.reconciler = self.restarted(most)
        for raw in raws:
            self.put(api.put(SWEEPS, raw))

    def restarted(self, most: int | None = None) -> SweepReconciler:
        """Return a worker that remembers nothing, as after a restart of the operator."""
        metrics = Metrics(monotonic=self.clock)
        recorder = SimpleNamespace(record=self._record)
        replica: Any = SimpleNamespace(
            leader=self.api, event_recorder=recorder, metrics=metrics, clock=self.clock, monotonic=self.clock
        )
        platform: Any = SimpleNamespace(settings=ClusterSettings())
        informer: Any = SimpleNamespace(is_known=lambda streams, namespace: self.known)
        self.reconciler = SweepReconciler(
            replica,
            self.stream,
            self.jobs,
            JobStream(self.jobs, WorkQueue(self.clock)),
            platform=platform,
            workers_per_namespace=most,
            wake_job=self.queued_jobs.append,
            propose=self._propose,
            check=self._check,
        )
        self.reconciler._observe_gap = self.gaps.append
        self.controller = Controller(self.reconciler, informer, metrics, self.clock)
        return self.reconciler

    def _record(self, kind: str, key: Key, uid: str, record: EventRecord) -> None:
        self.said.append((key.name, record.reason))

    def _check(self, document: Raw, settings: ClusterSettings) -> str | None:
        self.checks += 1
        return self.mistakes

    def _propose(self, spec: SweepSpec, trials: Sequence[Trial]) -> Raw | None:
        self.clock.now += self.proposal_seconds
        self.proposed.append((spec.objective.metric, len(trials) + 1))
        return propose(spec, trials)

    def put(self, raw: Raw) -> None:
        """Let the watch report a sweep."""
        if self.sweeps.put(stored(raw)):
            self.queue.add(Key(raw["metadata"]["namespace"], raw["metadata"]["name"]))

    def change(self, name: str = "lr", **fields: Any) -> None:
        """Change top-level fields of a sweep as its user does, and let the watch report it."""
        raw = self.api.find(SWEEPS, "team", name)
        self.put(self.api.put(SWEEPS, {**raw, **fields}))

    def edit(self, **spec: Any) -> None:
        """Change sections of the sweep's spec; the API server counts the generation."""
        raw = self.api.find(SWEEPS, "team", "lr")
        metadata = {**raw["metadata"], "generation": raw["metadata"]["generation"] + 1}
        self.change(spec={**raw["spec"], **spec}, metadata=metadata)

    def run(self, seconds: float = 0.0) -> None:
        """Let the worker process what is due, for so many seconds."""
        end = self.clock.now + seconds
        while True:
            while (key := self.queue.take(timeout=0)) is not None:
                self.controller.process(key)
                self.queue.done(key)
            due = self.queue.next_due()
            if due is None or due > end:
                break
            self.clock.now = max(self.clock.now, due)
        self.clock.now = max(self.clock.now, end)

    def job(self, name: str, phase: str, reason: str = "", metrics: Raw | None = None, **progress: Any) -> None:
        """Let a trial's job be in that phase; `metrics` are in its pod's termination log."""
        raw = self.api.find(JOBS, "team", name)
        ended, end = phase in ("Succeeded", "Failed"), "Complete" if phase == "Succeeded" else "Failed"
        time = "2026-01-01T00:00:00Z"
        about = {"status": "True", "reason": reason or phase, "message": f"{phase}: {reason}"}
        about["lastTransitionTime"] = time
        status = {
            "phase": phase,
            "currentAttempt": 1,
            "workers": raw["spec"]["workers"],
            "startTime": time,
            "conditions": [{"type": each, **about} for each in ([end, "Finished"] if ended else ["Running"])],
            **({"completionTime": time} if ended else {}),
            **({"progress": progress} if progress else {}),
        }
        self.jobs.put_job(parse_jobs.job(self.api.put(JOBS, {**raw, "status": status})))
        if metrics is not None:
            event = {"mptraining": 1, "kind": "Finished", "time": 0, "attempt": 1, "incarnation": "a", "worker": 0}
            event |= {"reason": "Succeeded", "exitCode": 0, "message": "", "metrics": metrics}
            end = {"exitCode": 0, "message": json.dumps(event)}
            number = next(self._pods)
            pod = {
                "metadata": {"name": f"{name}-1-0", "namespace": "team", "uid": f"pod-{number}"},
                "status": {"containerStatuses": [{"name": "trainer", "state": {"terminated": end}}]},
            }
            self.api.objects = {key: each for key, each in self.api.objects.items() if key[0] != PODS.plural}
            self.api.put(PODS, pod)

    def succeed(self, name: str, loss: float) -> None:
        """End a trial's job well, and let the worker see it."""
        self.job(name, "Succeeded", metrics={"loss": loss})
        self.run(5.0)

    def status(self, name: str = "lr") -> Raw:
        found: Raw = self.api.find(SWEEPS, "team", name).get("status", {})
        return found

    def states(self, name: str = "lr") -> list[str]:
        return [trial["state"] for trial in self.status(name).get("trials", ())]

    def made(self) -> list[str]:
        """Return the names of the jobs that were created, in order."""
        return [name for verb, plural, name in self.api.calls if (verb, plural) == ("create", JOBS.plural)]

    @property
    def woken(self) -> list[Key]:
        """The jobs outside of sweeps that were queued."""
        return [key for key in self.queued_jobs if key.name not in self.made()]

    def writes(self) -> int:
        """Return the number of writes of sweeps' statuses."""
        return sum((verb, plural) == ("patch", SWEEPS.plural) for verb, plural, _ in self.api.calls)
