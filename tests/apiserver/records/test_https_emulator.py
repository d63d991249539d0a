"""An emulator behind TLS: both clients trust its authority when the environment names it, and only then."""

from __future__ import annotations

import http.server
import json
import os
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from mptraining_api.problems import InvalidData
from mptraining_records.storage import storage
from tests.testbed.credentials import ServerKeys, create_server_keys

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
def keys(tmp_path_factory: pytest.TempPathFactory) -> ServerKeys:
    return create_server_keys(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def address(keys: ServerKeys) -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Object)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(keys.certificate, keys.key)
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
def test_an_authority_of_the_environment_is_trusted(keys: ServerKeys, address: str, names: tuple[str, ...]) -> None:
    inherited = {name: value for name, value in os.environ.items() if name != "REQUESTS_CA_BUNDLE"}
    environment = inherited | {"STORAGE_EMULATOR_HOST": address} | dict.fromkeys(names, str(keys.authority))
    done = subprocess.run([sys.executable, "-c", ASK], env=environment, capture_output=True, check=False, text=True)
    assert done.stdout == "b'data' 7\n", done.stderr


def test_another_authority_is_reported_at_once(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", address)
    with pytest.raises(InvalidData, match="certificate of the bucket's server is not trusted") as caught:
        storage.stat("gs://bucket/object")
    assert "\n" not in str(caught.value)
