"""One replica of the operator: every replica watches and lists; the leader also reconciles.

`add` takes the reconciler of each kind, and `serve` what else runs in the replica; `run` runs all of it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from typing import Protocol

from prometheus_client.core import GaugeMetricFamily

from mptraining_operator.runtime.cluster import Cluster
from mptraining_operator.runtime.controller import Controller, Reconciler
from mptraining_operator.runtime.event_recorder import EventRecorder
from mptraining_operator.runtime.health import LOOP_SILENT, HealthServer
from mptraining_operator.runtime.informer import Informer
from mptraining_operator.runtime.kopf_streams import KopfStreams
from mptraining_operator.runtime.leader_election import LeaseKeeper, NotLeading, Term
from mptraining_operator.runtime.metrics import Metrics, by_label
from mptraining_operator.settings import Identity, LeaseSettings

_log = logging.getLogger(__name__)

# Seconds that workers get to finish after SIGTERM; the kubelet would wait longer, `helm upgrade` not.
_FINISH_SECONDS = 5.0
# Seconds that a worker gets to leave its call after the end of its term; a call takes 35 s at most (`kubernetes_api`).
_LEAVE_SECONDS = 60.0


class Service(Protocol):
    """Runs in every replica, with the controllers."""

    def start(self, stopping: threading.Event) -> None:
        """Start, with retries until `stopping` is set; the replica is not ready before."""

    def stop(self) -> None:
        """Stop."""

    def ended(self) -> str | None:
        """Return why the process must be restarted, or None."""


class Replica:
    """`on_stuck` must end the process: a worker is stuck after its term, or a term cannot begin.

    `clock` returns seconds since 1970, for times that are stored or compared with stored ones;
    durations are measured with `monotonic`. Empty `namespaces` are all.
    """

    def __init__(
        self,
        cluster: Cluster,
        leases: Cluster,
        identity: Identity,
        lease: LeaseSettings,
        metrics: Metrics,
        *,
        namespaces: tuple[str, ...],
        health_port: int,
        clock: Callable[[], float],
        monotonic: Callable[[], float],
        on_stuck: Callable[[str], None],
    ) -> None:
        self.cluster = cluster
        # Its writes fail outside of a term.
        self.leader = cluster.fenced(self._check_term)
        self.metrics = metrics
        self.clock = clock
        self.monotonic = monotonic
        self.event_recorder = EventRecorder(cluster, host=identity.name, clock=clock, metrics=metrics)
        self._namespaces = namespaces
        self._name = identity.name
        self._on_stuck = on_stuck
        self._reconcilers: list[Reconciler] = []
        self._controllers: list[Controller] = []
        self._services: list[Service] = []
        self._informer: Informer | None = None
        self._kopf: KopfStreams | None = None
        self._term: Term | None = None
        # Whether everything is listed and all services have started.
        self.ready = False
        self._stopping = threading.Event()
        self._lease = LeaseKeeper(
            leases,
            identity,
            lease,
            monotonic=monotonic,
            wall=clock,
            on_started=self._lead,
            on_lost=self._stand_by,
        )
        self._health = HealthServer(health_port, metrics=metrics.text, alive=self._causes, ready=self._unready)
        metrics.register(self._gauges)

    @property
    def health_port(self) -> int:
        return self._health.port

    @property
    def leading(self) -> bool:
        return self._lease.leading

    def add(self, reconciler: Reconciler) -> None:
        """Reconcile these objects, in a queue and with workers of their own."""
        self._reconcilers.append(reconciler)

    def serve(self, service: Service) -> None:
        """Run the service from the start of the replica to its stop."""
        self._services.append(service)

    def run(self, stop: threading.Event) -> None:
        """Run until `stop` is set; then finish the reconciles in progress and release the lease.

        Raises OSError if a port is not available.
        """
        self.assemble()
        self._health.start()
        start = (self._start, "it could not start")
        threading.Thread(target=self._or_end, args=start, name="start", daemon=True).start()
        # In steps: a SIGTERM that arrives while SIGUSR2 writes the stacks does not interrupt a wait.
        while not stop.wait(1.0):
            pass
        self._stop()

    def assemble(self) -> tuple[Informer, list[Controller]]:
        """Make the informer of all streams, kopf's watches of the primary ones, and the controllers."""
        streams = list(dict.fromkeys(stream for reconciler in self._reconcilers for stream in reconciler.streams))
        self._informer = informer = Informer(
            self.cluster,
            streams,
            self._namespaces,
            self.monotonic,
            self.metrics,
            leading=lambda: self._lease.leading,
            on_known=self._begin_again,
            on_restored=self._restart_kopf,
            on_relisted=self._check_cluster,
        )
        primary = [stream for stream in streams if stream.primary]
        self._kopf = KopfStreams(primary, informer, self.metrics, self.monotonic)
        self._controllers = [
            Controller(reconciler, informer, self.metrics, self.monotonic) for reconciler in self._reconcilers
        ]
        return informer, self._controllers

    def _or_end(self, step: Callable[[], None], failure: str) -> None:
        """Take the step; a replica that failed in it would never be ready, or never reconcile."""
        try:
            step()
        except Exception:  # noqa: BLE001 - see above
            _log.exception("an error: %s", failure)
            self._on_stuck(failure)

    def _start(self) -> None:
        assert self._informer is not None
        assert self._kopf is not None
        self._informer.start()
        self.event_recorder.start()
        for service in self._services:
            service.start(self._stopping)
        while not self._informer.answered.wait(0.5):
            if self._stopping.is_set():
                return
        counts = [f"{len(reconciler.objects())} {reconciler.kind}s" for reconciler in self._reconcilers]
        _log.info("listed %s; ready", ", ".join(counts))
        self.ready = True
        self._informer.watch()
        self._kopf.start()
        self._lease.start()

    def _lead(self, term: Term) -> None:
        if self._stopping.is_set():
            return
        _log.info("leading as %s, term %d", self._name, term.number)
        self.metrics.set_leader(True)
        # A new thread, because the lists may take long.
        begin = (lambda: self.begin_term(term), "its term could not begin")
        threading.Thread(target=self._or_end, args=begin, name="lead", daemon=True).start()

    def begin_term(self, term: Term) -> None:
        """List everything, queue every object, since the previous leader may have stopped anywhere, and start.

        A list that began before this replica led may be inconsistent: its Jobs from before the previous leader's last
        write, its MPTrainingJobs from after it, so that a Job in use appears deleted. A standby's watch streams may
        also lag behind each other.
        """
        assert self._informer is not None
        self._informer.begin_term()
        if term.over or self._stopping.is_set():
            return
        if not self._join(0.0):
            # They would write in this term.
            self._on_stuck("workers of an earlier term still run")
            return
        for reconciler in self._reconcilers:
            reconciler.begin_term()
        # Only now may this replica write.
        self._term = term
        self._check_cluster()
        self._queue_all()
        for controller in self._controllers:
            controller.start(term)

    def _check_term(self) -> None:
        """Raise NotLeading unless this replica leads: the fence of every write."""
        if self._term is None:
            raise NotLeading("no term has begun")
        self._term.check()
        for controller in self._controllers:
            controller.note_progress()

    def _stand_by(self, cause: str) -> None:
        """Return when the workers of the ended term have left; streams, caches and queues continue for the next."""
        _log.warning("no longer leading: %s; standing by", cause)
        self.metrics.set_leader(False)
        if not self._join(_LEAVE_SECONDS) and not self._stopping.is_set():
            self._on_stuck(f"a worker is still in a call {_LEAVE_SECONDS:.0f} s after its term ended")

    def _check_cluster(self) -> None:
        for reconciler in self._reconcilers:
            try:
                reconciler.check_cluster()
            except NotLeading:
                return

    def _begin_again(self) -> None:
        """Watch and reconcile what is known now: a namespace is served again, or a resource is installed."""
        self._restart_kopf()
        self._queue_all()

    def _restart_kopf(self) -> None:
        if self._kopf is not None:
            self._kopf.restart()

    def _queue_all(self) -> None:
        for controller in self._controllers:
            controller.queue_all()

    def _join(self, seconds: float) -> bool:
        left = [controller.join(seconds) for controller in self._controllers]
        return all(left)

    def _gauges(self) -> Iterator[GaugeMetricFamily]:
        ages, depths, paused = {}, {}, {}
        for reconciler in self._reconcilers:
            # A standby queues keys but does not process them.
            ages[reconciler.kind] = reconciler.queue.oldest_age() if self._lease.leading else 0.0
            depths[reconciler.kind] = reconciler.queue.depth()
            paused[reconciler.kind] = sum(stored.paused for stored in reconciler.objects())
        yield by_label("mptraining_queue_age_seconds", "Seconds that the head has been waiting.", "kind", ages)
        yield by_label("mptraining_queue_depth", "Objects that wait for a worker.", "kind", depths)
        yield by_label("mptraining_paused", "Objects that their annotation pauses.", "kind", paused)
        unavailable = GaugeMetricFamily(
            "mptraining_namespace_unavailable",
            "1 for each namespace of the setting namespaces that cannot be listed, with the API server's reason.",
            labels=("namespace", "reason"),
        )
        for namespace, reason in (self._informer.unavailable() if self._informer else {}).items():
            unavailable.add_metric((namespace, reason), 1)
        yield unavailable
        if (transitions := self._lease.transitions()) is not None:
            text = "The Lease's leaseTransitions, as this replica last read it."
            yield GaugeMetricFamily("mptraining_lease_transitions", text, transitions)

    def _causes(self) -> list[str]:
        """Return why the process must be restarted: a thread of it has ended or is stuck."""
        silent = self._kopf.seconds_since_tick() if self._kopf else 0.0
        causes = [
            f"kopf's event loop has not run for {silent:.0f} s" if silent > LOOP_SILENT else None,
            "a watch has ended" if self._informer and self._informer.ended_watches() else None,
            *(controller.stuck() for controller in self._controllers),
            *(service.ended() for service in self._services),
        ]
        return [cause for cause in causes if cause]

    def _unready(self) -> list[str]:
        return [] if self.ready else ["the first list is not complete, or a service has not started"]

    def _stop(self) -> None:
        _log.info("stopping")
        self._stopping.set()
        for reconciler in self._reconcilers:
            reconciler.queue.stop()
        # Keep the lease until the last write has finished; otherwise a second leader could start while this one still
        # writes.
        self._lease.stop(release=self._join(_FINISH_SECONDS))
        for service in self._services:
            service.stop()
        self.event_recorder.stop()
        if self._informer is not None and self._kopf is not None:
            self._informer.stop()
            self._kopf.stop(1.0)
        self._health.stop()
