"""The endpoint's certificate in its Secret: made, shared, renewed, mended, and served over real TLS."""

from __future__ import annotations

import base64
import logging
import socket
import ssl
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from mptraining_operator.progress import certificate
from mptraining_operator.progress.certificate import (
    Certificate,
    CertificateKeeper,
    InvalidCertificate,
    dns_names,
    ensure_certificate,
    from_secret,
    issue_certificate,
)
from mptraining_operator.progress.server import load_certificate

DAY = 86400.0
NOW = 1_800_000_000.0
NAMES = dns_names("mptraining-operator", "mptraining-system")


class Problem(Exception):
    """As cluster.ApiProblem."""

    def __init__(self, status: int) -> None:
        super().__init__(f"answer {status}")
        self.status = status


class Store:
    """One Secret, with the API server's preconditions."""

    def __init__(self) -> None:
        self.secret: dict[str, Any] | None = None
        self.version = 0
        self.writes = 0
        self.failure: Exception | None = None
        # Called before a write, as another replica that is faster.
        self.before_write: Callable[[], None] = lambda: None

    def read(self) -> dict[str, Any] | None:
        if self.failure is not None:
            raise self.failure
        return self.secret

    def create(self, body: dict[str, Any]) -> None:
        self._interfere()
        if self.secret is not None:
            raise Problem(409)
        self._put(body)

    def replace(self, body: dict[str, Any]) -> None:
        self._interfere()
        if self.secret is None:
            raise Problem(404)
        if body["metadata"].get("resourceVersion") != self.secret["metadata"]["resourceVersion"]:
            raise Problem(409)
        if body["type"] != self.secret["type"]:
            raise Problem(422)
        self._put(body)

    def ensure(self, now: float = NOW, names: tuple[str, ...] = NAMES) -> Certificate:
        return ensure_certificate(self.read, self.create, self.replace, now, name="progress", names=names)

    def _interfere(self) -> None:
        before, self.before_write = self.before_write, lambda: None
        before()

    def _put(self, body: dict[str, Any]) -> None:
        self.writes += 1
        self.version += 1
        self.secret = {**body, "metadata": {**body["metadata"], "resourceVersion": str(self.version)}}


def parsed(pem: bytes) -> x509.Certificate:
    return x509.load_pem_x509_certificate(pem)


def edited(store: Store, **data: str | None) -> None:
    assert store.secret is not None
    parts = dict(store.secret["data"])
    for name, value in data.items():
        key = name.replace("_", ".")
        if value is None:
            del parts[key]
        else:
            parts[key] = value
    store.secret = {**store.secret, "data": parts}


def test_what_is_issued_says_who_it_is_for_and_how_long() -> None:
    made = issue_certificate(NAMES, NOW)
    served, authority = parsed(made.cert_pem), parsed(made.ca_pem)
    names = served.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == [
        "mptraining-operator.mptraining-system.svc",
        "mptraining-operator.mptraining-system.svc.cluster.local",
        "mptraining-operator",
    ]
    served.verify_directly_issued_by(authority)
    assert served.not_valid_after_utc.timestamp() == NOW + 365 * DAY
    assert authority.not_valid_after_utc.timestamp() == NOW + 3650 * DAY
    assert authority.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert "BEGIN" not in repr(made)


@pytest.mark.parametrize(("days", "renewal"), [(-1, True), (0, False), (334, False), (336, True), (400, True)])
def test_renewal_begins_thirty_days_before_the_end(days: float, renewal: bool) -> None:
    assert certificate.needs_renewal(issue_certificate(NAMES, NOW).cert_pem, NOW + days * DAY) is renewal


def test_the_first_replica_makes_it_and_the_others_read_it() -> None:
    store = Store()
    first = store.ensure()
    assert store.ensure() == first
    assert store.writes == 1
    assert store.secret is not None
    assert store.secret["type"] == "kubernetes.io/tls"
    assert set(store.secret["data"]) == {"tls.crt", "tls.key", "ca.crt", "ca.key"}


def test_who_loses_the_race_to_create_takes_the_other_s() -> None:
    store, others = Store(), []
    store.before_write = lambda: others.append(store.ensure())
    assert [store.ensure()] == others
    assert store.writes == 1


def test_who_loses_the_race_to_renew_takes_the_other_s() -> None:
    store, others = Store(), []
    store.ensure()
    late = NOW + 340 * DAY
    store.before_write = lambda: others.append(store.ensure(late))
    assert [store.ensure(late)] == others
    assert store.writes == 2


def test_a_secret_deleted_in_between_is_made_again() -> None:
    store = Store()
    store.ensure()
    store.before_write = lambda: setattr(store, "secret", None)
    renewed = store.ensure(NOW + 340 * DAY)
    assert from_secret(store.secret or {}) == renewed


def test_an_answer_of_404_is_no_secret_too() -> None:
    store = Store()
    store.failure = Problem(404)
    made = ensure_certificate(store.read, store.create, store.replace, NOW, name="progress", names=NAMES)
    assert from_secret(store.secret or {}) == made


def test_an_endless_race_ends_with_an_error() -> None:
    def taken(body: dict[str, Any]) -> None:
        raise Problem(409)

    with pytest.raises(RuntimeError, match="5 times in a row"):
        ensure_certificate(lambda: None, taken, taken, NOW, name="progress", names=NAMES)


def test_other_errors_come_through() -> None:
    def forbidden(body: dict[str, Any]) -> None:
        raise Problem(403)

    with pytest.raises(Problem):
        ensure_certificate(lambda: None, forbidden, forbidden, NOW, name="progress", names=NAMES)


def test_a_renewal_keeps_the_authority() -> None:
    store = Store()
    first = store.ensure()
    second = store.ensure(NOW + 340 * DAY)
    assert second.cert_pem != first.cert_pem
    assert second.ca_pem == first.ca_pem
    parsed(second.cert_pem).verify_directly_issued_by(parsed(first.ca_pem))


def test_an_authority_near_its_end_is_renewed_by_the_same_key() -> None:
    first = issue_certificate(NAMES, NOW)
    late = NOW + 3400 * DAY
    second = issue_certificate(NAMES, late, authority=first)
    assert second.ca_pem != first.ca_pem
    assert second.ca_key_pem == first.ca_key_pem
    assert parsed(second.ca_pem).not_valid_after_utc > parsed(second.cert_pem).not_valid_after_utc
    # Who trusts the old one still believes.
    parsed(second.cert_pem).verify_directly_issued_by(parsed(first.ca_pem))


def test_another_name_of_the_service_makes_another_certificate_by_the_same_authority() -> None:
    store = Store()
    first = store.ensure()
    second = store.ensure(names=dns_names("renamed", "elsewhere"))
    assert second.ca_pem == first.ca_pem
    assert second.cert_pem != first.cert_pem


OTHER = {
    name: base64.b64encode(pem).decode()
    for name, pem in (("cert", issue_certificate(NAMES, NOW).cert_pem), ("bad", b"?"))
}


@pytest.mark.parametrize(
    ("edit", "why", "authority_kept"),
    [
        pytest.param({"tls_crt": None}, "tls.crt is missing", True, id="no certificate"),
        pytest.param({"tls_crt": "?"}, "tls.crt is not base64", True, id="not base64"),
        pytest.param({"tls_crt": OTHER["bad"]}, "tls.crt is no certificate", True, id="not PEM"),
        pytest.param({"tls_crt": OTHER["cert"]}, "tls.key is not the key of tls.crt", True, id="another's certificate"),
        pytest.param({"tls_key": OTHER["bad"]}, "tls.key is no private key", True, id="no key"),
        pytest.param({"ca_crt": OTHER["cert"]}, "ca.key is not the key of ca.crt", False, id="another's authority"),
        pytest.param({"ca_key": None}, "ca.key is missing", False, id="no key of the authority"),
    ],
)
def test_a_secret_edited_by_hand_is_mended_with_a_warning(
    edit: dict[str, str | None], why: str, authority_kept: bool, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store()
    first = store.ensure()
    edited(store, **edit)
    with caplog.at_level(logging.WARNING):
        second = store.ensure()
    assert why in caplog.text
    assert (second.ca_pem == first.ca_pem) is authority_kept
    assert from_secret(store.secret or {}) == second


def test_a_certificate_of_another_authority_is_broken() -> None:
    store = Store()
    store.ensure()
    stranger = issue_certificate(NAMES, NOW)
    edited(
        store,
        ca_crt=base64.b64encode(stranger.ca_pem).decode(),
        ca_key=base64.b64encode(stranger.ca_key_pem).decode(),
    )
    with pytest.raises(InvalidCertificate, match="not signed by"):
        from_secret(store.secret or {})


def test_an_empty_secret_of_another_type_is_filled() -> None:
    store = Store()
    store.secret = {"type": "Opaque", "metadata": {"name": "progress", "resourceVersion": "0"}}
    made = store.ensure()
    assert store.secret["type"] == "Opaque"
    assert from_secret(store.secret) == made


def test_the_keeper_follows_the_secret_and_survives_an_outage(caplog: pytest.LogCaptureFixture) -> None:
    store, clock = Store(), [NOW]

    def keeper() -> CertificateKeeper:
        return CertificateKeeper(
            store.read, store.create, store.replace, lambda: clock[0], name="progress", names=NAMES
        )

    one, two = keeper(), keeper()
    assert one.current == two.current
    assert not one.refresh()
    clock[0] += 340 * DAY
    assert one.refresh()
    assert two.current != one.current
    assert two.refresh()
    assert two.current == one.current

    store.failure = Problem(503)
    assert not one.refresh()
    assert one.current == two.current
    assert "could not be refreshed: answer 503" in caplog.text


def handshake(context: ssl.SSLContext, authority: bytes, name: str) -> x509.Certificate:
    """The certificate that a client which trusts `authority` is shown."""
    here, there = socket.socketpair()

    def serve() -> None:
        with here, context.wrap_socket(here, server_side=True) as wrapped:
            wrapped.recv(1)

    thread = threading.Thread(target=serve)
    thread.start()
    client = ssl.create_default_context(cadata=authority.decode())
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    with there, client.wrap_socket(there, server_hostname=name) as wrapped:
        shown = wrapped.getpeercert(binary_form=True)
        wrapped.send(b"x")
    thread.join(60)
    assert shown is not None
    return x509.load_der_x509_certificate(shown)


def test_a_client_believes_each_name_and_a_reload_needs_no_restart(tmp_path: Path) -> None:
    import time

    now = time.time()
    first = issue_certificate(NAMES, now)
    second = issue_certificate(NAMES, now, authority=first)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    load_certificate(context, first)
    for name in NAMES:
        assert handshake(context, first.ca_pem, name) == parsed(first.cert_pem)
    load_certificate(context, second)
    assert handshake(context, first.ca_pem, NAMES[0]) == parsed(second.cert_pem)
