"""TLS certificate of the progress endpoint, signed by its own certificate authority (CA), both stored in a Secret.

All replicas serve the same certificate. Pods get the CA certificate at their start and trust it as long as they run,
so every renewal uses the same CA key, which the Secret contains; the CA certificate is valid for ten years.
"""

from __future__ import annotations

import base64
import binascii
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_log = logging.getLogger(__name__)

# Keys in the Secret: those of the type kubernetes.io/tls, ca.crt, and the CA's private key.
_CERT, _KEY, _CA, _CA_KEY = "tls.crt", "tls.key", "ca.crt", "ca.key"
SECRET_TYPE = "kubernetes.io/tls"  # noqa: S105 - the name of a type

_CA_LIFE = timedelta(days=3650)
_LIFE = timedelta(days=365)
_RENEWED_BEFORE = timedelta(days=30)
# Certificates are valid from this long before their creation, because the clocks of nodes differ.
_SKEW = timedelta(hours=1)
_AUTHORITY = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "mptraining progress")])
# Tries to write the Secret: after a conflict, the Secret that another replica wrote is read.
_TRIES = 5


@dataclass(frozen=True, slots=True)
class Certificate:
    """Certificates and keys in PEM. Clients trust `ca_pem`; `ca_key_pem` signs the next renewal."""

    ca_pem: bytes
    cert_pem: bytes
    key_pem: bytes
    ca_key_pem: bytes

    def __repr__(self) -> str:
        return "Certificate(…)"


class InvalidCertificate(ValueError):
    """The Secret's contents cannot be served; the message has the reason."""


def dns_names(service: str, namespace: str) -> tuple[str, ...]:
    """Return the DNS names of a Service inside the cluster; pods use the first."""
    return f"{service}.{namespace}.svc", f"{service}.{namespace}.svc.cluster.local", service


def issue_certificate(names: tuple[str, ...], now: float, *, authority: Certificate | None = None) -> Certificate:
    """Issue a certificate for a year, signed by the key of `authority` or by a new CA. `now` is in seconds since 1970.

    A CA certificate that would expire before the issued one is renewed with the same key, so that clients that trust
    the old CA certificate accept the new one.
    """
    at = datetime.fromtimestamp(now, UTC)
    if authority is None:
        ca_key = ec.generate_private_key(ec.SECP256R1())
        ca = _self_signed(ca_key, at)
    else:
        ca_key = _private_key(authority.ca_key_pem, _CA_KEY)
        ca = _parsed(authority.ca_pem, _CA)
        if ca.not_valid_after_utc < at + _LIFE:
            ca = _self_signed(ca_key, at)
    key = ec.generate_private_key(ec.SECP256R1())
    identifier = x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key())
    certificate = (
        _builder(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[-1][:64])]), key.public_key(), at, _LIFE)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(authority=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name) for name in names]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    return Certificate(_pem(ca), _pem(certificate), _key_pem(key), _key_pem(ca_key))


def needs_renewal(pem: bytes, now: float) -> bool:
    """Return whether the certificate expires within 30 days of `now` or is not valid yet. Raises Broken."""
    certificate = _parsed(pem, _CERT)
    at = datetime.fromtimestamp(now, UTC)
    return at > certificate.not_valid_after_utc - _RENEWED_BEFORE or at < certificate.not_valid_before_utc


def from_secret(secret: Mapping[str, Any]) -> Certificate:
    """Parse a Secret from the API server. Raises Broken if a part is missing, malformed or does not match another."""
    data = secret.get("data") or {}

    def part(name: str) -> bytes:
        try:
            return base64.b64decode(data[name], validate=True)
        except KeyError:
            raise InvalidCertificate(f"{name} is missing") from None
        except (binascii.Error, TypeError, ValueError):
            raise InvalidCertificate(f"{name} is not base64") from None

    found = Certificate(part(_CA), part(_CERT), part(_KEY), part(_CA_KEY))
    ca, certificate = _parsed(found.ca_pem, _CA), _parsed(found.cert_pem, _CERT)
    if _private_key(found.ca_key_pem, _CA_KEY).public_key() != ca.public_key():
        raise InvalidCertificate(f"{_CA_KEY} is not the key of {_CA}")
    if _private_key(found.key_pem, _KEY).public_key() != certificate.public_key():
        raise InvalidCertificate(f"{_KEY} is not the key of {_CERT}")
    try:
        certificate.verify_directly_issued_by(ca)
    except (InvalidSignature, ValueError, TypeError):
        raise InvalidCertificate(f"{_CERT} was not signed by {_CA}") from None
    return found


def to_secret(certificate: Certificate, name: str, found: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the Secret's body; with `found`, a replacement that has its resourceVersion as precondition."""
    parts = {_CA: certificate.ca_pem, _CERT: certificate.cert_pem, _KEY: certificate.key_pem}
    parts[_CA_KEY] = certificate.ca_key_pem
    metadata: dict[str, Any] = {"name": name, "labels": {"app.kubernetes.io/managed-by": "mptraining-operator"}}
    # The type of a Secret is immutable: a replacement keeps the type of `found`.
    kind = SECRET_TYPE
    if found is not None:
        metadata = dict(found.get("metadata") or {}) | {"name": name}
        metadata.pop("managedFields", None)
        kind = found.get("type") or SECRET_TYPE
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": kind,
        "metadata": metadata,
        "data": {key: base64.b64encode(value).decode() for key, value in parts.items()},
    }


def ensure_certificate(
    read: Callable[[], dict[str, Any] | None],
    create: Callable[[dict[str, Any]], object],
    replace: Callable[[dict[str, Any]], object],
    now: float,
    *,
    name: str,
    names: tuple[str, ...],
) -> Certificate:
    """Return the certificate in the Secret `name`, valid for the DNS `names`; create, renew or replace it if needed.

    `read` returns None or raises an error with `status` 404 if there is no Secret. `create` and `replace` raise an
    error with `status` 409 if another replica wrote the Secret, which is then read. Other errors are raised.
    """
    for _ in range(_TRIES):
        found = _read(read)
        authority = None
        if found is not None:
            try:
                certificate = from_secret(found)
                if not needs_renewal(certificate.cert_pem, now) and _names(certificate.cert_pem) >= set(names):
                    return certificate
                authority = certificate
            except InvalidCertificate as problem:
                authority = _read_authority(found)
                kept = "the authority is kept" if authority else "pods that run now can no longer report progress"
                _log.warning("the Secret %s cannot be served (%s) and is replaced; %s", name, problem, kept)
        certificate = issue_certificate(names, now, authority=authority)
        try:
            if found is None:
                create(to_secret(certificate, name))
            else:
                replace(to_secret(certificate, name, found))
        except Exception as error:
            # 404: the Secret was deleted after it was read.
            if getattr(error, "status", None) not in (404, 409):
                raise
            continue
        return certificate
    raise RuntimeError(
        f"the Secret {name} was changed by another client {_TRIES} times in a row; check which client writes it"
    )


class CertificateKeeper:
    """The certificate to serve, from the Secret `name`; the constructor creates it if needed (`ensure_certificate`)."""

    def __init__(
        self,
        read: Callable[[], dict[str, Any] | None],
        create: Callable[[dict[str, Any]], object],
        replace: Callable[[dict[str, Any]], object],
        clock: Callable[[], float],
        *,
        name: str,
        names: tuple[str, ...],
    ) -> None:
        self._ensure = partial(ensure_certificate, read, create, replace, name=name, names=names)
        self._clock = clock
        self.current: Certificate = self._ensure(clock())

    def refresh(self) -> bool:
        """Update `current` from the Secret and return whether it changed; on any error log a warning and keep it."""
        try:
            found = self._ensure(self._clock())
        except Exception as error:  # noqa: BLE001 - the endpoint keeps its certificate
            _log.warning("the progress endpoint's certificate could not be refreshed: %s", error)
            return False
        changed = found != self.current
        self.current = found
        return changed


def _read(read: Callable[[], dict[str, Any] | None]) -> dict[str, Any] | None:
    try:
        return read()
    except Exception as error:
        if getattr(error, "status", None) != 404:
            raise
        return None


def _read_authority(secret: Mapping[str, Any]) -> Certificate | None:
    """Return the CA of a Secret whose other parts are broken, so that running pods can still report; else None."""
    data = secret.get("data") or {}
    try:
        ca_pem, ca_key_pem = (base64.b64decode(data[name], validate=True) for name in (_CA, _CA_KEY))
        fits = _private_key(ca_key_pem, _CA_KEY).public_key() == _parsed(ca_pem, _CA).public_key()
    except (KeyError, TypeError, ValueError):
        return None
    return Certificate(ca_pem, b"", b"", ca_key_pem) if fits else None


def _builder(
    subject: x509.Name, key: ec.EllipticCurvePublicKey, at: datetime, life: timedelta
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(_AUTHORITY)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(at - _SKEW)
        .not_valid_after(at + life)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _self_signed(key: ec.EllipticCurvePrivateKey, at: datetime) -> x509.Certificate:
    return (
        _builder(_AUTHORITY, key.public_key(), at, _CA_LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(authority=True), critical=True)
        .sign(key, hashes.SHA256())
    )


def _usage(*, authority: bool) -> x509.KeyUsage:
    """Return the key usage: certificate and CRL signing for a CA, digital signature for a server."""
    return x509.KeyUsage(not authority, False, False, False, False, authority, authority, False, False)


def _names(pem: bytes) -> set[str]:
    for extension in _parsed(pem, _CERT).extensions:
        if isinstance(extension.value, x509.SubjectAlternativeName):
            return set(extension.value.get_values_for_type(x509.DNSName))
    return set()


def _parsed(pem: bytes, what: str) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(pem)
    except ValueError:
        raise InvalidCertificate(f"{what} is no certificate in PEM") from None


def _private_key(pem: bytes, what: str) -> ec.EllipticCurvePrivateKey:
    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise InvalidCertificate(f"{what} is no private key in PEM") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise InvalidCertificate(f"{what} is no elliptic curve key")
    return key


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
