"""Assembly of one replica of the operator: the reconcilers of jobs and of sweeps, and the progress endpoint."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable

from mptraining_api.resolve.runtime_settings import DEFAULT
from mptraining_api.resolve.runtimes import complete
from mptraining_api.resolved_job import ResolvedJob
from mptraining_operator.jobs.notifier import Notifier
from mptraining_operator.jobs.plan.snapshot import Limits
from mptraining_operator.jobs.reconciler import JobReconciler
from mptraining_operator.jobs.resources.environment import PodSettings
from mptraining_operator.jobs.resources.job_objects import Owner
from mptraining_operator.jobs.watch.cache import Cache
from mptraining_operator.jobs.watch.node_platform import NodePlatform
from mptraining_operator.progress.auth import report_path
from mptraining_operator.progress.certificate import dns_names
from mptraining_operator.progress.server import ProgressEndpoint
from mptraining_operator.runtime.cluster import Cluster
from mptraining_operator.runtime.metrics import Metrics
from mptraining_operator.runtime.replica import Replica
from mptraining_operator.runtime.values import Key
from mptraining_operator.runtime.work_queue import WorkQueue
from mptraining_operator.settings import Identity, OperatorSettings
from mptraining_operator.sweeps.cache import SweepCache, SweepStream
from mptraining_operator.sweeps.reconciler import SweepReconciler

_log = logging.getLogger(__name__)

# Jobs that are reconciled concurrently: they wait for the API server most of the time.
WORKERS = 8


def limits(settings: OperatorSettings, identity: Identity) -> Limits:
    return Limits(
        cluster=settings.cluster(),
        gang_release=settings.gang_release_seconds,
        operator_namespace=identity.namespace,
        operator_account=identity.service_account,
    )


class Operator:
    """The replica, with what it reconciles; arguments as those of `Replica`."""

    def __init__(
        self, settings: OperatorSettings, identity: Identity, cluster: Cluster, leases: Cluster, metrics: Metrics,
        *, on_stuck: Callable[[str], None], clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._settings = settings
        self._identity = identity
        self.replica = replica = Replica(
            cluster,
            leases,
            identity,
            settings.lease,
            metrics,
            namespaces=settings.namespaces,
            health_port=settings.health_port,
            clock=clock,
            monotonic=monotonic,
            on_stuck=on_stuck,
        )
        self._platform = platform = NodePlatform(cluster, settings)
        notifier = Notifier(settings.notifications, os.environ)
        sweep_stream = SweepStream(SweepCache(), WorkQueue(monotonic))
        self.cache = Cache(monotonic, sweep_stream.trial_changed)
        self.jobs = JobReconciler(
            replica,
            self.cache,
            WorkQueue(monotonic),
            limits=limits(settings, identity),
            platform=platform,
            pod_settings=self._pod_settings,
            receives_reports=settings.progress.enabled,
            workers=WORKERS,
            notify=notifier.notify,
        )
        self.sweeps = SweepReconciler(
            replica,
            sweep_stream,
            self.cache,
            self.jobs.stream,
            platform=platform,
            workers_per_namespace=complete(settings.runtimes, DEFAULT).limits.workers_per_namespace,
            wake_job=self.jobs.queue.add,
        )
        replica.add(self.jobs)
        replica.add(self.sweeps)
        replica.serve(notifier)
        self._progress: ProgressEndpoint | None = None
        if settings.progress.enabled:
            self._progress = ProgressEndpoint(settings.progress, identity.namespace, replica, self.cache)
            replica.serve(self._progress)

    def run(self, stop: threading.Event) -> None:
        """Run until `stop` is set. Raises OSError if a port is not available."""
        self.replica.run(stop)

    def _pod_settings(self, owner: Owner, job: ResolvedJob | None) -> PodSettings:
        settings, progress = self._settings, self._progress
        url, certificate = None, ""
        if progress is not None:
            host = dns_names(settings.progress.service, self._identity.namespace)[0]
            url = f"https://{host}:{progress.port}{report_path(Key(owner.namespace, owner.name))}"
            certificate = progress.certificate
        return PodSettings(
            grace_seconds=settings.grace_seconds,
            progress_url=url,
            progress_certificate=certificate,
            runtime=complete(settings.runtimes, (job and job.runtime) or DEFAULT),
            gangs=settings.gang_schedulers,
            platform_user=self._platform.assigns_users,
        )


def exit_process(cause: str) -> None:
    """End the process immediately, with the calls that do not end."""
    _log.error("%s; this process exits and is restarted", cause)
    logging.shutdown()
    os._exit(1)
