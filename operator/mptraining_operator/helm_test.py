"""Checks of an installed operator for `helm test`, run in a pod with the operator's service account.

Each check yields one line. The caller retries, because an operator takes some seconds to start.
"""

from __future__ import annotations

import http.client
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from mptraining_api.kubernetes_api import JOBS, LEASES, SECRETS, ApiProblem
from mptraining_operator.cluster import Cluster
from mptraining_operator.plan.snapshot import Key
from mptraining_operator.progress.auth import report_path
from mptraining_operator.settings import OperatorSettings

_TIMEOUT = 10.0


# Host, port and certificate (PEM) -> HTTP status. Raises OSError.
Probe = Callable[[str, int, str], int]


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one check; `text` has the result and, after a failure, the next step."""

    passed: bool
    text: str

    def __str__(self) -> str:
        return f"{'ok' if self.passed else 'FAILED'}: {self.text}"


def run_checks(
    settings: OperatorSettings,
    namespace: str,
    cluster: Cluster,
    *,
    probe: Probe,
    wait: Callable[[float], object],
) -> Iterator[CheckResult]:
    """Run the checks in order; `wait` sleeps for a number of seconds."""
    yield from (_jobs(cluster, each) for each in settings.namespaces or (None,))
    yield _leader(settings, namespace, cluster, wait)
    if settings.progress.enabled:
        yield _progress(settings, namespace, cluster, probe)


def _jobs(cluster: Cluster, namespace: str | None) -> CheckResult:
    where = f"in namespace {namespace}" if namespace else "in all namespaces"
    try:
        found, _ = next(cluster.pages(JOBS, namespace))
    except ApiProblem as problem:
        if problem.status == 404:
            return CheckResult(
                False, "the resource MPTrainingJob is not installed: set crds.install, or apply crd.yaml"
            )
        return CheckResult(False, f"MPTrainingJobs {where}: {problem.message}. Look at the chart's rbac values.")
    return CheckResult(True, f"MPTrainingJobs {where} can be listed: {len(found)} on the first page")


def _leader(
    settings: OperatorSettings, namespace: str, cluster: Cluster, wait: Callable[[float], object]
) -> CheckResult:
    lease = f"Lease {namespace}/{settings.lease.name}"
    logs = "Look at the logs of the operator's replicas."
    try:
        before = cluster.get(LEASES, namespace, settings.lease.name)
        # A live leader renews the Lease within this time.
        wait(settings.lease.duration_seconds)
        after = cluster.get(LEASES, namespace, settings.lease.name)
    except ApiProblem as problem:
        return CheckResult(False, f"{lease}: {problem.message}. {logs}")
    holder = after.get("spec", {}).get("holderIdentity")
    if not holder:
        return CheckResult(False, f"{lease}: no replica holds it. {logs}")
    if before.get("spec", {}).get("renewTime") == after.get("spec", {}).get("renewTime"):
        seconds = settings.lease.duration_seconds
        return CheckResult(False, f"{lease}: {holder} has not renewed it for {seconds} s. {logs}")
    return CheckResult(True, f"{holder} leads and renews its Lease")


def _progress(settings: OperatorSettings, namespace: str, cluster: Cluster, probe: Probe) -> CheckResult:
    from mptraining_operator.progress.certificate import InvalidCertificate, dns_names, read_certificate

    host, port = dns_names(settings.progress.service, namespace)[0], settings.progress.port
    url = f"https://{host}:{port}"
    try:
        secret = cluster.get(SECRETS, namespace, f"{settings.progress.service}-progress")
        status = probe(host, port, read_certificate(secret).cert_pem.decode())
    except (ApiProblem, InvalidCertificate) as problem:
        return CheckResult(False, f"the certificate of {url}: {problem}")
    except OSError as error:
        return CheckResult(False, f"{url}: {error}. Look at Service, NetworkPolicy and replicas.")
    if status != http.HTTPStatus.UNAUTHORIZED:
        return CheckResult(False, f"{url}: {status} to a caller without a token, and 401 is right")
    return CheckResult(True, f"{url} takes progress reports, and rejects reports without a token")


def probe_endpoint(host: str, port: int, certificate: str) -> int:
    """Return the HTTP status of a report without a token, over TLS that trusts only `certificate` (PEM)."""
    context = ssl.create_default_context(cadata=certificate)
    connection = http.client.HTTPSConnection(host, port, timeout=_TIMEOUT, context=context)
    try:
        connection.request("POST", report_path(Key("default", "self-check")), body=b"{}")
        return connection.getresponse().status
    except http.client.HTTPException as error:
        raise OSError(f"no answer of HTTP: {error!r}") from None
    finally:
        connection.close()
