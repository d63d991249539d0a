"""The credentials of a control plane: a certificate authority, keys, static tokens, kubeconfigs."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

# These are only used on this machine's loopback; fixed tokens make logs readable.
ADMIN_TOKEN = "testbed-admin"
_VALID = datetime.timedelta(days=2)


@dataclass(frozen=True)
class ServerKeys:
    """The files of one server in one folder; `certificate` is the server's, signed by `authority`."""

    authority: Path
    certificate: Path
    key: Path


def create_server_keys(folder: Path, *names: str) -> ServerKeys:
    """Write the key and certificate of a server at 127.0.0.1, valid for the hosts `names` too."""
    folder.mkdir(parents=True, exist_ok=True)
    keys = ServerKeys(folder / "ca.crt", folder / "server.crt", folder / "server.key")
    authority_key, server_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    authority = _certificate("testbed", authority_key, None)
    keys.authority.write_bytes(authority.public_bytes(serialization.Encoding.PEM))
    server = _certificate("server", server_key, (authority, authority_key), names)
    keys.certificate.write_bytes(server.public_bytes(serialization.Encoding.PEM))
    _write_key(keys.key, server_key)
    return keys


def create_service_account_key(path: Path) -> Path:
    """Write the key with which an API server signs the tokens of service accounts."""
    _write_key(path, ec.generate_private_key(ec.SECP256R1()))
    return path


def write_tokens(path: Path, components: dict[str, tuple[str, str]]) -> Path:
    """Write the static tokens: the administrator's, and those of `components` with their user and group."""
    rows = {ADMIN_TOKEN: ("admin", "system:masters"), **components}
    lines = (f'{token},{user},{user},"{group}"\n' for token, (user, group) in rows.items())
    path.write_text("".join(lines), encoding="utf-8")
    return path


def _certificate(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    issuer: tuple[x509.Certificate, ec.EllipticCurvePrivateKey] | None,
    hosts: Iterable[str] = (),
) -> x509.Certificate:
    """Return a certificate for 127.0.0.1 and `hosts` signed by `issuer`; without an issuer, a self-signed authority."""
    now = datetime.datetime.now(datetime.UTC)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    names = [
        x509.DNSName("localhost"),
        *map(x509.DNSName, hosts),
        x509.IPAddress(ipaddress.IPv4Address("127.0.0.1")),
    ]
    signer = issuer[1] if issuer else key
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer[0].subject if issuer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + _VALID)
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        # Python 3.13 and later refuse a chain without it.
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
    )
    if issuer:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    else:
        usage = dict.fromkeys(
            ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement"), False
        ) | {"encipher_only": False, "decipher_only": False}
        builder = builder.add_extension(
            x509.KeyUsage(digital_signature=True, key_cert_sign=True, crl_sign=True, **usage), critical=True
        )
    return builder.sign(signer, hashes.SHA256())


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    path.touch(mode=0o600)
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.TraditionalOpenSSL,
            serialization.NoEncryption(),
        )
    )


def write_kubeconfig(path: Path, *, server: str, token: str, authority: Path, namespace: str = "default") -> Path:
    """Write a kubeconfig with one context."""
    cluster = {"server": server, "certificate-authority": str(authority)}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "testbed",
        "clusters": [{"name": "testbed", "cluster": cluster}],
        "users": [{"name": "testbed", "user": {"token": token}}],
        "contexts": [{"name": "testbed", "context": {"cluster": "testbed", "user": "testbed", "namespace": namespace}}],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600)
    path.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    return path
