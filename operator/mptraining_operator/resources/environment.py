"""The variables of a worker's containers: the launch's, the source's, those for progress reports, and the job's own.

A job's own variable takes the place of a default of the same name, and of nothing else: rules refuse MPTRAINING_* and
what the launch sets. Each name stands once, because a server-side apply refuses two.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from mptraining_api import launch as contract
from mptraining_api.launch import SECRET_PATHS, SECRET_VARIABLES, Launch
from mptraining_api.problems import InvalidSpec
from mptraining_api.spec import PodTemplate
from mptraining_operator.resources import names
from mptraining_operator.resources.shared import Owner
from mptraining_operator.resources.volumes import HOME, TOKEN_FILE, Authorities, SourceParts

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


# The kubelet's default, into which it mounts a file that everybody may write.
TERMINATION_LOG = "/dev/termination-log"
_PYTHON_PATH = "PYTHONPATH"
# What NVIDIA's container runtime goes by, beside the device plugin that sets it for pods with GPUs of their own.
_GPUS = "NVIDIA_VISIBLE_DEVICES"
# A proxy of the job's own would stand between two workers and make them hang; gRPC compares the ends of host names.
_NO_PROXY = "no_grpc_proxy"
# This machine, the cluster's services, and Google's metadata server, from which credentials come.
_NEVER_BY_PROXY = ("localhost", "127.0.0.1", ".svc", ".cluster.local", "metadata.google.internal", "169.254.169.254")
# OpenSSL and obstore; requests, and with it google-auth; curl, with which TensorFlow reads buckets; pip.
_AUTHORITIES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT")

Variables = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class PodSettings:
    """What the operator's settings say about every pod.

    `progress_url` is the https URL that worker 0 reports to, None where nobody listens; `progress_certificate` the
    certificate (PEM) it trusts there.
    """

    grace_seconds: int = 60
    unreachable_seconds: int = 30
    progress_url: str | None = None
    progress_certificate: str = ""
    # Names of Secrets and of a ConfigMap in the job's namespace.
    image_pull_secrets: tuple[str, ...] = ()
    authorities: Authorities | None = None
    priority_class_name: str | None = None
    labels: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    http_proxy: str | None = None
    https_proxy: str | None = None
    no_proxy: str = ""

    def proxies(self) -> dict[str, str]:
        """In both spellings, since curl and Go read small letters and others large ones."""
        named = {"HTTP_PROXY": self.http_proxy, "HTTPS_PROXY": self.https_proxy}
        found = {name: value for name, value in named.items() if value}
        if found:
            found["NO_PROXY"] = ",".join([*_NEVER_BY_PROXY, *([self.no_proxy] if self.no_proxy else [])])
        return found | {name.lower(): value for name, value in found.items()}


def trainer_environment(
    owner: Owner, launched: Launch, source: SourceParts, settings: PodSettings, asked: PodTemplate, *, gpu: bool
) -> Variables:
    """Of the container that trains. Raises InvalidSpec for a PYTHONPATH that cannot be joined."""
    values = {**_outside(settings), **launched.environment, **source.trainer_environment, "HOME": HOME}
    values |= secret_sources(asked, settings.proxies()).environment()
    if settings.progress_url is not None:
        values[contract.PROGRESS_URL] = settings.progress_url
        values[contract.PROGRESS_TOKEN_FILE] = TOKEN_FILE
        values[contract.PROGRESS_CERTIFICATE] = settings.progress_certificate
    if not gpu:
        values[_GPUS] = "void"
    if len(launched.hosts) > 1:
        values[_NO_PROXY] = f"{names.service(owner.name)}.{owner.namespace}.svc"
    if source.python_path:
        values[_PYTHON_PATH] = _python_path(source.python_path, asked)
    # The kubelet puts a pod out that writes more; without a limit this is what the node has.
    scratch = {"resourceFieldRef": {"resource": "limits.ephemeral-storage"}}
    joined = _joined(values, asked, kept=frozenset({_NO_PROXY, _PYTHON_PATH}))
    return [*joined, {"name": contract.EPHEMERAL_STORAGE, "valueFrom": scratch}]


def init_environment(launched: Launch, source: SourceParts, settings: PodSettings, asked: PodTemplate) -> Variables:
    """Of the container that prepares the source: the job's own too, for they name proxies, indexes and credentials."""
    values = {**_outside(settings), **launched.environment, **source.init_environment, "HOME": HOME}
    values |= secret_sources(asked, settings.proxies()).environment()
    # No device is the init container's; an image of NVIDIA's asks for all there are, where its runtime is the default.
    values[_GPUS] = "void"
    return _joined(values, asked, kept=frozenset())


def _outside(settings: PodSettings) -> dict[str, str]:
    """What leads out of the cluster: proxies, and whom to trust there."""
    file = settings.authorities.file if settings.authorities else None
    return {**settings.proxies(), **(dict.fromkeys(_AUTHORITIES, file) if file else {})}


def _joined(values: dict[str, str], asked: PodTemplate, kept: frozenset[str]) -> Variables:
    uid = {"name": contract.INCARNATION, "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}}
    theirs = [each for each in asked.env or () if each.get("name") not in kept.intersection(values)]
    named = {each.get("name") for each in theirs}
    values = {**values, contract.TERMINATION_LOG: TERMINATION_LOG}
    ours = [{"name": name, "value": value} for name, value in values.items() if name not in named]
    return [*ours, uid, *theirs]


def _python_path(packages: str, asked: PodTemplate) -> str:
    """The job's own path first, as far as it has one."""
    for index, each in enumerate(asked.env or ()):
        if each.get("name") == _PYTHON_PATH:
            if "value" not in each:
                raise InvalidSpec(
                    f"spec.podTemplate.env[{index}]",
                    "PYTHONPATH from elsewhere, which the packages of source.requirements cannot be added to",
                    expected="a value",
                    next_step="Write its value, or leave out requirements.",
                )
            return f"{each['value']}:{packages}"
    return packages
