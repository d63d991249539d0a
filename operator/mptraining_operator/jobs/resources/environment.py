"""Environment variables of a worker's containers, and the variables and paths through which they get secrets.

The variables are those of the launch, the source, progress reports, proxies, and the job. A job's variable overrides a
default of the same name; validation rejects MPTRAINING_* and the names that the launch sets. Names are unique, because
server-side apply rejects duplicates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mptraining_api import launch
from mptraining_api.launch import SECRET_PATHS, SECRET_VARIABLES, Launch
from mptraining_api.pods.fields import PodTemplate
from mptraining_api.problems import InvalidSpec
from mptraining_api.resolve.runtime_settings import Runtime
from mptraining_operator.jobs.resources import names
from mptraining_operator.jobs.resources.job_objects import Owner
from mptraining_operator.jobs.resources.volumes import AUTHORITIES_FOLDER, HOME, TOKEN_FILE, SourceParts
from mptraining_operator.settings import GangSchedulers

# The CSI driver that mounts secrets of an external secret manager (secrets-store-csi-driver).
_SECRETS_STORE = "secrets-store.csi.k8s.io"


def secret_sources(pod_template: PodTemplate, proxies: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that name the secrets of a pod template and of `proxies` (name to URL, with a password).

    They are empty without secrets: variables, of which one with `*` at its end is a prefix, and paths.
    """
    variables = [
        str(variable.get("name"))
        for variable in pod_template.env or ()
        if "secretKeyRef" in _mapping(variable, "valueFrom")
    ]
    variables += [f"{source.get('prefix') or ''}*" for source in pod_template.env_from or () if source.get("secretRef")]
    variables += [name for name, url in proxies.items() if "@" in url]
    volumes = {volume.get("name") for volume in pod_template.volumes or () if _is_secret(volume)}
    mounts = (mount for mount in pod_template.volume_mounts or () if mount.get("name") in volumes)
    values = {
        SECRET_VARIABLES: ",".join(variables),
        SECRET_PATHS: ":".join(str(mount.get("mountPath")) for mount in mounts),
    }
    return {name: value for name, value in values.items() if value}


def _is_secret(volume: Mapping[str, Any]) -> bool:
    if "secret" in volume or _mapping(volume, "csi").get("driver") == _SECRETS_STORE:
        return True
    sources = _mapping(volume, "projected").get("sources")
    return isinstance(sources, list) and any(isinstance(source, dict) and "secret" in source for source in sources)


def _mapping(node: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    child = node.get(name)
    return child if isinstance(child, Mapping) else {}


# The kubelet's default; it mounts a world-writable file there.
TERMINATION_LOG = "/dev/termination-log"
_PYTHON_PATH = "PYTHONPATH"
# Read by NVIDIA's container runtime; the device plugin sets it for pods that request GPUs.
_GPUS = "NVIDIA_VISIBLE_DEVICES"
# Workers hang if gRPC connects them through the job's proxy; gRPC compares suffixes of host names.
_NO_PROXY = "no_grpc_proxy"
# The local host, the cluster's services, and Google's metadata server, which provides credentials.
_NEVER_BY_PROXY = ("localhost", "127.0.0.1", ".svc", ".cluster.local", "metadata.google.internal", "169.254.169.254")
# Of OpenSSL; of requests and google-auth; of curl, which TensorFlow uses for buckets; of pip.
_AUTHORITIES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT")

# Of NCCL, for gradients between GPUs. Without WARN an error of NCCL is only `unhandled system error`. NCCL's own host
# memory (cuMem) needs set_mempolicy, which the seccomp profile RuntimeDefault denies to a container without
# CAP_SYS_NICE; NCCL then uses /dev/shm, which the operator sizes (NCCL, "Troubleshooting", Docker).
_NCCL = {"NCCL_DEBUG": "WARN", "NCCL_CUMEM_HOST_ENABLE": "0"}

Variables = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class PodSettings:
    """The operator's settings that apply to the pods of a job.

    `progress_url` is the HTTPS URL that worker 0 reports to, None if progress reports are disabled;
    `progress_certificate` is the certificate (PEM) that it trusts. `runtime` is that of the job, with the fields of
    `default`.
    """

    grace_seconds: int = 60
    progress_url: str | None = None
    progress_certificate: str = ""
    runtime: Runtime = field(default_factory=Runtime)
    gangs: GangSchedulers = field(default_factory=GangSchedulers)
    # Whether the platform assigns the user of a pod and refuses others.
    platform_user: bool = False

    def proxies(self) -> dict[str, str]:
        """Return the proxy variables in upper and lower case: curl reads lower case, other programs upper case."""
        runtime = self.runtime
        named = {"HTTP_PROXY": runtime.http_proxy, "HTTPS_PROXY": runtime.https_proxy}
        variables = {name: value for name, value in named.items() if value}
        if variables:
            variables["NO_PROXY"] = ",".join([*_NEVER_BY_PROXY, *([runtime.no_proxy] if runtime.no_proxy else [])])
        return variables | {name.lower(): value for name, value in variables.items()}


def trainer_environment(
    owner: Owner, launched: Launch, source: SourceParts, settings: PodSettings, pod_template: PodTemplate, *, gpus: int
) -> Variables:
    """Return the variables of the trainer container, which has `gpus` GPUs.

    Raises InvalidSpec for a PYTHONPATH without a literal value.
    """
    values = {**_external(settings), **launched.environment, **source.trainer_environment, "HOME": HOME}
    values |= secret_sources(pod_template, settings.proxies())
    if settings.progress_url is not None:
        values[launch.PROGRESS_URL] = settings.progress_url
        values[launch.PROGRESS_TOKEN_FILE] = TOKEN_FILE
        values[launch.PROGRESS_CERTIFICATE] = settings.progress_certificate
    if not gpus:
        values[_GPUS] = "void"
    elif gpus * len(launched.hosts) > 1:
        values |= _NCCL
    if len(launched.hosts) > 1:
        values[_NO_PROXY] = f"{names.SERVICE}.{owner.namespace}.svc"
    if source.python_path:
        values[_PYTHON_PATH] = _python_path(source.python_path, pod_template)
    # The kubelet evicts a pod that writes more; without a limit the value is the node's allocatable storage.
    scratch = {"resourceFieldRef": {"resource": "limits.ephemeral-storage"}}
    joined = _merge(values, pod_template, kept=frozenset({_NO_PROXY, _PYTHON_PATH}))
    return [*joined, {"name": launch.EPHEMERAL_STORAGE, "valueFrom": scratch}]


def init_environment(
    launched: Launch, source: SourceParts, settings: PodSettings, pod_template: PodTemplate
) -> Variables:
    """Return the variables of the init container; the job's are included for proxies, package indexes, credentials."""
    values = {**_external(settings), **launched.environment, **source.init_environment, "HOME": HOME}
    values |= secret_sources(pod_template, settings.proxies())
    # The init container gets no GPU: NVIDIA's images request all of them if NVIDIA's runtime is the default.
    values[_GPUS] = "void"
    return _merge(values, pod_template, kept=frozenset())


def _external(settings: PodSettings) -> dict[str, str]:
    """Return the variables for connections outside the cluster: proxies and CA bundle."""
    file = f"{AUTHORITIES_FOLDER}/{settings.runtime.ca_key or 'ca.crt'}"
    return {**settings.proxies(), **(dict.fromkeys(_AUTHORITIES, file) if settings.runtime.ca_config_map else {})}


def _merge(values: dict[str, str], pod_template: PodTemplate, kept: frozenset[str]) -> Variables:
    uid = {"name": launch.INCARNATION, "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}}
    theirs = [variable for variable in pod_template.env or () if variable.get("name") not in kept.intersection(values)]
    named = {variable.get("name") for variable in theirs}
    values = {**values, launch.TERMINATION_LOG: TERMINATION_LOG}
    ours = [{"name": name, "value": value} for name, value in values.items() if name not in named]
    return [*ours, uid, *theirs]


def _python_path(packages: str, pod_template: PodTemplate) -> str:
    """Return the PYTHONPATH: the job's own value, if any, before `packages`. Raises InvalidSpec."""
    for index, variable in enumerate(pod_template.env or ()):
        if variable.get("name") == _PYTHON_PATH:
            if "value" not in variable:
                raise InvalidSpec(
                    f"spec.podTemplate.env[{index}]",
                    "PYTHONPATH from elsewhere, which the packages of source.requirements cannot be added to",
                    expected="a value",
                    next_step="Write its value, or leave out requirements.",
                )
            return f"{variable['value']}:{packages}"
    return packages
