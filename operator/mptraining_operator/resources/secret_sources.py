"""What of a job's pod comes from Secrets: the trainer is told, so that no Event repeats a value.

The operator itself has no right to read Secrets in the jobs' namespaces; it knows where their values will stand.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mptraining_api.launch import SECRET_PATHS, SECRET_VARIABLES
from mptraining_api.spec_pods import PodTemplate

# The driver that mounts what a secret manager holds (secrets-store-csi-driver).
_SECRETS_STORE = "secrets-store.csi.k8s.io"


@dataclass(frozen=True, slots=True)
class SecretSources:
    """Names of variables, `*` at the end for all that begin so, and paths in the container."""

    variables: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.variables or self.paths)

    def environment(self) -> dict[str, str]:
        """What tells the trainer."""
        found = {SECRET_VARIABLES: ",".join(self.variables), SECRET_PATHS: ":".join(self.paths)}
        return {name: value for name, value in found.items() if value}


def secret_sources(asked: PodTemplate, proxies: Mapping[str, str]) -> SecretSources:
    """Of a job with that template; `proxies` (name to URL) may have a password in them."""
    variables = [str(each.get("name")) for each in asked.env or () if "secretKeyRef" in _mapping(each, "valueFrom")]
    variables += [f"{each.get('prefix') or ''}*" for each in asked.env_from or () if each.get("secretRef")]
    variables += [name for name, url in proxies.items() if "@" in url]
    volumes = {each.get("name") for each in asked.volumes or () if _is_secret(each)}
    mounts = (each for each in asked.volume_mounts or () if each.get("name") in volumes)
    return SecretSources(tuple(variables), tuple(str(each.get("mountPath")) for each in mounts))


def _is_secret(volume: Mapping[str, Any]) -> bool:
    if "secret" in volume or _mapping(volume, "csi").get("driver") == _SECRETS_STORE:
        return True
    sources = _mapping(volume, "projected").get("sources")
    return isinstance(sources, list) and any(isinstance(each, dict) and "secret" in each for each in sources)


def _mapping(node: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = node.get(name)
    return found if isinstance(found, Mapping) else {}
