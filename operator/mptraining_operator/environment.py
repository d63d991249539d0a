"""The variables of a worker's containers: the launch's, the source's, those for progress reports, and the job's own.

A job's own variable takes the place of a default of the same name, and of nothing else: rules refuse MPTRAINING_* and
what the launch sets. Each name stands once, because a server-side apply refuses two.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mptraining_api import launch as contract
from mptraining_api.launch import Launch
from mptraining_api.problems import InvalidSpec
from mptraining_api.spec_pods import PodTemplate
from mptraining_operator import names
from mptraining_operator.children import Owner
from mptraining_operator.mounts import HOME, TOKEN_FILE
from mptraining_operator.source import SourceParts

# The kubelet's default, into which it mounts a file that everybody may write.
TERMINATION_LOG = "/dev/termination-log"
_PYTHON_PATH = "PYTHONPATH"
# A proxy of the job's own would stand between two workers and make them hang; gRPC compares the ends of host names.
_NO_PROXY = "no_grpc_proxy"

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


def trainer_environment(
    owner: Owner, launched: Launch, source: SourceParts, settings: PodSettings, asked: PodTemplate
) -> Variables:
    """Of the container that trains. Raises InvalidSpec for a PYTHONPATH that cannot be joined."""
    values = {**launched.environment, **source.trainer_environment, "HOME": HOME}
    if settings.progress_url is not None:
        values[contract.PROGRESS_URL] = settings.progress_url
        values[contract.PROGRESS_TOKEN_FILE] = TOKEN_FILE
        values[contract.PROGRESS_CERTIFICATE] = settings.progress_certificate
    if len(launched.hosts) > 1:
        values[_NO_PROXY] = f"{names.service(owner.name)}.{owner.namespace}.svc"
    if source.python_path:
        values[_PYTHON_PATH] = _python_path(source.python_path, asked)
    # The kubelet puts a pod out that writes more; without a limit this is what the node has.
    scratch = {"resourceFieldRef": {"resource": "limits.ephemeral-storage"}}
    joined = _joined(values, asked, kept=frozenset({_NO_PROXY, _PYTHON_PATH}))
    return [*joined, {"name": contract.EPHEMERAL_STORAGE, "valueFrom": scratch}]


def init_environment(launched: Launch, source: SourceParts, asked: PodTemplate) -> Variables:
    """Of the container that prepares the source: the job's own too, for they name proxies, indexes and credentials."""
    return _joined({**launched.environment, **source.init_environment, "HOME": HOME}, asked, kept=frozenset())


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
