"""Reconciler of MPTrainingSweeps: plans a sweep and applies the plan.

The queue and the thread are separate from those of jobs, because a proposal takes time. Sweeps take turns: the queue is
in the order of due times, and a sweep begins no further proposal after a quarter of a second. One proposal may take
longer: that of CMA-ES takes a second after 500 trials.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from prometheus_client import Histogram
from prometheus_client.core import GaugeMetricFamily

from mptraining_api.kubernetes_api import ApiProblem
from mptraining_api.problems import Problem
from mptraining_api.resolve.resolve import ClusterSettings, resolve
from mptraining_api.spec import MPTrainingJob
from mptraining_api.status import EventRecord
from mptraining_api.sweep import defaults
from mptraining_api.sweep.actions import SweepPlan, TrialJob
from mptraining_api.sweep.check import sweep_problems
from mptraining_api.sweep.early_stopping import early_stopping
from mptraining_api.sweep.plan import plan
from mptraining_api.sweep.proposals import Propose, propose
from mptraining_api.sweep.search_space import max_trials
from mptraining_api.sweep.spec import MPTrainingSweep, SweepSpec
from mptraining_api.sweep.status import SweepPhase, SweepStatus, Trial, TrialState
from mptraining_operator.jobs.children import NotCreated
from mptraining_operator.jobs.plan.waiting import NAMESPACE_FULL
from mptraining_operator.jobs.watch.cache import Cache
from mptraining_operator.jobs.watch.node_platform import NodePlatform
from mptraining_operator.runtime.controller import Reconciler
from mptraining_operator.runtime.informer import Stream
from mptraining_operator.runtime.metrics import by_label
from mptraining_operator.runtime.replica import Replica
from mptraining_operator.runtime.values import Key
from mptraining_operator.sweeps.apply import Refusals, SweepApplier
from mptraining_operator.sweeps.cache import COALESCE, TRIAL_STATES, StoredSweep, SweepStream
from mptraining_operator.sweeps.observe import ObservedJobs
from mptraining_operator.sweeps.turns import LOOK_AGAIN, Turns

# Status writes of one sweep: a token a second, because the status of a large sweep has hundreds of kilobytes. A write
# that starts or ends a trial's job may use tokens that were saved; one that reports a state leaves them.
_WRITES_PER_SECOND = 1.0
_MOST_SAVED = 3.0
# Seconds for which one sweep proposes before the next has its turn.
_PROPOSING_SECONDS = 0.25
_FIRST_PROPOSAL_SECONDS = 0.05
# Buckets of metrics. The completion time of a job has whole seconds.
_GAP_SECONDS = (0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 30.0, 60.0, 300.0)
_PROPOSAL_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
_UNDECIDED = (TrialState.PROPOSED, TrialState.RUNNING)


def mistakes(document: Mapping[str, Any], settings: ClusterSettings) -> str | None:
    """Return the mistakes of a sweep in one text, or None."""
    problems = sweep_problems(document, settings).problems
    return "; ".join(map(str, problems)) or None


@dataclass(slots=True)
class _Memory:
    """Memory of one sweep; all of it can be lost."""

    uid: str
    observed: ObservedJobs = field(default_factory=ObservedJobs)
    refusals: Refusals = field(default_factory=Refusals)
    tokens: float = _MOST_SAVED
    counted_at: float = 0.0
    # By generation: the parsed spec, and the workers of a trial.
    generation: int = -1
    sweep: MPTrainingSweep | None = None
    workers: int = 1
    # Of the last proposal.
    proposal_seconds: float = _FIRST_PROPOSAL_SECONDS
    # The status by its version.
    status: tuple[int, SweepStatus] | None = None
    # Ends of trials, in seconds since 1970, that no creation has followed yet.
    ends: deque[float] = field(default_factory=deque)
    # Whether it has fewer trials than it may have, and whether it was reported that it waits for workers.
    wants: bool = False
    waits: bool = False


@dataclass(eq=False)
class SweepReconciler(Reconciler):
    """`jobs` has the jobs of `job_stream`, which `wake_job` queues.

    `workers_per_namespace` is the limit of that name, None for none. `check` returns the mistakes of a sweep on that
    cluster, or None.
    """

    kind = "sweep"
    while_paused = "starts no trial of this sweep"
    expected = (ApiProblem, NotCreated)
    # Optuna computes in Python, so that a second thread would propose no faster.
    workers = 1

    replica: Replica
    stream: SweepStream
    jobs: Cache
    job_stream: Stream
    platform: NodePlatform
    workers_per_namespace: int | None
    wake_job: Callable[[Key], None]
    propose: Propose = propose
    check: Callable[[dict[str, Any], ClusterSettings], str | None] = mistakes

    def __post_init__(self) -> None:
        self.queue = self.stream.queue
        # A sweep whose job is missing would fail its trial.
        self.streams = (self.job_stream, self.stream)
        self._sweeps = self.stream.cache
        self._clock, self._monotonic = self.replica.clock, self.replica.monotonic
        self._applier = SweepApplier(self.replica, self._sweeps, self.jobs, self.wake_job)
        self._turns = Turns(self.jobs, self.workers_per_namespace, self._monotonic, self.queue.add, self.wake_job)
        histogram = partial(Histogram, registry=self.replica.metrics.registry)
        self._observe_gap = histogram(
            "mptraining_sweep_trial_gap_seconds",
            "Seconds from the end of a trial to the creation of the next job of its sweep.",
            buckets=_GAP_SECONDS,
        ).observe
        self._observe_proposal = histogram(
            "mptraining_sweep_proposal_seconds",
            "Seconds that the proposal of one trial took.",
            buckets=_PROPOSAL_SECONDS,
        ).observe
        self._memories: dict[Key, _Memory] = {}
        self.replica.metrics.register(self._gauges)

    def objects(self) -> tuple[StoredSweep, ...]:
        return self._sweeps.sweeps()

    def stored(self, key: Key) -> StoredSweep | None:
        return self._sweeps.get(key)

    def record(self, key: Key, record: EventRecord) -> None:
        stored = self._sweeps.get(key)
        if stored is not None:
            self._applier.emit(stored, record)

    def begin_term(self) -> None:
        """Do nothing: the memory of a sweep is checked against its status."""

    def check_cluster(self) -> None:
        """Look at every sweep again: a watch may have missed the end of a trial."""
        for sweep in self._sweeps.sweeps():
            self.queue.add(sweep.key)

    def reconcile(self, key: Key) -> None:
        stored = self._sweeps.get(key)
        if stored is None or stored.deleting:
            # The garbage collector deletes the jobs by their owner references.
            if (forgotten := self._memories.pop(key, None)) is not None:
                self._turns.forget(forgotten.uid)
            return
        memory = self._memory(stored)
        if (seconds := self._seconds_until_write(memory)) > 0:
            self.queue.add(key, seconds)
            return
        self._read(stored, memory)
        status = self._status(stored, memory)
        if memory.sweep is None or status is None:
            return
        self._advance(stored, memory, memory.sweep, status)

    def _advance(self, stored: StoredSweep, memory: _Memory, sweep: MPTrainingSweep, status: SweepStatus) -> None:
        now = self._clock()
        jobs = self._observe(stored, memory, status)
        most = self._most_new_trials(stored, memory, sweep.spec, status, jobs)
        planned = plan(
            sweep,
            status,
            jobs,
            now,
            propose=partial(self._timed, memory),
            new_trials=most,
            refusals=memory.refusals.in_force(now),
            # A sweep is checked before its first trial; one that failed by it never gets a start time.
            invalid=self.check(sweep.to_document(), self.platform.settings)
            if not (status.start_time or status.completion_time)
            else None,
        )
        changed = planned.status != status
        ends = planned.status.completion_time is not None
        urgent = bool(planned.actions) or ends
        if changed and not urgent and memory.tokens < _MOST_SAVED - 1:
            self.queue.add(stored.key, (_MOST_SAVED - 1 - memory.tokens) / _WRITES_PER_SECOND)
            return
        if changed:
            memory.tokens -= 1
            written = self._applier.write_status(stored, status, planned.status)
            if written is None:
                self.queue.add(stored.key)
                return
            # The watch may have brought a later version already, whose status another client has written.
            memory.status = written.version, planned.status
            # A trial may fail by the plan itself, which no job reports.
            self.queue.add(stored.key, COALESCE)
        before = {trial.number: trial for trial in status.trials or ()}
        self._count_ends(memory, before, planned.status, jobs)
        created, refused = self._applier.act(planned, stored, memory.refusals)
        self._count_creations(stored, memory, created, before, planned)
        if refused:
            self.queue.add(stored.key)
        memory.refusals.keep({trial.job for trial in planned.status.trials or () if trial.state in _UNDECIDED})
        if ends:
            memory.ends.clear()
            self._turns.leave(stored.uid)
            # A finished sweep may stay for months, and the status of a large one has megabytes when parsed.
            memory.status, memory.observed = None, ObservedJobs()
        self._requeue(stored, memory, planned, _started(before, planned.status), most, now)

    def _requeue(
        self, stored: StoredSweep, memory: _Memory, plan: SweepPlan, added: int, most: int, now: float
    ) -> None:
        if plan.status.completion_time is None and memory.wants:
            if added >= most > 0:
                # It may want more, after the others' turns.
                self.queue.add(stored.key)
            elif not most:
                self.queue.add(stored.key, LOOK_AGAIN)
                self._report_waiting(stored, memory, plan.status)
            elif not added:
                # It has nothing to start before one of its trials ends: the others need not wait for it.
                self._turns.leave(stored.uid)
        times = [at for at in (plan.wake_at, memory.refusals.next_try(now)) if at is not None]
        if times:
            self.queue.add(stored.key, max(0.0, min(times) - now))

    # -- the sweep as it is -------------------------------------------------------------------------------------

    def _memory(self, stored: StoredSweep) -> _Memory:
        memory = self._memories.get(stored.key)
        if memory is None or memory.uid != stored.uid:
            if memory is not None:
                self._turns.forget(memory.uid)
            memory = self._memories[stored.key] = _Memory(stored.uid, counted_at=self._monotonic())
        return memory

    def _read(self, stored: StoredSweep, memory: _Memory) -> None:
        """Parse the spec of a new generation."""
        if memory.generation == stored.generation:
            return
        sweep, problem = stored.sweep()
        if sweep is None:
            self._applier.emit(stored, EventRecord("SpecUnreadable", problem, "Warning"))
        memory.sweep, memory.generation = sweep, stored.generation
        if sweep is not None:
            memory.workers = _trial_workers(sweep.spec, self.platform.settings)

    def _status(self, stored: StoredSweep, memory: _Memory) -> SweepStatus | None:
        if memory.status is None or memory.status[0] != stored.version:
            status, problem = stored.sweep_status()
            if status is None:
                self._applier.emit(stored, EventRecord("StatusUnreadable", problem, "Warning"))
                return None
            memory.status = stored.version, status
        return memory.status[1]

    def _observe(self, stored: StoredSweep, memory: _Memory, status: SweepStatus) -> dict[str, TrialJob]:
        undecided = {trial.job: trial for trial in status.trials or () if trial.state in _UNDECIDED}
        cluster, sweep = self.replica.leader, (stored.key.namespace, stored.uid)
        seen = memory.observed.observe(self.jobs.trials(*sweep), undecided, cluster)
        missing = [name for name, trial in undecided.items() if trial.state == TrialState.RUNNING and name not in seen]
        if not missing:
            return seen
        # A trial whose job was deleted has failed: this is decided by the API server, not by a watch that is late.
        for name in missing:
            self._applier.find_job(stored, name)
        return memory.observed.observe(self.jobs.trials(*sweep), undecided, cluster)

    # -- rates and turns ----------------------------------------------------------------------------------------

    def _seconds_until_write(self, memory: _Memory) -> float:
        now = self._monotonic()
        saved = memory.tokens + (now - memory.counted_at) * _WRITES_PER_SECOND
        memory.tokens, memory.counted_at = min(_MOST_SAVED, saved), now
        return max(0.0, 1.0 - memory.tokens) / _WRITES_PER_SECOND

    def _most_new_trials(
        self, stored: StoredSweep, memory: _Memory, spec: SweepSpec, status: SweepStatus, jobs: Mapping[str, TrialJob]
    ) -> int:
        """Return how many trials the sweep may add in this turn."""
        budget = max(1, int(_PROPOSING_SECONDS / max(memory.proposal_seconds, 1e-6)))
        memory.wants = _wants_trials(spec, status, jobs)
        if not memory.wants:
            self._turns.leave(stored.uid)
            return 0 if self._turns.limited else budget
        granted = self._turns.grant(stored, memory.workers)
        return budget if granted is None else min(budget, granted)

    def _timed(self, memory: _Memory, spec: SweepSpec, trials: Sequence[Trial]) -> dict[str, Any] | None:
        began = self._monotonic()
        parameters = self.propose(spec, trials)
        memory.proposal_seconds = self._monotonic() - began
        self._observe_proposal(memory.proposal_seconds)
        return parameters

    def _report_waiting(self, stored: StoredSweep, memory: _Memory, status: SweepStatus) -> None:
        waits = not any(trial.state in _UNDECIDED for trial in status.trials or ())
        if waits and not memory.waits:
            message = (
                "the workers of this namespace are in use, or other jobs wait for them "
                "(runtimes.default.limits.workersPerNamespace): a trial starts when it is the turn of this sweep"
            )
            self._applier.emit(stored, EventRecord(NAMESPACE_FULL, message))
        memory.waits = waits

    # -- metrics and reports ------------------------------------------------------------------------------------

    def _count_ends(
        self, memory: _Memory, before: Mapping[int, Trial], after: SweepStatus, jobs: Mapping[str, TrialJob]
    ) -> None:
        for trial in after.trials or ():
            was = before.get(trial.number)
            job = jobs.get(was.job) if was is not None and was.state in _UNDECIDED else None
            ended = trial.state not in _UNDECIDED or (was is not None and trial.job != was.job)
            if job is not None and ended and job.completion is not None:
                memory.ends.append(job.completion)

    def _count_creations(
        self, stored: StoredSweep, memory: _Memory, created: int, before: Mapping[int, Trial], plan: SweepPlan
    ) -> None:
        now = self._clock()
        for _ in range(min(created, len(memory.ends))):
            self._observe_gap(max(0.0, now - memory.ends.popleft()))
        if created and _started(before, plan.status):
            memory.waits = False
            self._turns.created(stored)

    def _gauges(self) -> Iterator[GaugeMetricFamily]:
        sweeps = self._sweeps
        yield by_label("mptraining_sweeps", "Sweeps by phase.", "phase", sweeps.by_phase(), SweepPhase)
        text = "Trials of all sweeps by state."
        yield by_label("mptraining_sweep_trials", text, "state", sweeps.trials_by_state(), TRIAL_STATES)


def _started(before: Mapping[int, Trial], after: SweepStatus) -> int:
    """Return the number of trials that a plan has added or let continue with more epochs."""
    trials = after.trials or ()
    return sum(trial.number not in before or (trial.rung or 0) > (before[trial.number].rung or 0) for trial in trials)


def _wants_trials(spec: SweepSpec, status: SweepStatus, jobs: Mapping[str, TrialJob]) -> bool:
    """Return whether the sweep has fewer trials under way than it may have, and may have more."""
    trials = status.trials or ()
    over = {name for name, job in jobs.items() if job.state in ("Succeeded", "Failed")}
    live = sum(trial.state in _UNDECIDED and trial.job not in over for trial in trials)
    if live >= defaults.parallel(spec) or (spec.run_policy and spec.run_policy.suspend):
        return False
    return len(trials) < max_trials(spec) or early_stopping(spec)


def _trial_workers(spec: SweepSpec, settings: ClusterSettings) -> int:
    """Return the workers of one trial, by the job as it is written: 1 if it is complete with its parameters alone."""
    try:
        return resolve(MPTrainingJob.parse({"metadata": {"name": "trial"}, "spec": spec.job}), settings).workers
    except Problem:
        workers = spec.job.get("workers")
        return workers if isinstance(workers, int) and workers > 0 else 1
