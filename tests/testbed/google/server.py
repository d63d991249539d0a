"""Google on one machine: sign-in, STS, IAM credentials, GKE's metadata server, and buckets that ask for their tokens.

    with ObjectServer() as server, Google(server.address, folder, keys=…, grants=…) as google:
        environment = google.environment()        # neither STORAGE_EMULATOR_HOST nor credentials in it
        google.pod.write_text(…)                  # whose pod asks the metadata server

Three ways to a token, each checked as the documented protocol requires:

    a service account's key      OAuth 2.0, grant type jwt-bearer: https://developers.google.com/identity/protocols/oauth2/service-account
    an external account          RFC 8693 token exchange, then generateAccessToken: https://cloud.google.com/iam/docs/reference/sts/rest
    workload identity on GKE     the metadata server: https://cloud.google.com/kubernetes-engine/docs/concepts/workload-identity

One port is the metadata server, and a proxy whose tunnels end at the hosts under googleapis.com.
"""

from __future__ import annotations

import dataclasses
import datetime
import http.client
import http.server
import json
import re
import secrets
import ssl
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self
from urllib.parse import parse_qs, unquote, urlsplit

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from google.auth import jwt
from google.auth.exceptions import GoogleAuthError

from tests.testbed.credentials import create_server_keys

TOKEN_URL = "https://oauth2.googleapis.com/token"
JWT_BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"
EXCHANGE = {
    "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
    "requested_token_type": "urn:ietf:params:oauth:token-type:access_token",
    "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
}
SECONDS = 3599
_SERVICES = ("storage", "www", "oauth2", "sts", "iamcredentials", "cloudresourcemanager")
_HOSTS = tuple(f"{name}.googleapis.com" for name in _SERVICES)
_SCOPES = "https://www.googleapis.com/auth/"
_WRITING = {_SCOPES + name for name in ("devstorage.read_write", "devstorage.full_control", "cloud-platform")}
_READING = {f"{_SCOPES}devstorage.read_only", *_WRITING}
_ROLES = {
    "roles/storage.objectViewer": {"get", "list"},
    "roles/storage.objectUser": {"get", "list", "create", "delete", "update"},
}
_VERBS = {"POST": "create", "PUT": "create", "PATCH": "update", "DELETE": "delete"}
_NO_TOKEN = "Permission 'iam.serviceAccounts.getAccessToken' denied on resource (or it may not exist)."
# These headers belong to one connection, not to the request.
_HOP = {"connection", "keep-alive", "transfer-encoding", "host", "content-length", "authorization", "expect"}

Keys = Mapping[str, str]


@dataclass(frozen=True)
class Provider:
    """An OpenID Connect provider of a workload identity pool; `keys` are its public keys (PEM) by their id."""

    pool: str
    issuer: str
    audience: str
    keys: Keys


@dataclass(frozen=True)
class KubernetesAccount:
    """The Kubernetes account of the pod that calls the metadata server; `annotation` names its Google one, or is ""."""

    namespace: str
    name: str
    annotation: str = ""

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))


@dataclass
class Realm:
    """Accounts and grants. `keys` are the keys of service accounts, `users` who may act as a service account
    (roles/iam.workloadIdentityUser), `grants` the role that each principal has on a bucket.
    """

    provider: Provider
    keys: Mapping[str, Keys]
    users: Mapping[str, tuple[str, ...]]
    grants: Mapping[str, Mapping[str, str]]
    project: str = "our-project"
    number: int = 123456789
    tokens: dict[str, tuple[str, frozenset[str]]] = field(default_factory=dict)

    def issue(self, principal: str, scopes: str) -> dict[str, Any]:
        token = f"ya29.{secrets.token_urlsafe()}"
        self.tokens[token] = principal, frozenset(scopes.split())
        return {"access_token": token, "expires_in": SECONDS, "token_type": "Bearer"}


class Answer(NamedTuple):
    """An HTTP answer; `body` is JSON unless `kind` says otherwise."""

    status: int
    body: str
    kind: str = "application/json"


class _Refused(Exception):
    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        super().__init__(answer.body)


class Google:
    """A context manager. `pod` is the file with the account of the pod that asks the metadata server; {} for none."""

    def __init__(self, objects: str, realm: Realm, folder: Path) -> None:
        keys = create_server_keys(folder, *_HOSTS)
        self._authority = keys.authority
        self.pod = folder / "pod.json"
        self.realm = realm
        self.objects = objects.removeprefix("http://")
        self.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.tls.load_cert_chain(keys.certificate, keys.key)
        self._http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"google": self}))

    def __enter__(self) -> Self:
        threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.shutdown()
        self._http.server_close()

    def environment(self) -> dict[str, str]:
        """Return the environment of a process that uses this emulator as Google."""
        here = f"127.0.0.1:{self._http.server_port}"
        proxy = dict.fromkeys(("HTTPS_PROXY", "https_proxy"), f"http://{here}")
        trusted = dict.fromkeys(("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"), str(self._authority))
        return {**proxy, **trusted, "NO_PROXY": "", "no_proxy": "", "GCE_METADATA_HOST": here, "GCE_METADATA_IP": here}


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    google: Google
    secure = False

    def finish(self) -> None:
        super().finish()
        # The tunnel's, which the server does not know.
        self.connection.close()

    def do_CONNECT(self) -> None:
        if self.path.partition(":")[0] not in _HOSTS:
            self.send_error(403)
            return
        self.send_response_only(200)
        self.end_headers()
        self.connection = self.google.tls.wrap_socket(self.connection, server_side=True)
        self.secure = True
        self.rfile = self.connection.makefile("rb", self.rbufsize)
        self.wfile = self.connection.makefile("wb", 0)
        # Python's own client requests a tunnel in HTTP/1.0, which would end the connection here.
        self.close_connection = False

    def _do(self) -> None:
        content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        try:
            answer = self._answer(content)
        except _Refused as refused:
            answer = refused.answer
        if answer is not None:
            self._send(answer.status, {"Content-Type": answer.kind, "Metadata-Flavor": "Google"}, answer.body.encode())

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _do

    def log_message(self, pattern: str, *arguments: object) -> None:
        """Log refusals only: they help to debug a failed test."""
        if not str(arguments[1]).startswith("2"):
            super().log_message(pattern, *arguments)

    def _answer(self, content: bytes) -> Answer | None:
        """Return the answer; None when the object server's has been passed on."""
        if not self.secure:
            return self._metadata()
        host, url = self.headers.get("Host", "").partition(":")[0], urlsplit(self.path)
        form = {name: values[0] for name, values in parse_qs(content.decode(errors="replace")).items()}
        account, _, verb = unquote(url.path).removeprefix("/v1/projects/-/serviceAccounts/").partition(":")
        if host in ("storage.googleapis.com", "www.googleapis.com"):
            self._check_access()
            self._forward(content)
            return None
        if (host, url.path) == ("oauth2.googleapis.com", "/token"):
            return self._token(form)
        if (host, url.path) == ("sts.googleapis.com", "/v1/token"):
            return self._exchange(form)
        if (host, verb) == ("iamcredentials.googleapis.com", "generateAccessToken"):
            return self._impersonate(account, json.loads(content))
        return Answer(404, "{}")

    def _token(self, form: Mapping[str, str]) -> Answer:
        """oauth2.googleapis.com/token: an assertion signed with a service account's key becomes a token."""
        if form.get("grant_type") != JWT_BEARER:
            raise _oauth_error("unsupported_grant_type", f"Invalid grant_type: {form.get('grant_type')}")
        claims = jwt.decode(form["assertion"], verify=False)
        keys = self.google.realm.keys.get(claims["iss"])
        if keys is None:
            raise _oauth_error("invalid_grant", "Invalid grant: account not found")
        try:
            jwt.decode(form["assertion"], certs=keys, audience=TOKEN_URL)
        except GoogleAuthError:
            raise _oauth_error("invalid_grant", "Invalid JWT Signature.") from None
        return _json(self.google.realm.issue(claims["iss"], claims.get("scope", "")))

    def _exchange(self, form: Mapping[str, str]) -> Answer:
        """sts.googleapis.com/v1/token: the token of a provider that the pool trusts becomes one of Google's."""
        provider, token = self.google.realm.provider, form["subject_token"]
        for name, expected in {**EXCHANGE, "audience": f"//{provider.pool}"}.items():
            if form.get(name) != expected:
                raise _oauth_error("invalid_request", f"Invalid {name} {form.get(name)}.")
        claims = jwt.decode(token, verify=False)
        if claims["iss"] != provider.issuer:
            raise _oauth_error("invalid_grant", f"The issuer in ID Token {claims['iss']} does not match the expected.")
        if provider.audience not in claims["aud"]:
            audiences = ", ".join(claims["aud"])
            raise _oauth_error(
                "invalid_grant", f"The audience in ID Token [{audiences}] does not match the expected audience."
            )
        try:
            jwt.decode(token, certs=provider.keys)
        except GoogleAuthError:
            raise _oauth_error("invalid_grant", "Invalid ID Token signature.") from None
        pool = provider.pool.partition("/providers/")[0]
        issued = self.google.realm.issue(f"principal://{pool}/subject/{claims['sub']}", form.get("scope", ""))
        return _json({**issued, "issued_token_type": EXCHANGE["requested_token_type"]})

    def _impersonate(self, account: str, body: Mapping[str, Any]) -> Answer:
        """iamcredentials.googleapis.com …:generateAccessToken: a principal that may act as `account` gets its token."""
        principal, _ = self._holder()
        if principal not in self.google.realm.users.get(account, ()):
            return _json({"error": {"code": 403, "message": _NO_TOKEN, "status": "PERMISSION_DENIED"}}, 403)
        until = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=SECONDS)
        token = self.google.realm.issue(account, " ".join(body.get("scope", ())))["access_token"]
        return _json({"accessToken": token, "expireTime": f"{until:%Y-%m-%dT%H:%M:%SZ}"})

    def _metadata(self) -> Answer:
        """The GKE metadata server: a token of the Google account that the annotation names, for those who may act as
        it; without the annotation the Kubernetes account's own principal.
        """
        if self.headers.get("Metadata-Flavor") != "Google":
            return Answer(403, "Missing required header: Metadata-Flavor", "text/plain")
        realm, url = self.google.realm, urlsplit(self.path)
        asking = KubernetesAccount(**json.loads(self.google.pod.read_text()))
        pool = f"{realm.project}.svc.id.goog"
        name = asking.annotation or pool
        path = url.path.lstrip("/")
        texts = {
            "": "computeMetadata/",
            "computeMetadata/v1/project/project-id": realm.project,
            "computeMetadata/v1/project/numeric-project-id": str(realm.number),
            "computeMetadata/v1/universe/universe-domain": "googleapis.com",
        }
        if path in texts:
            return Answer(200, texts[path], "application/text")
        match = re.fullmatch(r"computeMetadata/v1/instance/service-accounts/([^/]+)/(email|token)?", path)
        if not match or match[1] not in ("default", name):
            return Answer(404, "Not found", "text/plain")
        if match[2] == "email":
            return Answer(200, name, "application/text")
        if not match[2]:
            return _json({"aliases": ["default"], "email": name, "scopes": [f"{_SCOPES}cloud-platform"]})
        member = f"serviceAccount:{pool}[{asking.namespace}/{asking.name}]"
        if asking.annotation and member not in realm.users.get(asking.annotation, ()):
            return Answer(
                403,
                f"Unable to generate access token; IAM returned 403 Forbidden: {_NO_TOKEN}\n"
                "This error could be caused by a missing IAM policy binding on the target IAM service account.\n",
                "text/plain",
            )
        direct = (
            f"principal://iam.googleapis.com/projects/{realm.number}/locations/global/workloadIdentityPools/{pool}"
            f"/subject/ns/{asking.namespace}/sa/{asking.name}"
        )
        scopes = parse_qs(url.query).get("scopes", [f"{_SCOPES}cloud-platform"])[0].replace(",", " ")
        return _json(realm.issue(asking.annotation or direct, scopes))

    # -- buckets ----------------------------------------------------------------------------------------------------

    def _holder(self) -> tuple[str, frozenset[str]]:
        """Return principal and scopes of the request's token, or nobody."""
        token = self.headers.get("Authorization", "").removeprefix("Bearer").strip()
        return self.google.realm.tokens.get(token, ("", frozenset()))

    def _check_access(self) -> None:
        """Raise _Refused when the bucket refuses the request."""
        path = urlsplit(self.path).path
        match = re.match(r"/(?:(?:upload|download)/)?storage/v1/b/([^/]+)(?:/o(?:/(.+))?)?$", path)
        bucket, key = (match[1], match[2]) if match else path.lstrip("/").partition("/")[::2]
        verb = _VERBS.get(self.command) or ("get" if key else "list")
        principal, scopes = self._holder()
        role = self.google.realm.grants.get(unquote(bucket), {}).get(principal, "")
        status, message = 403, "Request had insufficient authentication scopes."
        if not principal:
            status, message = 401, "Invalid Credentials"
        elif scopes & (_READING if verb in ("get", "list") else _WRITING):
            if verb in _ROLES.get(role, ()):
                return
            message = (
                f"{principal} does not have storage.objects.{verb} access to the Google Cloud Storage "
                f"{'object' if key else 'bucket'}. Permission 'storage.objects.{verb}' denied on resource "
                "(or it may not exist)."
            )
        if not match:
            code = "AuthenticationRequired" if status == 401 else "AccessDenied"
            text = f"<Error><Code>{code}</Code><Message>Access denied.</Message><Details>{message}</Details></Error>"
            body = f"<?xml version='1.0' encoding='UTF-8'?>{text}"
            raise _Refused(Answer(status, body, "application/xml; charset=UTF-8"))
        reason = {"message": message, "domain": "global", "reason": "required" if status == 401 else "forbidden"}
        raise _Refused(_json({"error": {"code": status, "message": message, "errors": [reason]}}, status))

    def _forward(self, content: bytes) -> None:
        headers = {name: value for name, value in self.headers.items() if name.lower() not in _HOP}
        upstream = http.client.HTTPConnection(self.google.objects, timeout=60)
        upstream.request(self.command, self.path, body=content or None, headers=headers)
        answer = upstream.getresponse()
        passed_on = {name: value for name, value in answer.getheaders() if name.lower() not in _HOP}
        self._send(answer.status, passed_on, answer.read())
        upstream.close()

    def _send(self, status: int, headers: Mapping[str, str], content: bytes) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if status not in (204, 304):
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def _json(content: Mapping[str, Any], status: int = 200) -> Answer:
    return Answer(status, json.dumps(content))


def _oauth_error(error: str, description: str) -> _Refused:
    """RFC 6749, 5.2."""
    return _Refused(_json({"error": error, "error_description": description}, 400))


def new_key() -> tuple[str, str]:
    """Return a private and its public key, as PEM."""
    key = rsa.generate_private_key(65537, 2048)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    return private.decode(), public.decode()


def service_account_key(
    account: str, *, project: str = "our-project", token_url: str = TOKEN_URL
) -> tuple[dict[str, str], Keys]:
    """Return a key file as Google writes it, and the public half by its id, for `Realm.keys`."""
    private, public = new_key()
    name = secrets.token_hex(8)
    file = {
        "type": "service_account",
        "project_id": project,
        "private_key_id": name,
        "private_key": private,
        "client_email": account,
        "client_id": "100000000000000000000",
        "token_uri": token_url,
        "universe_domain": "googleapis.com",
    }
    return file, {name: public}


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
        "subject_token_type": EXCHANGE["subject_token_type"],
        "token_url": "https://sts.googleapis.com/v1/token",
        "credential_source": {"file": token_file, "format": {"type": "text"}},
        **acting,
    }
