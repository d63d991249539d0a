"""An emulator behind TLS: both clients trust its authority when the environment names it, and only then."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from mptraining_api.problems import InvalidData
from mptraining_storage import storage
from tests.testbed.credentials import ServerKeys, create_server_keys
from tests.testbed.http_stub import Handler, HttpStub

# A process reads certificates at its first request; so each client has a separate process.
ASK = """
from mptraining_storage import storage
print(storage.read_range("gs://bucket/object", 0, 4), storage.stat("gs://bucket/object").version)
"""


def _respond(_number: int, handler: Handler) -> None:
    about = {"name": "object", "size": "4", "generation": "7", "bucket": "bucket"}
    content = json.dumps(about).encode() if handler.path.startswith("/storage/v1/") else b"data"
    headers = {"Content-Type": "application/json", "Content-Range": "bytes 0-3/4", "x-goog-generation": "7"}
    handler.answer(206 if "Range" in handler.headers else 200, content, headers)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> ServerKeys:
    return create_server_keys(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def address(keys: ServerKeys) -> Iterator[str]:
    with HttpStub(_respond, keys.certificate, keys.key) as server:
        yield server.address


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
