"""The endpoint's certificate in its Secret: created once, shared by all replicas, and served over real TLS."""

from __future__ import annotations

import base64
import socket
import ssl
import threading
import time
from typing import Any

import pytest
from cryptography import x509

from mptraining_api.kubernetes_api import SECRETS
from mptraining_operator.progress.certificate import (
    Certificate,
    InvalidCertificate,
    dns_names,
    ensure_certificate,
    issue_certificate,
    read_certificate,
    server_context,
)

NAMES = dns_names("mptraining-operator", "mptraining-system")
NOW = time.time()


def ensure(api: Any) -> Certificate:
    return ensure_certificate(api, "ops", "progress", lambda: issue_certificate(NAMES, NOW))


def test_the_certificate_is_valid_for_the_service_and_for_ten_years() -> None:
    made = issue_certificate(NAMES, 1_800_000_000.0)
    served = x509.load_pem_x509_certificate(made.cert_pem)
    names = served.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == [
        "mptraining-operator.mptraining-system.svc",
        "mptraining-operator.mptraining-system.svc.cluster.local",
        "mptraining-operator",
    ]
    assert served.not_valid_before_utc.timestamp() == 1_800_000_000.0 - 3600
    assert served.not_valid_after_utc.timestamp() == 1_800_000_000.0 + 3650 * 86400
    assert not served.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert "PRIVATE" not in repr(made)


def test_the_first_replica_creates_the_secret_and_the_others_read_it(api: Any) -> None:
    assert ensure(api) == ensure(api)
    secret = api.find(SECRETS, "ops", "progress")
    assert (secret["type"], secret["immutable"]) == ("kubernetes.io/tls", True)
    assert set(secret["data"]) == {"tls.crt", "tls.key"}


def test_a_replica_that_is_slower_reads_the_secret_of_the_other(api: Any) -> None:
    others: list[Certificate] = []

    def before(verb: str, plural: str, name: str) -> None:
        if verb == "create":
            api.before = lambda *call: None
            others.append(ensure(api))

    api.before = before
    assert [ensure(api)] == others


OTHER = base64.b64encode(issue_certificate(NAMES, NOW).cert_pem).decode()


@pytest.mark.parametrize("data", [{}, {"tls.crt": "?"}, {"tls.crt": "AAAA"}, {"tls.crt": OTHER}, {"tls.key": OTHER}])
def test_a_secret_without_a_certificate_and_its_key_is_an_error_with_the_next_step(
    api: Any, data: dict[str, str]
) -> None:
    ensure(api)
    secret = api.find(SECRETS, "ops", "progress")
    secret["data"] = {**secret["data"], **data} if data else {}
    with pytest.raises(
        InvalidCertificate,
        match=r"the Secret ops/progress has no self-signed certificate with its key \(.*\): delete it",
    ):
        read_certificate(secret)


@pytest.mark.parametrize("strict", [False, True])
def test_a_client_that_trusts_the_certificate_accepts_each_name_and_no_other_certificate(strict: bool) -> None:
    first, second = issue_certificate(NAMES, NOW), issue_certificate(NAMES, NOW)
    for name in NAMES:
        assert handshake(first, first, name, strict)
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(second, first, NAMES[0], strict)
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        handshake(first, first, "elsewhere", strict)


def handshake(served: Certificate, trusted: Certificate, name: str, strict: bool) -> bool:
    """Return whether a client that trusts only `trusted` reads a byte. Raises ssl.SSLError."""
    here, there = socket.socketpair()

    def serve() -> None:
        try:
            with here, server_context(served).wrap_socket(here, server_side=True) as wrapped:
                wrapped.send(b"x")
        except OSError:
            pass  # The client has rejected the certificate.

    thread = threading.Thread(target=serve)
    thread.start()
    client = ssl.create_default_context(cadata=trusted.cert_pem.decode())
    if strict:  # The default of Python 3.13.
        client.verify_flags |= ssl.VERIFY_X509_STRICT | ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        with there, client.wrap_socket(there, server_hostname=name) as wrapped:
            return wrapped.recv(1) == b"x"
    finally:
        there.close()
        thread.join(60)
