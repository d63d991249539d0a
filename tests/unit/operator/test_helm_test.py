"""The report of `helm test`: each finding as a sentence; the endpoint is called over real TLS."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner

from mptraining_api.kubernetes_api import LEASES, SECRETS, Raw, Resource
from mptraining_operator.__main__ import app
from mptraining_operator.helm_test import CheckFailed, probe_endpoint, run_checks
from mptraining_operator.progress.auth import TokenReviewer
from mptraining_operator.progress.certificate import issue_certificate
from mptraining_operator.progress.server import ProgressServer
from mptraining_operator.settings import OperatorSettings

CERTIFICATE = issue_certificate(("localhost",), time.time())


class ApiServer:
    """Leases that are renewed at each read, unless `dead`."""

    def __init__(self, *, holder: str = "op-0", dead: bool = False) -> None:
        self.holder, self.dead = holder, dead
        self.looks = 0

    def get(self, resource: Resource, namespace: str | None, name: str) -> Raw:
        if resource == LEASES:
            self.looks += 1
            return {"spec": {"holderIdentity": self.holder, "renewTime": "" if self.dead else str(self.looks)}}
        assert resource == SECRETS
        parts = {"tls.crt": CERTIFICATE.cert_pem, "tls.key": CERTIFICATE.key_pem}
        return {"data": {key: base64.b64encode(value).decode() for key, value in parts.items()}}

    def pages(self, resource: Resource, namespace: str | None, **selectors: str) -> Iterator[tuple[list[bytes], int]]:
        yield [b"{}", b"{}"], 7


def findings(server: ApiServer, *, status: int = 401, **settings: Any) -> list[str]:
    def answer(host: str, port: int, certificate: str) -> int:
        assert (host, port) == ("mptraining-operator.ops.svc", 8443)
        assert certificate.encode() == CERTIFICATE.cert_pem
        return status

    chosen = OperatorSettings.parse(settings)
    return list(run_checks(chosen, "ops", server, probe=answer, wait=lambda seconds: None))


def test_an_operator_that_works() -> None:
    assert findings(ApiServer()) == [
        "MPTrainingJobs in all namespaces can be listed",
        "op-0 leads and renews its Lease",
        "https://mptraining-operator.ops.svc:8443 takes progress reports, and rejects reports without a token",
    ]
    assert len(findings(ApiServer(), namespaces=["a", "b"], progress={"enabled": False})) == 3


@pytest.mark.parametrize(
    ("server", "status", "words"),
    [
        (ApiServer(holder=""), 401, "no replica holds the Lease ops/mptraining-operator"),
        (ApiServer(dead=True), 401, "op-0 has not renewed the Lease ops/mptraining-operator for 10 s"),
        (ApiServer(), 404, "https://mptraining-operator.ops.svc:8443 answers 404 to a caller without a token"),
    ],
)
def test_what_does_not_work_is_named(server: ApiServer, status: int, words: str) -> None:
    with pytest.raises(CheckFailed, match=words):
        findings(server, status=status)


def test_the_endpoint_is_asked_over_tls_that_trusts_its_certificate_alone() -> None:
    reviewer = TokenReviewer(lambda token, audiences: {}, time.time, 60)
    server = ProgressServer(0, lambda key: None, reviewer, lambda *report: None, CERTIFICATE, host="127.0.0.1")
    server.start()
    try:
        assert probe_endpoint("localhost", server.port, CERTIFICATE.cert_pem.decode()) == 401
        with pytest.raises(CheckFailed, match="CERTIFICATE_VERIFY_FAILED"):
            probe_endpoint("localhost", server.port, issue_certificate(("localhost",), time.time()).cert_pem.decode())
    finally:
        server.stop()


def test_without_a_cluster_the_error_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    result = CliRunner().invoke(app, ["check"])
    assert result.exit_code == 2
    assert "kubeconfig" in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
