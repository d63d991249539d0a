"""Access to a GKE cluster by project, location and name, without gcloud or a kubeconfig.

It uses Google credentials and one call of the GKE API. The API server is reached by its DNS endpoint if that accepts
external traffic, else by its IP address with the cluster's own certificate authority.
"""

from __future__ import annotations

import base64
import hashlib
import importlib
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from mptraining.cluster.errors import ClusterProblem, NoCluster, NotAllowed, NotFound, NotLoggedIn, Unreachable
from mptraining_storage.local import atomic_write, user_cache

# The environment variable by which gcloud overrides the address of the GKE API.
ENDPOINT = "CLOUDSDK_API_ENDPOINT_OVERRIDES_CONTAINER"
_API = "https://container.googleapis.com/"
_SCOPES = ("https://www.googleapis.com/auth/cloud-platform",)
_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class GkeCluster:
    """Address of the API server. `authority` is the CA certificate in PEM; None for a publicly trusted one."""

    host: str
    authority: bytes | None
    credentials: Any


def find_cluster(project: str, location: str, cluster: str) -> GkeCluster:
    """Look up the cluster in the GKE API.

    Raises NotLoggedIn without credentials, NotAllowed, NotFound, Unreachable, or NoCluster if the cluster has no
    external endpoint.
    """
    from google.auth.exceptions import GoogleAuthError
    from google.auth.transport.requests import AuthorizedSession
    from requests.exceptions import RequestException

    credentials = _credentials(project)
    path = f"projects/{quote(project, safe='')}/locations/{quote(location, safe='')}/clusters/{quote(cluster, safe='')}"
    root = os.environ.get(ENDPOINT) or _API
    name = f"GKE cluster {cluster}"
    try:
        with AuthorizedSession(credentials) as session:
            answer = session.get(f"{root.rstrip('/')}/v1/{path}", timeout=_SECONDS)
            document = answer.json() if answer.content else {}
    except GoogleAuthError as error:
        raise NotLoggedIn(name, f"Google's credentials are not accepted: {error}", next_step=_LOGIN) from None
    except (RequestException, OSError, ValueError) as error:
        raise Unreachable(name, f"the GKE API does not answer: {error}") from None
    if answer.status_code >= 400:
        raise gke_problem(answer.status_code, document, project=project, location=location, cluster=cluster)
    host, authority = api_server_address(document, name)
    return GkeCluster(host, authority, credentials)


_LOGIN = (
    "In Colab: from google.colab import auth; auth.authenticate_user(). Elsewhere: gcloud auth application-default "
    "login, or a key file in GOOGLE_APPLICATION_CREDENTIALS."
)


def gke_problem(status: int, document: Any, *, project: str, location: str, cluster: str) -> ClusterProblem:
    error = document.get("error", {}) if isinstance(document, dict) else {}
    message = str(error.get("message", "")) or f"HTTP {status}"
    name = f"GKE cluster {cluster}"
    if status == 404:
        return NotFound(
            name,
            f"not in project {project!r}, location {location!r}: {message}",
            next_step="A zonal cluster's location is its zone (europe-west4-a), a regional one's its region.",
        )
    if status == 403:
        return NotAllowed(
            name,
            message,
            next_step=f"An administrator grants the role: gcloud projects add-iam-policy-binding {project} "
            "--member=user:YOU --role=roles/container.developer",
        )
    if status == 401:
        return NotLoggedIn(name, message, next_step=_LOGIN)
    return Unreachable(name, f"the GKE API says {status}: {message}") if status >= 500 else NoCluster(name, message)


def api_server_address(document: Mapping[str, Any], name: str) -> tuple[str, bytes | None]:
    """Return (URL, certificate authority) of the API server from GKE's cluster document. Raises NoCluster."""
    dns = (document.get("controlPlaneEndpointsConfig") or {}).get("dnsEndpointConfig") or {}
    if dns.get("endpoint") and dns.get("allowExternalTraffic"):
        return f"https://{dns['endpoint']}", None
    endpoint = document.get("endpoint")
    if not endpoint:
        raise NoCluster(
            name,
            f"has no endpoint that can be reached from here (status {document.get('status')!r})",
            next_step=f"gcloud container clusters update {document.get('name', 'CLUSTER')} --enable-dns-access",
        )
    authority = (document.get("masterAuth") or {}).get("clusterCaCertificate")
    return f"https://{endpoint}", base64.b64decode(authority) if authority else None


def configure(configuration: Any, cluster: GkeCluster) -> None:
    """Fill in a kubernetes.client.Configuration; the token is refreshed before a request if it has expired."""
    configuration.host = cluster.host
    if cluster.authority is not None:
        # The client accepts only a file: one for each certificate, which all commands share.
        path = user_cache("gke", f"{hashlib.sha256(cluster.authority).hexdigest()}.crt")
        if not path.exists() or path.read_bytes() != cluster.authority:
            with atomic_write(path) as unfinished:
                unfinished.touch(mode=0o600)
                unfinished.write_bytes(cluster.authority)
        configuration.ssl_ca_cert = str(path)

    def refresh(refreshed: Any) -> None:
        from google.auth.transport.requests import Request

        if not cluster.credentials.valid:
            cluster.credentials.refresh(Request())
        # The client's key is `authorization` up to version 35 and `BearerToken` from 36 on; it ignores the other one.
        refreshed.api_key |= dict.fromkeys(("authorization", "BearerToken"), f"Bearer {cluster.credentials.token}")

    refresh(configuration)
    configuration.refresh_api_key_hook = refresh


def _credentials(project: str) -> Any:
    """Return application default credentials; in Colab the user is prompted if there are none."""
    import google.auth
    from google.auth.exceptions import DefaultCredentialsError

    try:
        return google.auth.default(scopes=_SCOPES)[0]
    except DefaultCredentialsError as error:
        if "google.colab" not in sys.modules:
            raise NotLoggedIn("", f"no Google credentials found: {error}", next_step=_LOGIN) from None
    importlib.import_module("google.colab.auth").authenticate_user(project_id=project)
    return google.auth.default(scopes=_SCOPES)[0]
