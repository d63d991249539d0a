"""An emulator behind TLS: both clients trust its authority when the environment names it, and only then."""

from __future__ import annotations

import datetime
import http.server
import ipaddress
import json
import os
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from mptraining_api.problems import InvalidData
from mptraining_records.storage import storage

# A process reads certificates at its first request; so each client has a separate process.
ASK = """
from mptraining_records.storage import storage
print(storage.read_range("gs://bucket/object", 0, 4), storage.stat("gs://bucket/object").version)
"""


class _Object(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        about = {"name": "object", "size": "4", "generation": "7", "bucket": "bucket"}
        content = json.dumps(about).encode() if self.path.startswith("/storage/v1/") else b"data"
        self.send_response(200 if "Range" not in self.headers else 206)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Content-Range", "bytes 0-3/4")
        self.send_header("ETag", '"x"')
        self.send_header("x-goog-generation", "7")
        self.send_header("Last-Modified", "Mon, 01 Jan 2024 00:00:00 GMT")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A PEM file with a key and a self-signed certificate for 127.0.0.1."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "emulator")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path_factory.mktemp("tls") / "server.pem"
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.write_bytes(private + made.public_bytes(serialization.Encoding.PEM))
    return path


@pytest.fixture(scope="module")
def address(certificate: Path) -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Object)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield f"https://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    "names",
    [("SSL_CERT_FILE",), ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")],
    ids=["SSL_CERT_FILE alone", "REQUESTS_CA_BUNDLE too"],
)
def test_an_authority_of_the_environment_is_trusted(certificate: Path, address: str, names: tuple[str, ...]) -> None:
    inherited = {name: value for name, value in os.environ.items() if name != "REQUESTS_CA_BUNDLE"}
    environment = inherited | {"STORAGE_EMULATOR_HOST": address} | dict.fromkeys(names, str(certificate))
    done = subprocess.run([sys.executable, "-c", ASK], env=environment, capture_output=True, check=False, text=True)
    assert done.stdout == "b'data' 7\n", done.stderr


def test_another_authority_is_reported_at_once(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", address)
    with pytest.raises(InvalidData, match="certificate of the bucket's server is not trusted") as caught:
        storage.stat("gs://bucket/object")
    assert "\n" not in str(caught.value)
