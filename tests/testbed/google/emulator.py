"""An emulator of Google on one machine: `server` in front of an object server, and the environment that points the
processes of clients at it.

    with ObjectServer() as server, Google(server.address, realm, folder) as google:
        environment = google.environment()        # neither STORAGE_EMULATOR_HOST nor credentials in it
        google.accounts.write_text(…)            # whose pods ask the metadata server

`service_account_key` and `external_account` make the files that a platform engineer downloads.
"""

from __future__ import annotations

import json
import ssl
import threading
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.testbed.credentials import create_server_keys
from tests.testbed.google.identity import JWT, TOKEN_URL, KubernetesAccount, Realm
from tests.testbed.google.server import HOSTS, Port, State


class Google:
    """A context manager. Its keys are in `folder`; `authority` is the certificate to trust, `accounts` the file that
    maps addresses to the accounts of the pods that call the metadata server.
    """

    def __init__(self, objects: str, realm: Realm, folder: Path) -> None:
        keys = create_server_keys(folder, *HOSTS)
        self.authority = keys.authority
        self.accounts = folder / "accounts.json"
        self.accounts.write_text("{}", encoding="utf-8")
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(keys.certificate, keys.key)
        self._port = Port(("127.0.0.1", 0), State(realm, objects.removeprefix("http://"), self._who_asks, tls))

    def __enter__(self) -> Self:
        threading.Thread(target=self._port.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._port.shutdown()
        self._port.server_close()

    def _who_asks(self, address: str) -> KubernetesAccount | None:
        account = json.loads(self.accounts.read_text(encoding="utf-8")).get(address)
        return KubernetesAccount.model_validate(account) if account else None

    def environment(self) -> dict[str, str]:
        """Return the environment of a process that uses this emulator as Google."""
        here = f"127.0.0.1:{self._port.server_port}"
        proxy = dict.fromkeys(("HTTPS_PROXY", "https_proxy"), f"http://{here}")
        trusted = dict.fromkeys(("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"), str(self.authority))
        return {**proxy, **trusted, "NO_PROXY": "", "no_proxy": "", "GCE_METADATA_HOST": here, "GCE_METADATA_IP": here}


def service_account_key(account: str, project: str) -> tuple[dict[str, str], dict[str, str]]:
    """Return a key file as Google writes it, and the public half by its id, for `Realm.keys`."""
    key = rsa.generate_private_key(65537, 2048)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    name = f"{key.public_key().public_numbers().n & (2**64 - 1):016x}"
    file = {
        "type": "service_account",
        "project_id": project,
        "private_key_id": name,
        "private_key": private.decode(),
        "client_email": account,
        "client_id": "100000000000000000000",
        "token_uri": TOKEN_URL,
        "universe_domain": "googleapis.com",
    }
    return file, {name: public.decode()}


def external_account(audience: str, token_file: str, account: str | None) -> dict[str, Any]:
    """Return a credential configuration as `gcloud iam workload-identity-pools create-cred-config` writes it; with
    `account` the service account that is to be impersonated.
    """
    base = "https://iamcredentials.googleapis.com/v1/projects/-/serviceAccounts"
    acting = {"service_account_impersonation_url": f"{base}/{account}:generateAccessToken"} if account else {}
    return {
        "universe_domain": "googleapis.com",
        "type": "external_account",
        "audience": audience,
        "subject_token_type": JWT,
        "token_url": "https://sts.googleapis.com/v1/token",
        "credential_source": {"file": token_file, "format": {"type": "text"}},
        **acting,
    }
