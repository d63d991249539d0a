"""Checks of an installed operator for `helm test`, run in a pod with the operator's service account."""

from __future__ import annotations

import http.client
import ssl
from collections.abc import Callable, Iterator

from mptraining_api.kubernetes_api import JOBS, LEASES, SECRETS
from mptraining_operator.progress.auth import report_path
from mptraining_operator.runtime.cluster import Cluster
from mptraining_operator.runtime.values import Key
from mptraining_operator.settings import OperatorSettings

_TIMEOUT = 10.0

# Host, port and certificate (PEM) -> HTTP status. Raises CheckFailed.
Probe = Callable[[str, int, str], int]


class CheckFailed(Exception):
    """A part of the operator does not work."""


def run_checks(
    settings: OperatorSettings, namespace: str, cluster: Cluster, *, probe: Probe, wait: Callable[[float], object]
) -> Iterator[str]:
    """Yield one line for each part that works; `wait` sleeps for a number of seconds.

    Raises ApiProblem, InvalidCertificate or CheckFailed for the first part that does not.
    """
    for served in settings.namespaces or (None,):
        next(cluster.pages(JOBS, served))
        yield f"MPTrainingJobs in {f'namespace {served}' if served else 'all namespaces'} can be listed"
    yield _leader(settings, namespace, cluster, wait)
    if settings.progress.enabled:
        yield _progress(settings, namespace, cluster, probe)


def _leader(settings: OperatorSettings, namespace: str, cluster: Cluster, wait: Callable[[float], object]) -> str:
    lease = settings.lease
    before = cluster.get(LEASES, namespace, lease.name)
    # A live leader renews the Lease within this time.
    wait(lease.duration_seconds)
    after = cluster.get(LEASES, namespace, lease.name)
    holder = after.get("spec", {}).get("holderIdentity")
    if not holder:
        raise CheckFailed(f"no replica holds the Lease {namespace}/{lease.name}")
    if before.get("spec", {}).get("renewTime") == after.get("spec", {}).get("renewTime"):
        raise CheckFailed(f"{holder} has not renewed the Lease {namespace}/{lease.name} for {lease.duration_seconds} s")
    return f"{holder} leads and renews its Lease"


def _progress(settings: OperatorSettings, namespace: str, cluster: Cluster, probe: Probe) -> str:
    from mptraining_operator.progress.certificate import dns_names, read_certificate

    host, port = dns_names(settings.progress.service, namespace)[0], settings.progress.port
    secret = cluster.get(SECRETS, namespace, f"{settings.progress.service}-progress")
    status = probe(host, port, read_certificate(secret).cert_pem.decode())
    if status != http.HTTPStatus.UNAUTHORIZED:
        raise CheckFailed(f"https://{host}:{port} answers {status} to a caller without a token, and 401 is right")
    return f"https://{host}:{port} takes progress reports, and rejects reports without a token"


def probe_endpoint(host: str, port: int, certificate: str) -> int:
    """Return the HTTP status of a report without a token, over TLS that trusts only `certificate` (PEM)."""
    context = ssl.create_default_context(cadata=certificate)
    connection = http.client.HTTPSConnection(host, port, timeout=_TIMEOUT, context=context)
    try:
        connection.request("POST", report_path(Key("default", "self-check")), body=b"{}")
        return connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        raise CheckFailed(f"https://{host}:{port} cannot be reached through the Service: {error!r}") from error
    finally:
        connection.close()
