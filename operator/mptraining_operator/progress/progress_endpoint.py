"""The progress endpoint of one replica, put together: server, token reviews, certificate, and the writer behind it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from pydantic import ValidationError

from mptraining_api.status import Progress
from mptraining_operator import cluster as api
from mptraining_operator.cluster import ApiProblem, Cluster
from mptraining_operator.plan.snapshot import Key
from mptraining_operator.progress.auth import TokenReviewer
from mptraining_operator.progress.certificate import CertificateKeeper, dns_names
from mptraining_operator.progress.progress_request import JobForProgress
from mptraining_operator.progress.server import NotReady, ProgressServer
from mptraining_operator.progress.writer import ProgressWriter
from mptraining_operator.settings import Identity, OperatorSettings
from mptraining_operator.watch.cache import Cache


class ProgressEndpoint:
    """The endpoint, its token reviews, its certificate in a Secret, and the writer behind it."""

    def __init__(
        self,
        settings: OperatorSettings,
        identity: Identity,
        cluster: Cluster,
        cache: Cache,
        listed: Callable[[], bool],
        clock: Callable[[], float],
    ) -> None:
        self._cache = cache
        self._listed = listed
        chosen, namespace = settings.progress, identity.namespace
        name = f"{chosen.service}-progress"

        def read() -> dict[str, Any] | None:
            try:
                return cluster.get(api.SECRETS, namespace, name)
            except ApiProblem as problem:
                if problem.status != 404:
                    raise
                return None

        self._keeper = CertificateKeeper(
            read,
            lambda body: cluster.create(api.SECRETS, namespace, body),
            lambda body: cluster.replace(api.SECRETS, namespace, name, body),
            clock,
            name=name,
            names=dns_names(chosen.service, namespace),
        )
        self._writer = ProgressWriter(
            lambda key, uid, progress: cluster.write_progress(key.namespace, key.name, uid, progress),
            clock,
            chosen.minimum_seconds,
            chosen.writes_per_second,
        )
        reviewer = TokenReviewer(cluster.review_token, clock, chosen.token_cache_seconds)
        self._server = ProgressServer(chosen, self._look_up, reviewer, self._writer, self._keeper)
        self._server.start()
        self._writer.start()
        self.service_port = chosen.port or self._server.port

    @property
    def certificate(self) -> str:
        """What pods are to trust, in PEM."""
        return self._keeper.current.ca_pem.decode()

    @property
    def alive(self) -> bool:
        return self._server.alive

    def stop(self) -> None:
        self._server.stop()
        self._writer.stop(2.0)

    def _look_up(self, key: Key) -> JobForProgress | None:
        if not self._listed():
            raise NotReady
        job = self._cache.stored(key)
        if job is None:
            return None
        return JobForProgress(job.uid, job.attempt, self._cache.live_pods(key, job.attempt), _progress(job.progress))


def _progress(written: bytes | None) -> Progress | None:
    """None too where somebody wrote what cannot be read: the next report replaces it."""
    with suppress(ValidationError):
        return Progress.read(written) if written else None
    return None
