"""Google's responses to authentication, and a bucket's to authenticated requests. Pure: no sockets, no clock.

Three ways to a token, each checked as the documented protocol requires:

    a service account's key      OAuth 2.0, grant type jwt-bearer: https://developers.google.com/identity/protocols/oauth2/service-account
    an external account          RFC 8693 token exchange, then generateAccessToken: https://cloud.google.com/iam/docs/reference/sts/rest
    workload identity on GKE     the metadata server: https://cloud.google.com/kubernetes-engine/docs/concepts/workload-identity

A token carries its holder, sealed with the realm's secret, so that several processes of one realm know it.
"""

from __future__ import annotations

import base64
import datetime
import hashlib
import hmac
import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from pydantic import BaseModel, ConfigDict

TOKEN_URL = "https://oauth2.googleapis.com/token"
JWT_BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"
EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"
JWT = "urn:ietf:params:oauth:token-type:jwt"
ACCESS_TOKEN = "urn:ietf:params:oauth:token-type:access_token"
ANNOTATION = "iam.gke.io/gcp-service-account"
SECONDS = 3599

_SCOPES = "https://www.googleapis.com/auth/"
_READING = tuple(
    _SCOPES + name
    for name in ("devstorage.read_only", "devstorage.read_write", "devstorage.full_control", "cloud-platform")
)
_ROLES = {
    "roles/storage.objectViewer": {"get", "list"},
    "roles/storage.objectUser": {"get", "list", "create", "delete", "update"},
}


class Answer(NamedTuple):
    """An HTTP answer; `body` is JSON unless `kind` says otherwise."""

    status: int
    body: str
    kind: str = "application/json"


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Provider(_Frozen):
    """An OpenID Connect provider of a workload identity pool; `keys` is its JSON Web Key Set."""

    issuer: str
    audience: str
    keys: tuple[dict[str, Any], ...]


class Holder(_Frozen):
    """The holder of a token: an address of a service account, or a `principal://`."""

    principal: str
    scopes: tuple[str, ...] = ()
    until: float


class KubernetesAccount(_Frozen):
    """The Kubernetes account of the pod that calls the metadata server."""

    namespace: str
    name: str
    annotations: dict[str, str] = {}


class Realm(_Frozen):
    """Accounts and grants. `keys` are the public keys (PEM) of service accounts by their key's id, `users` who may act
    as a service account (roles/iam.workloadIdentityUser), `grants` the role that each principal has on a bucket.
    """

    secret: str
    project: str = "our-project"
    number: int = 123456789
    keys: dict[str, dict[str, str]] = {}
    providers: dict[str, Provider] = {}
    users: dict[str, tuple[str, ...]] = {}
    grants: dict[str, dict[str, str]] = {}

    @property
    def pool(self) -> str:
        """Return the workload identity pool of a GKE cluster."""
        return f"{self.project}.svc.id.goog"

    # -- tokens -----------------------------------------------------------------------------------------------------

    def seal(self, holder: Holder) -> str:
        """Return a signed token that contains its holder."""
        body = base64.urlsafe_b64encode(holder.model_dump_json().encode()).decode().rstrip("=")
        return f"ya29.{body}.{self._mac(body)}"

    def holder(self, token: str, now: float) -> Holder | None:
        """Return the token's holder; None for a token that this realm did not issue or that has expired."""
        found = re.fullmatch(r"ya29\.([\w-]+)\.([0-9a-f]+)", token)
        if not found or not hmac.compare_digest(found[2], self._mac(found[1])):
            return None
        holder = Holder.model_validate_json(_decoded(found[1]))
        return holder if holder.until > now else None

    def _mac(self, body: str) -> str:
        return hmac.new(self.secret.encode(), body.encode(), hashlib.sha256).hexdigest()

    def _issued(self, principal: str, scopes: str, now: float) -> str:
        return self.seal(Holder(principal=principal, scopes=tuple(scopes.split()), until=now + SECONDS))

    # -- a key ------------------------------------------------------------------------------------------------------

    def token(self, form: Mapping[str, str], now: float) -> Answer:
        """oauth2.googleapis.com/token: an assertion signed with a service account's key becomes a token."""
        try:
            claims = self._claims_by_key(form, now)
        except _Refused as refused:
            return refused.answer
        token = self._issued(claims["iss"], str(claims.get("scope", "")), now)
        return _json({"access_token": token, "expires_in": SECONDS, "token_type": "Bearer"})

    def _claims_by_key(self, form: Mapping[str, str], now: float) -> dict[str, Any]:
        if form.get("grant_type") != JWT_BEARER:
            raise _Refused("unsupported_grant_type", f"Invalid grant_type: {form.get('grant_type')}")
        header, claims = _parsed(form.get("assertion", ""), "invalid_grant", "Bad Request")
        keys = self.keys.get(str(claims.get("iss")))
        if keys is None:
            raise _Refused("invalid_grant", "Invalid grant: account not found")
        key = keys.get(str(header.get("kid")))
        if key is None or not _signed(form["assertion"], _public(key)):
            raise _Refused("invalid_grant", "Invalid JWT Signature.")
        if claims.get("aud") != TOKEN_URL:
            raise _Refused("invalid_grant", "Invalid JWT: Failed audience check.")
        if not now - 300 < claims["exp"] <= claims["iat"] + 3600 or claims["iat"] > now + 300:
            raise _Refused("invalid_grant", "Invalid JWT: Token must be a short-lived token (60 minutes)")
        return claims

    # -- an external account ----------------------------------------------------------------------------------------

    def exchange(self, form: Mapping[str, str], now: float) -> Answer:
        """sts.googleapis.com/v1/token: the token of a provider that the pool trusts becomes one of Google's."""
        try:
            claims = self._claims_by_provider(form, now)
        except _Refused as refused:
            return refused.answer
        pool = form["audience"].removeprefix("//").partition("/providers/")[0]
        token = self._issued(f"principal://{pool}/subject/{claims['sub']}", form.get("scope", ""), now)
        made = {"access_token": token, "issued_token_type": ACCESS_TOKEN, "token_type": "Bearer", "expires_in": SECONDS}
        return _json(made)

    def _claims_by_provider(self, form: Mapping[str, str], now: float) -> dict[str, Any]:
        kinds = {"grant_type": EXCHANGE, "requested_token_type": ACCESS_TOKEN, "subject_token_type": JWT}
        for name, expected in kinds.items():
            if form.get(name) != expected:
                raise _Refused("invalid_request", f"Invalid {name} {form.get(name)}.")
        provider = self.providers.get(form.get("audience", ""))
        if provider is None:
            told = 'The target service indicated by the "audience" parameters is invalid.'
            raise _Refused("invalid_target", told)
        header, claims = _parsed(form.get("subject_token", ""), "invalid_request", "Unable to parse the ID Token.")
        if claims.get("iss") != provider.issuer:
            raise _Refused("invalid_grant", f"The issuer in ID Token {claims.get('iss')} does not match the expected.")
        audiences = claims.get("aud")
        audiences = audiences if isinstance(audiences, list) else [audiences]
        if provider.audience not in audiences:
            told = f"The audience in ID Token [{', '.join(map(str, audiences))}] does not match the expected audience."
            raise _Refused("invalid_grant", told)
        key = next((each for each in provider.keys if each.get("kid") == header.get("kid")), None)
        if key is None or not _signed(form["subject_token"], _of_set(key)):
            raise _Refused("invalid_grant", "Invalid ID Token signature.")
        if claims["exp"] < now:
            raise _Refused("invalid_grant", f"ID Token issued at {claims['iat']} is stale to sign-in.")
        return claims

    def impersonate(self, account: str, bearer: str, body: Mapping[str, Any], now: float) -> Answer:
        """iamcredentials.googleapis.com …:generateAccessToken: a principal that may act as `account` gets its token."""
        holder = self.holder(bearer, now)
        if holder is None:
            return _denied(401, "Request had invalid authentication credentials.")
        if holder.principal not in self.users.get(account, ()):
            return _denied(403, _NO_TOKEN)
        token = self._issued(account, " ".join(body.get("scope", ())), now)
        until = datetime.datetime.fromtimestamp(now + SECONDS, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return _json({"accessToken": token, "expireTime": until})

    # -- workload identity ------------------------------------------------------------------------------------------

    def metadata(self, path: str, query: Mapping[str, str], asking: KubernetesAccount, now: float) -> Answer:
        """The GKE metadata server: a token of the Google account that the annotation names, for those who may act as
        it; without the annotation the Kubernetes account's own principal.
        """
        account = asking.annotations.get(ANNOTATION)
        named = account or self.pool
        texts = {
            "": "computeMetadata/",
            "computeMetadata/v1/project/project-id": self.project,
            "computeMetadata/v1/project/numeric-project-id": str(self.number),
            "computeMetadata/v1/universe/universe-domain": "googleapis.com",
        }
        if path in texts:
            return Answer(200, texts[path], "application/text")
        found = re.fullmatch(r"computeMetadata/v1/instance/service-accounts/([^/]+)/(email|token)?", path)
        if not found or found[1] not in ("default", named):
            return Answer(404, "Not found", "text/plain")
        if found[2] == "email":
            return Answer(200, named, "application/text")
        if not found[2]:
            return _json({"aliases": ["default"], "email": named, "scopes": [f"{_SCOPES}cloud-platform"]})
        member = f"serviceAccount:{self.pool}[{asking.namespace}/{asking.name}]"
        if account and member not in self.users.get(account, ()):
            told = (
                f"Unable to generate access token; IAM returned 403 Forbidden: {_NO_TOKEN}\n"
                "This error could be caused by a missing IAM policy binding on the target IAM service account.\n"
            )
            return Answer(403, told, "text/plain")
        subject = f"subject/ns/{asking.namespace}/sa/{asking.name}"
        direct = (
            f"principal://iam.googleapis.com/projects/{self.number}/locations/global/"
            f"workloadIdentityPools/{self.pool}/{subject}"
        )
        scopes = query.get("scopes", f"{_SCOPES}cloud-platform").replace(",", " ")
        token = self._issued(account or direct, scopes, now)
        return _json({"access_token": token, "expires_in": SECONDS, "token_type": "Bearer"})

    # -- buckets ----------------------------------------------------------------------------------------------------

    def refusal(self, method: str, target: str, bearer: str, now: float) -> Answer | None:
        """Return the bucket's refusal; None when the request is allowed."""
        xml = not urlsplit(target).path.startswith(("/storage/", "/upload/", "/download/"))
        bucket, key, verb = _asked(method, target)
        on = f"Google Cloud Storage {'object' if key else 'bucket'}. "
        denied = f"storage.objects.{verb} access to the {on}Permission 'storage.objects.{verb}' denied on resource"
        if not bearer:
            return _not_allowed(401, f"Anonymous caller does not have {denied} (or it may not exist).", xml=xml)
        holder = self.holder(bearer, now)
        if holder is None:
            return _not_allowed(401, "Invalid Credentials", xml=xml)
        enough = _READING if verb in ("get", "list") else _READING[1:]
        if not set(enough) & set(holder.scopes):
            return _not_allowed(403, "Request had insufficient authentication scopes.", xml=xml)
        role = self.grants.get(bucket, {}).get(holder.principal, "")
        if verb not in _ROLES.get(role, ()):
            return _not_allowed(403, f"{holder.principal} does not have {denied} (or it may not exist).", xml=xml)
        return None


_NO_TOKEN = "Permission 'iam.serviceAccounts.getAccessToken' denied on resource (or it may not exist)."


def _asked(method: str, target: str) -> tuple[str, str, str]:
    """Return bucket, object ("" for a listing) and the permission's verb."""
    path = urlsplit(target).path
    found = re.match(r"/(?:(?:upload|download)/)?storage/v1/b/([^/]+)(?:/o(?:/(.+))?)?$", path)
    bucket, key = (found[1], found[2] or "") if found else path.lstrip("/").partition("/")[::2]
    verbs = {"POST": "create", "PUT": "create", "PATCH": "update", "DELETE": "delete"}
    return unquote(bucket), unquote(key), verbs.get(method) or ("get" if key else "list")


def _json(content: Mapping[str, Any], status: int = 200) -> Answer:
    return Answer(status, json.dumps(content))


class _Refused(Exception):
    """An error of OAuth 2.0 (RFC 6749, 5.2)."""

    def __init__(self, error: str, description: str) -> None:
        self.answer = _json({"error": error, "error_description": description}, 400)
        super().__init__(error)


def _denied(status: int, message: str) -> Answer:
    name = {401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED"}[status]
    return _json({"error": {"code": status, "message": message, "status": name}}, status)


def _not_allowed(status: int, message: str, *, xml: bool) -> Answer:
    if xml:
        code = "AuthenticationRequired" if status == 401 else "AccessDenied"
        text = f"<Error><Code>{code}</Code><Message>Access denied.</Message><Details>{message}</Details></Error>"
        return Answer(status, f"<?xml version='1.0' encoding='UTF-8'?>{text}", "application/xml; charset=UTF-8")
    reason = {"message": message, "domain": "global", "reason": "required" if status == 401 else "forbidden"}
    return _json({"error": {"code": status, "message": message, "errors": [reason]}}, status)


def _decoded(part: str) -> bytes:
    return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))


def _parsed(token: str, error: str, description: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return header and claims of a JSON Web Token; anything else is refused with `error`."""
    try:
        header, claims, _ = token.split(".")
        return json.loads(_decoded(header)), json.loads(_decoded(claims))
    except ValueError:
        raise _Refused(error, description) from None


def _signed(token: str, key: rsa.RSAPublicKey) -> bool:
    """Report whether the token's RS256 signature is by `key`."""
    signed, _, signature = token.rpartition(".")
    try:
        key.verify(_decoded(signature), signed.encode(), padding.PKCS1v15(), hashes.SHA256())
    except InvalidSignature:
        return False
    return True


def _public(pem: str) -> rsa.RSAPublicKey:
    key = serialization.load_pem_public_key(pem.encode())
    assert isinstance(key, rsa.RSAPublicKey)
    return key


def _of_set(key: Mapping[str, Any]) -> rsa.RSAPublicKey:
    modulus, exponent = (int.from_bytes(_decoded(key[name]), "big") for name in ("n", "e"))
    return rsa.RSAPublicNumbers(exponent, modulus).public_key()
