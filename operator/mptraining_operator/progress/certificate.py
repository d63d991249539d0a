"""Self-signed TLS certificate of the progress endpoint, in an immutable Secret that all replicas share.

Pods get the certificate at their start and trust nothing else as long as they run. It is valid for ten years and never
renewed; to replace it, delete the Secret and restart the replicas.
"""

from __future__ import annotations

import base64
import ssl
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from mptraining_api.kubernetes_api import SECRETS, ApiProblem
from mptraining_operator.runtime.cluster import Cluster

_CERT, _KEY = "tls.crt", "tls.key"
_LIFE = timedelta(days=3650)
# The certificate is valid from this long before its creation, because the clocks of nodes differ.
_SKEW = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Certificate:
    """Certificate and private key in PEM."""

    cert_pem: bytes
    key_pem: bytes = field(repr=False)


class InvalidCertificate(RuntimeError):
    """The Secret has no certificate that can be served; the message has the reason and the next step."""


def dns_names(service: str, namespace: str) -> tuple[str, ...]:
    """Return the DNS names of a Service inside the cluster; pods use the first."""
    return f"{service}.{namespace}.svc", f"{service}.{namespace}.svc.cluster.local", service


def issue_certificate(names: tuple[str, ...], now: float) -> Certificate:
    """Issue a certificate for ten years from `now`, in seconds since 1970."""
    at, key = datetime.fromtimestamp(now, UTC), ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[-1][:64])])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(at - _SKEW)
        .not_valid_after(at + _LIFE)
        # Pods trust it as it is; it signs no other certificate.
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name) for name in names]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    return Certificate(
        certificate.public_bytes(encoding), key.private_bytes(encoding, form, serialization.NoEncryption())
    )


def ensure_certificate(cluster: Cluster, namespace: str, name: str, issued: Callable[[], Certificate]) -> Certificate:
    """Return the certificate in the Secret `name`; create the Secret if there is none.

    Raises ApiProblem, InvalidCertificate.
    """
    get = partial(cluster.get, SECRETS, namespace, name)
    try:
        return read_certificate(get())
    except ApiProblem as problem:
        if problem.status != 404:
            raise
    made = issued()
    body = {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "kubernetes.io/tls",
        "metadata": {"name": name, "labels": {"app.kubernetes.io/managed-by": "mptraining-operator"}},
        # An edit by hand would separate the replicas from the pods that trust the certificate.
        "immutable": True,
        "data": {_CERT: base64.b64encode(made.cert_pem).decode(), _KEY: base64.b64encode(made.key_pem).decode()},
    }
    try:
        cluster.create(SECRETS, namespace, body)
    except ApiProblem as problem:
        # Another replica was faster.
        if problem.status != 409:
            raise
    return read_certificate(get())


def read_certificate(secret: Mapping[str, Any]) -> Certificate:
    """Return the certificate in a Secret from the API server. Raises InvalidCertificate."""
    data = secret.get("data") or {}
    try:
        pair = Certificate(base64.b64decode(data[_CERT]), base64.b64decode(data[_KEY]))
        server_context(pair)
        # Pods trust nothing but the certificate itself.
        certificate = x509.load_pem_x509_certificate(pair.cert_pem)
        certificate.verify_directly_issued_by(certificate)
    except (KeyError, ValueError, OSError, InvalidSignature) as error:
        name = "/".join(str(secret.get("metadata", {}).get(field)) for field in ("namespace", "name"))
        raise InvalidCertificate(
            f"the Secret {name} has no self-signed certificate with its key ({error}): "
            "delete it, and the operator creates another one"
        ) from None
    return pair


def server_context(certificate: Certificate) -> ssl.SSLContext:
    """Return a TLS context that serves the certificate. Raises ssl.SSLError, which is an OSError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # The ssl module loads certificates from files only; the file is readable by this user alone.
    with tempfile.NamedTemporaryFile(prefix="mptraining-", suffix=".pem") as chain:
        Path(chain.name).write_bytes(certificate.key_pem + certificate.cert_pem)
        context.load_cert_chain(chain.name)
    return context
