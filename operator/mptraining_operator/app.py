"""Assembly of one operator replica: construction, start and stop of all its parts.

Every replica watches, lists and receives progress reports; only the leader reconciles.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable

from mptraining_api.kubernetes_api import JOBS, ApiProblem
from mptraining_api.resolve.runtime_settings import DEFAULT
from mptraining_api.resolve.runtimes import complete
from mptraining_api.resolved_job import ResolvedJob
from mptraining_operator import health
from mptraining_operator.apply import Applier
from mptraining_operator.cluster import Cluster
from mptraining_operator.controller import Reconciler
from mptraining_operator.event_recorder import EventRecorder
from mptraining_operator.health import HealthServer
from mptraining_operator.leader_election import LeaseKeeper, NotLeading, Term
from mptraining_operator.metrics import Metrics
from mptraining_operator.namespace_objects import NamespaceObjects
from mptraining_operator.pause import Pause
from mptraining_operator.plan.actions import EventRecord
from mptraining_operator.plan.plan import plan
from mptraining_operator.plan.snapshot import Key, Limits, SeenBatchJob, Snapshot
from mptraining_operator.progress.auth import report_path
from mptraining_operator.progress.certificate import dns_names
from mptraining_operator.progress.server import ProgressEndpoint
from mptraining_operator.resources.environment import PodSettings
from mptraining_operator.resources.job_objects import Owner
from mptraining_operator.resources.volumes import CABundle
from mptraining_operator.settings import Identity, OperatorSettings
from mptraining_operator.sweeps.metrics import SweepMetrics
from mptraining_operator.sweeps.service import Sweeps
from mptraining_operator.watch.cache import Cache
from mptraining_operator.watch.informer import Intake, Relister
from mptraining_operator.watch.kopf_streams import WatchStreams
from mptraining_operator.watch.node_platform import NodePlatform
from mptraining_operator.watch.reflector import Reflectors
from mptraining_operator.watch.work_queue import WorkQueue

_log = logging.getLogger(__name__)

# Jobs that are reconciled concurrently: they wait for the API server most of the time.
WORKERS = 8

# Seconds that workers get to finish after SIGTERM; the kubelet would wait longer, `helm upgrade` not.
_FINISH_SECONDS = 5.0
# Seconds that a worker gets to leave its call after the end of its term; a call takes 35 s at most (`kubernetes_api`).
_LEAVE_SECONDS = 60.0


def limits(settings: OperatorSettings, identity: Identity) -> Limits:
    """Return the settings that plans depend on."""
    return Limits(
        cluster=settings.cluster(),
        gang_release=settings.gang_release_seconds,
        operator_namespace=identity.namespace,
        operator_account=identity.service_account,
    )


class Operator:
    """One replica. `on_stuck` must end the process: a worker is stuck after its term, or a term cannot begin.

    `clock` returns seconds since 1970 (`cluster.ServerTime`), for times that are stored or compared with stored ones;
    durations are measured with `monotonic`.
    """

    def __init__(
        self, settings: OperatorSettings, identity: Identity, cluster: Cluster, leases: Cluster, metrics: Metrics,
        *, on_stuck: Callable[[str], None], clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._settings = settings
        self._clock = clock
        self._identity = identity
        self._cluster = cluster
        self._limits = limits(settings, identity)
        self._platform = NodePlatform(cluster, settings)
        self._stopping = threading.Event()
        self._metrics = metrics
        self._cache = Cache(monotonic, self._trial_changed)
        self._queue = WorkQueue(
            monotonic,
            self._cache.urgency,
            others=WORKERS // 4,
            late=3 * WORKERS // 4,
            crowded=self._cache.crowded,
        )
        intake = Intake(self._cache, self._queue)
        self._relister = Relister(
            cluster,
            intake,
            seconds=settings.relist_seconds,
            namespaces=settings.namespaces,
            clock=monotonic,
            on_available=self._queue_all,
            on_listed=self._check_cluster,
            decides=lambda: self._lease.leading,
            observe_list=metrics.observe_list,
        )
        self._streams = WatchStreams(
            intake,
            namespaces=settings.namespaces,
            on_listed=self._relister.request_relist,
            served=lambda: cluster.serves(JOBS),
            on_event=metrics.watch_event,
            on_restart=metrics.count_watch_restart,
        )
        self._reflectors = Reflectors(
            cluster, intake, self._relister, monotonic, metrics.watch_event, metrics.count_watch_restart
        )
        self._event_recorder = EventRecorder(
            cluster, host=identity.name, clock=clock, count_dropped=metrics.count_dropped_event
        )
        does = "leaves this job and its pods alone"
        self._pause = Pause("job", does, self._cache.stored, self._record_pause)
        self._progress: ProgressEndpoint | None = None
        leader = cluster.fenced(self._check_term)
        self._namespace_objects = NamespaceObjects(leader, monotonic)
        self._on_stuck = on_stuck
        applier = Applier(
            leader,
            self._cache,
            pod_settings=self._pod_settings,
            record_event=self._event_recorder.record,
            written=metrics.count_plan,
            clock=clock,
            namespace_objects=self._namespace_objects,
            started=self._observe_start,
        )
        self._reconciler = Reconciler(
            self._queue,
            self._cache,
            applier,
            plan=plan,
            limits=self._limits,
            record_event=self._event_recorder.record,
            observe=metrics.observe_reconcile,
            clock=clock,
            stopwatch=monotonic,
            holds=lambda key: self._relister.is_unknown(key.namespace) or self._pause.holds(key),
            count_retry=metrics.count_retry,
        )
        self._sweeps = Sweeps(
            cluster,
            leader,
            self._cache,
            settings=settings.cluster(),
            nodes_per_namespace=settings.limits.nodes_per_namespace,
            namespaces=settings.namespaces,
            relist_seconds=settings.relist_seconds,
            event_recorder=self._event_recorder,
            metrics=SweepMetrics(metrics.registry),
            wake_job=self._queue.add,
            holds=lambda key: self._relister.is_unknown(key.namespace),
            leading=lambda: self._lease.leading,
            clock=clock,
            monotonic=monotonic,
            observe_list=metrics.observe_list,
            on_event=metrics.watch_event,
            on_restart=metrics.count_watch_restart,
        )
        self._lease = LeaseKeeper(
            leases,
            identity,
            settings.lease,
            monotonic=monotonic,
            wall=clock,
            on_started=self._lead,
            on_lost=self._stand_by,
        )
        self._health = HealthServer(
            settings.health_port,
            metrics=metrics.text,
            alive=(
                health.check_event_loop(lambda: self._streams.seconds_since_tick() if self._watching else 0.0),
                health.check_condition(
                    lambda: not ((self._watching and self._reflectors.ended()) or self._sweeps.ended_watches()),
                    "a watch of Jobs, pods or sweeps has ended",
                ),
                health.check_workers(self._reconciler.longest_work, self._reconciler.ended_workers),
                health.check_workers(self._sweeps.reconciler.longest_work, self._sweeps.reconciler.ended_workers),
                health.check_condition(
                    lambda: self._progress is None or self._progress.alive, "the progress endpoint has ended"
                ),
            ),
            ready=(
                health.check_condition(self._relister.complete.is_set, "the first list is not complete"),
                health.check_condition(
                    lambda: self._progress is not None or not settings.progress.enabled,
                    "the progress endpoint does not listen",
                ),
            ),
        )
        metrics.watch(
            jobs_by_phase=self._cache.jobs_by_phase,
            # A standby queues keys but does not process them.
            queue_age=lambda: self._queue.oldest_age() if self._lease.leading else 0.0,
            queue_depth=self._queue.depth,
            paused_jobs=lambda: sum(job.paused for job in self._cache.jobs()),
            lease_transitions=self._lease.transitions,
            namespaces_unavailable=self._relister.unavailable,
        )
        self._watching = False

    @property
    def health_port(self) -> int:
        return self._health.port

    def run(self, stop: threading.Event) -> None:
        """Run until `stop` is set; then finish the jobs in progress and release the lease.

        Raises OSError if a port is not available.
        """
        self._health.start()
        threading.Thread(target=self._start, name="start", daemon=True).start()
        # In steps: a SIGTERM that arrives while SIGUSR2 writes the stacks does not interrupt a wait.
        while not stop.wait(1.0):
            pass
        self._stop()

    def _start(self) -> None:
        self._relister.start()
        self._sweeps.start()
        self._event_recorder.start()
        if self._settings.progress.enabled:
            self._start_progress()
        while not self._relister.complete.wait(0.5):
            if self._stopping.is_set():
                return
        _log.info("listed %d jobs; ready", len(self._cache.job_keys()))
        self._reflectors.start()
        self._streams.start()
        self._watching = True
        self._lease.start()

    def _start_progress(self) -> None:
        """Start the progress endpoint, with retries, before any pod starts: pods need its certificate."""
        pause = 1.0
        while not self._stopping.is_set():
            try:
                listed = self._relister.complete.is_set
                self._progress = ProgressEndpoint(
                    self._settings,
                    self._identity,
                    self._cluster,
                    self._cache,
                    listed,
                    self._clock,
                    count_refused=self._metrics.count_refused_report,
                )
                return
            except (ApiProblem, OSError, RuntimeError) as problem:
                _log.warning("the progress endpoint cannot start: %s; trying again in %.0f s", problem, pause)
                self._stopping.wait(pause)
                pause = min(2 * pause, 15.0)

    def _lead(self, term: Term) -> None:
        """Start to reconcile as the leader."""
        if self._stopping.is_set():
            return
        _log.info("leading as %s, term %d", self._identity.name, term.number)
        self._metrics.set_leader(True)
        self._metrics.count_lease_change("Acquired")
        # A new thread, because the list in `_reconcile` may take long.
        threading.Thread(target=self._begin, args=(term,), name="lead", daemon=True).start()

    def _begin(self, term: Term) -> None:
        try:
            self._reconcile(term)
        except Exception:  # noqa: BLE001 - a leader that does nothing would keep its Lease
            _log.exception("an error at the beginning of a term")
            self._on_stuck("its term could not begin")

    def _check_term(self) -> None:
        self._reconciler.check_term()
        for workers in (self._reconciler, self._sweeps.reconciler):
            workers.note_progress()

    def _stand_by(self, cause: str) -> None:
        """Return when the workers of the ended term have left; streams, cache and queue continue for the next term."""
        _log.warning("no longer leading: %s; standing by", cause)
        self._metrics.set_leader(False)
        self._metrics.count_lease_change("Lost")
        left = [workers.join(_LEAVE_SECONDS) for workers in (self._reconciler, self._sweeps.reconciler)]
        if not all(left) and not self._stopping.is_set():
            self._on_stuck(f"a worker is still in a call {_LEAVE_SECONDS:.0f} s after its term ended")

    def _reconcile(self, term: Term) -> None:
        """List everything, queue every job, since the previous leader may have stopped anywhere, and start the workers.

        A list that began before this replica led may be inconsistent: its Jobs from before the previous leader's last
        write, its MPTrainingJobs from after it, so that a Job in use appears deleted. A standby's watch streams may
        also lag behind each other.
        """
        if not self._relister.list_until_complete(term.ended) or self._stopping.is_set():
            return
        for key in self._cache.job_keys():
            self._queue.add(key)
        self._read_platform()
        # Without a leader, possibly no replica was running to receive reports.
        receiving_since = self._clock() if self._settings.progress.enabled else None
        self._reconciler.start(WORKERS, term, reports_since=receiving_since)
        self._sweeps.lead(term)
        # Only now may this replica write.
        self._repair_shared_objects()

    def _check_cluster(self) -> None:
        """Read the nodes, and repair Services and NetworkPolicies that another client changed."""
        if not self._lease.leading:
            return
        self._read_platform()
        self._repair_shared_objects()

    def _read_platform(self) -> None:
        settings = self._platform.read()
        self._reconciler.update_cluster(settings)
        self._sweeps.reconciler.update_cluster(settings)

    def _repair_shared_objects(self) -> None:
        for namespace in self._cache.used_namespaces():
            try:
                self._namespace_objects.ensure(namespace, again=True)
            except NotLeading:
                return
            except ApiProblem as problem:
                _log.warning("the shared objects of namespace %s could not be checked: %s", namespace, problem)

    def _observe_start(self, snapshot: Snapshot, batch_job: SeenBatchJob) -> None:
        ran = snapshot.status is not None and snapshot.status.start_time is not None
        if batch_job.attempt == 1 and not ran:
            self._metrics.observe_first_child(snapshot.uid, batch_job.created - snapshot.created)

    def _record_pause(self, key: Key, record: EventRecord) -> None:
        _log.info("%s: %s", record.reason, record.message, extra={"job": str(key)})
        snapshot = self._cache.snapshot(key, self._limits)
        if snapshot is not None:
            self._event_recorder.record(snapshot, record)

    def _trial_changed(self, namespace: str, sweep_uid: str) -> None:
        self._sweeps.trial_changed(namespace, sweep_uid)

    def _queue_all(self) -> None:
        """Queue everything: a namespace is served again."""
        for key in self._cache.job_keys():
            self._queue.add(key)
        self._sweeps.queue_all()

    def _stop(self) -> None:
        _log.info("stopping")
        self._stopping.set()
        self._queue.stop()
        self._sweeps.stop_queue()
        left = [workers.join(_FINISH_SECONDS) for workers in (self._reconciler, self._sweeps.reconciler)]
        finished = all(left)
        # Keep the lease until the last write has finished; otherwise a second leader could start while this one still
        # writes.
        self._lease.stop(release=finished)
        self._relister.stop()
        self._sweeps.stop()
        if self._progress is not None:
            self._progress.stop()
        self._event_recorder.stop()
        self._reflectors.stop()
        self._streams.stop(1.0)
        self._health.stop()

    def _pod_settings(self, owner: Owner, job: ResolvedJob | None) -> PodSettings:
        settings, progress = self._settings, self._progress
        runtime = complete(settings.runtimes, job.runtime.name if job and job.runtime else DEFAULT)
        url, certificate = None, ""
        if progress is not None:
            host = dns_names(settings.progress.service, self._identity.namespace)[0]
            url = f"https://{host}:{progress.service_port}{report_path(Key(owner.namespace, owner.name))}"
            certificate = progress.certificate
        return PodSettings(
            grace_seconds=settings.grace_seconds,
            progress_url=url,
            progress_certificate=certificate,
            ca_bundle=CABundle(runtime.ca_config_map, runtime.ca_key or "ca.crt") if runtime.ca_config_map else None,
            priority_class_name=runtime.priority_class_name,
            platform_user=self._platform.assigns_users,
            coscheduling=settings.gang_schedulers.coscheduling,
            volcano=settings.gang_schedulers.volcano,
            http_proxy=runtime.http_proxy,
            https_proxy=runtime.https_proxy,
            no_proxy=runtime.no_proxy or "",
        )


def exit_process(cause: str) -> None:
    """End the process immediately, with the calls that do not end."""
    _log.error("%s; this process exits and is restarted", cause)
    logging.shutdown()
    os._exit(1)
