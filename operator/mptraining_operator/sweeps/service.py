"""Sweeps of one replica: their cache, queue, lists, watches and worker, put together.

They are separate from the parts of jobs, so that neither a missing CustomResourceDefinition nor a slow proposal delays
jobs. Every replica watches; only the leader plans, under the Lease and the fence of the jobs.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

from mptraining_api.resolve.resolve import ClusterSettings
from mptraining_api.sweep.check import sweep_problems
from mptraining_api.sweep.proposals import propose
from mptraining_api.sweep.spec import SWEEP_KIND
from mptraining_operator.cluster import Cluster
from mptraining_operator.event_recorder import EventRecorder
from mptraining_operator.leader_election import Term
from mptraining_operator.plan.actions import EventRecord
from mptraining_operator.plan.snapshot import Key
from mptraining_operator.sweeps.apply import SweepApplier
from mptraining_operator.sweeps.cache import SWEEP_STREAM, StoredSweep, SweepCache, SweepIntake
from mptraining_operator.sweeps.controller import SweepReconciler
from mptraining_operator.sweeps.metrics import SweepMetrics
from mptraining_operator.sweeps.turns import Turns
from mptraining_operator.watch.cache import Cache
from mptraining_operator.watch.informer import Relister
from mptraining_operator.watch.reflector import Reflectors
from mptraining_operator.watch.work_queue import WorkQueue

_log = logging.getLogger(__name__)

# One worker: Optuna computes in Python, so that a second thread would propose no faster.
_WORKERS = 1
_CRD_MISSING = (
    "the resource MPTrainingSweep is not installed, so that there are no sweeps: "
    "kubectl apply -f charts/mptraining/files/crd-sweeps.yaml"
)


class Sweeps:
    """`cluster` reads, `leader` writes behind the fence of the term; `clock` is in seconds since 1970.

    `wake_job` queues a job; `holds` returns whether no plan of a sweep is executed, as the operator is paused or the
    jobs of the namespace are unknown; `leading` returns whether this replica leads.
    """

    def __init__(
        self,
        cluster: Cluster,
        leader: Cluster,
        jobs: Cache,
        *,
        settings: ClusterSettings,
        nodes_per_namespace: int | None,
        namespaces: tuple[str, ...],
        relist_seconds: float,
        event_recorder: EventRecorder,
        metrics: SweepMetrics,
        wake_job: Callable[[Key], None],
        holds: Callable[[Key], bool],
        leading: Callable[[], bool],
        clock: Callable[[], float],
        monotonic: Callable[[], float],
        observe_list: Callable[[str, float], None] = lambda resource, seconds: None,
        on_event: Callable[[str], None] = lambda resource: None,
        on_restart: Callable[[str], None] = lambda resource: None,
    ) -> None:
        cache, queue = SweepCache(), WorkQueue(monotonic)
        self.cache = cache
        self._queue = queue
        self._intake = SweepIntake(cache, queue)
        self._stopping = threading.Event()
        self._watching = False
        self._relister = Relister(
            cluster,
            self._intake,
            seconds=relist_seconds,
            namespaces=namespaces,
            clock=monotonic,
            on_available=self.queue_all,
            on_listed=self.queue_all,
            observe_list=observe_list,
            streams=(SWEEP_STREAM,),
            always=(SWEEP_STREAM,),
            crd_missing=_CRD_MISSING,
        )
        self._reflectors = Reflectors(
            cluster, self._intake, self._relister, monotonic, on_event, on_restart, streams=(SWEEP_STREAM,)
        )

        def emit(sweep: StoredSweep, record: EventRecord) -> None:
            event_recorder.record_about(SWEEP_KIND, sweep.key, sweep.uid, record)

        turns = Turns(jobs, most=nodes_per_namespace, clock=monotonic, wake_sweep=queue.add, wake_job=wake_job)
        self.reconciler = SweepReconciler(
            queue,
            cache,
            jobs,
            SweepApplier(leader, cache, jobs, wake_job=wake_job, record_event=emit, clock=clock),
            turns,
            cluster,
            propose=propose,
            check=_mistakes,
            settings=settings,
            clock=clock,
            stopwatch=monotonic,
            holds=holds,
            observe_gap=metrics.observe_gap,
            observe_proposal=metrics.observe_proposal,
        )
        metrics.watch(
            sweeps_by_phase=cache.by_phase,
            trials_by_state=cache.trials_by_state,
            paused=self.reconciler.paused_sweeps,
            queue_age=lambda: queue.oldest_age() if leading() else 0.0,
        )

    def trial_changed(self, namespace: str, sweep_uid: str) -> None:
        """Queue the sweep of that uid in the namespace, one of whose jobs has changed."""
        self._intake.trial_changed(namespace, sweep_uid)

    def queue_all(self) -> None:
        """Queue every sweep: after a list, or at the beginning of a term."""
        for sweep in self.cache.sweeps():
            self._queue.add(sweep.key)

    def start(self) -> None:
        """List and watch, in threads."""
        self._relister.start()
        threading.Thread(target=self._watch, name="watch sweeps", daemon=True).start()

    def lead(self, term: Term) -> None:
        """Start to reconcile, in a thread, once a list that began in this term is complete.

        The jobs must have been listed in this term: a sweep whose job is missing would fail its trial.
        """
        threading.Thread(target=self._lead, args=(term,), name="lead sweeps", daemon=True).start()

    def stop_queue(self) -> None:
        """Let the worker finish its sweep and leave."""
        self._stopping.set()
        self._queue.stop()

    def stop(self) -> None:
        """Stop lists and watches."""
        self._relister.stop()
        self._reflectors.stop()

    def ended_watches(self) -> int:
        """Return the number of watches whose thread has ended."""
        return self._reflectors.ended() if self._watching else 0

    def _watch(self) -> None:
        while not self._relister.complete.wait(0.5):
            if self._stopping.is_set():
                return
        self._reflectors.start()
        self._watching = True

    def _lead(self, term: Term) -> None:
        # Without the resource there is no sweep to lead; the relister reports it.
        while not self._relister.complete.wait(0.5):
            if self._stopping.is_set() or term.over:
                return
        if not self._relister.list_until_complete(term.ended) or self._stopping.is_set():
            return
        self.queue_all()
        self.reconciler.start_term(_WORKERS, term)


def _mistakes(document: Mapping[str, Any], settings: ClusterSettings) -> str | None:
    """Return the mistakes of a sweep in one text, or None."""
    found = sweep_problems(document, settings).problems
    return "; ".join(str(each) for each in found) or None
