"""Operator settings: one model, read from a YAML file, which the Helm chart passes on.

The replica's identity (pod name, namespace, service account) is read from environment variables of the downward API.
"""

from __future__ import annotations

import json
import re
import string
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Literal, Self

import yaml
from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from mptraining_api.accelerators import canonical_name, lookup
from mptraining_api.admin_limits import known_accelerator
from mptraining_api.machines.node_labels import DEFAULT_PLATFORM, NodeLabels
from mptraining_api.model import Model, Name, Text, Uri, Word
from mptraining_api.problems import InvalidSpec, InvalidValue
from mptraining_api.resolve.resolve import ClusterSettings
from mptraining_api.resolve.runtime_settings import (
    Runtime,
    RuntimeName,
    matching,
    parse_settings,
    refusals,
    refuse,
)
from mptraining_api.validation import patterns

POD_NAME = "POD_NAME"
POD_NAMESPACE = "POD_NAMESPACE"
POD_SERVICE_ACCOUNT = "POD_SERVICE_ACCOUNT"
DEFAULT_NAMESPACE = "mptraining-system"


# The name of a Service begins with a letter.
_SERVICE = r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?"
# A leader stops after 0.8 of the duration (`leader_election`): at this interval it can retry one failed renewal.
_RENEWAL_FRACTION = 0.4


Port = Annotated[int, Field(ge=0, le=65535)]
Seconds = Annotated[float, Field(gt=0)]
Namespace = Annotated[str, matching(patterns.NAME_PART, "the name of a namespace"), Field(max_length=63)]
Service = Annotated[str, matching(_SERVICE, "small letters, digits and dashes, a letter first"), Field(max_length=63)]
Lease = Annotated[str, matching(patterns.DNS_NAME, "small letters, digits, dashes and dots"), Field(max_length=253)]
# Kubernetes itself takes any text as schedulerName; schedulers are named as their Deployments are.
SchedulerName = Annotated[
    Word, matching(patterns.DNS_NAME, "the name of a scheduler: small letters, digits, dashes and dots")
]
DeviceClass = Annotated[
    Name, matching(patterns.DNS_NAME, "the name of a DeviceClass: small letters, digits, dashes and dots")
]


def _gpu(name: str) -> str:
    known = lookup(known_accelerator(name))
    if known.kind != "gpu":
        raise InvalidValue(f"{name!r} is no GPU", next_step="`mptj accelerators` lists the GPUs.")
    return known.name


Gpu = Annotated[Word, AfterValidator(_gpu)]


def _once(classes: object) -> object:
    """Refuse a GPU under two names, of which one would be ignored."""
    names: dict[str, str] = {}
    for name in classes if isinstance(classes, Mapping) else ():
        with suppress(InvalidSpec):
            known = canonical_name(str(name))
            other = names.setdefault(known, name)
            if other != name:
                raise InvalidValue(
                    f"{name!r} is the GPU of {other!r} again",
                    expected=f"one DeviceClass for {known}",
                    next_step="Remove one of the two.",
                    path=(name,),
                )
    return classes


class ProgressSettings(Model):
    """Endpoint for the workers' progress reports. Port 0 selects a free port."""

    enabled: bool = Field(True, description="Whether workers report their progress.")
    port: Port = Field(8443, description="HTTPS port of every replica.")
    service: Service = Field("mptraining-operator", description="Service of the replicas.")


class LeaseSettings(Model):
    """Leader election on a coordination.k8s.io Lease."""

    name: Lease = Field("mptraining-operator", description="Name of the Lease.")
    duration_seconds: Annotated[int, Field(ge=3)] = Field(
        10, description="Seconds without a renewal after which another replica leads."
    )
    renew_seconds: Seconds = Field(2.0, description="Seconds between two renewals, or two reads of a standby.")

    @model_validator(mode="after")
    def _renewed_in_time(self) -> Self:
        most = self.duration_seconds * _RENEWAL_FRACTION
        if self.renew_seconds > most:
            raise ValueError(f"renewSeconds of at most {most:g}, {_RENEWAL_FRACTION:g} times durationSeconds")
        return self


class GangSchedulers(Model):
    """Schedulers that place all workers of a job or none; scheduling.gang of a job chooses one."""

    coscheduling: SchedulerName | None = Field(
        None,
        description="schedulerName of a scheduler with the plugin Coscheduling of scheduler-plugins. With it, gang: "
        "Auto uses its PodGroups where their CustomResourceDefinition exists.",
    )
    volcano: SchedulerName | None = Field(
        None,
        description="schedulerName of Volcano's scheduler, usually volcano. With it, gang: Auto uses Volcano's "
        "PodGroups where their CustomResourceDefinition exists.",
    )


_PLACEHOLDER = re.compile(r"\{([A-Za-z]+)\}")
_PLACEHOLDERS = ("job", "namespace", "phase", "reason", "message")


def filled(template: str, values: Mapping[str, str]) -> str:
    """Return the JSON template with the values in the strings in which their placeholders are."""
    return _PLACEHOLDER.sub(lambda match: json.dumps(values[match[1]])[1:-1], template)


def _json_template(template: str) -> str:
    unknown = [name for name in _PLACEHOLDER.findall(template) if name not in _PLACEHOLDERS]
    if unknown:
        raise InvalidValue(f"unknown placeholder {{{unknown[0]}}}", expected=f"one of {', '.join(_PLACEHOLDERS)}")
    try:
        json.loads(filled(template, dict.fromkeys(_PLACEHOLDERS, "x")))
    except ValueError as error:
        raise InvalidValue(f"no JSON: {error}", expected="JSON with the placeholders in strings") from None
    return template


def _webhook(url: str) -> str:
    """Refuse text that is no URL without quoting it: it may be a secret."""
    if not re.fullmatch(r"(https?://|\$\{)\S+", url) or not string.Template(url).is_valid():
        raise InvalidValue("no URL", expected="https://…, or ${NAME} of a variable that extraEnv sets")
    return url


class NotificationSettings(Model):
    """Notifications about jobs to one webhook, such as that of a chat."""

    url: Annotated[Uri, AfterValidator(_webhook)] | None = Field(
        None,
        description="URL of the webhook. ${NAME} is a variable of the replicas' environment. Absent: none are sent.",
    )
    template: Annotated[Text, AfterValidator(_json_template)] = Field(
        '{"text": "{namespace}/{job}: {phase} ({reason}): {message}"}',
        description="JSON to post. {job}, {namespace}, {phase}, {reason} and {message} are replaced in its strings.",
    )
    events: tuple[Literal["Failed", "Complete", "NoProgress"], ...] = Field(
        ("Failed", "Complete", "NoProgress"),
        description="When one is sent. NoProgress: the first time that a job exceeds progressDeadlineSeconds.",
    )


class OperatorSettings(Model):
    """Settings of the operator, for a platform engineer."""

    cpu_fallback: bool = Field(False, description="Train on CPUs if the cluster has no accelerators, such as kind.")
    node_labels: NodeLabels = Field(
        "Auto",
        description="Platform whose labels show the accelerator of a node: GKE, EKS, AKS, or NVIDIA for GPU feature "
        "discovery on any cluster. Auto: the platform that the nodes show when the operator starts, else GKE.",
    )
    mig_strategy: Literal["Auto", "Single", "Mixed"] = Field(
        "Auto",
        description="MIG strategy of NVIDIA's device plugin, for slices on platforms other than GKE. Auto: that which "
        "the nodes show, else Mixed.",
    )
    runtimes: dict[RuntimeName, Runtime] = Field(
        {},
        description="Named sets of pod settings, images, outputs and limits, which jobs choose by `runtime` and all "
        "users may read. They override `default` field by field, which is that of jobs without another one.",
    )
    default_runtimes: dict[Namespace, RuntimeName] = Field(
        {}, description="Runtimes of jobs that name none, by namespace."
    )
    device_classes: Annotated[dict[Gpu, DeviceClass], BeforeValidator(_once)] = Field(
        {},
        description="DeviceClass by GPU, such as t4, from which jobs claim it (Kubernetes 1.34 or newer). "
        "Other GPUs are the extended resource nvidia.com/gpu.",
    )
    namespaces: tuple[Namespace, ...] = Field((), description="Namespaces to serve. Empty: all.")
    gang_release_seconds: Annotated[float, Field(ge=0)] = Field(
        180.0,
        description="Seconds after which workers give their machines back if others of their job get none; between "
        "once and twice as long, by the job. 0: never.",
    )
    gang_schedulers: GangSchedulers = Field(GangSchedulers(), description="Schedulers of gangs.")
    grace_seconds: Annotated[int, Field(ge=1)] = Field(
        60, description="Termination grace period of workers in seconds, to save a checkpoint."
    )
    health_port: Port = Field(8080, description="HTTP port of /metrics, /healthz and /readyz.")
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field("INFO", description="DEBUG, INFO, WARNING, ERROR.")
    log_format: Literal["json", "text"] = Field("json", description="json; or text, for a terminal.")
    progress: ProgressSettings = Field(ProgressSettings(), description="Progress reports.")
    lease: LeaseSettings = Field(LeaseSettings(), description="Leader election.")
    notifications: NotificationSettings = Field(NotificationSettings(), description="Notifications about jobs.")

    @model_validator(mode="after")
    def _ports_and_runtimes(self) -> Self:
        wrong = refusals(self.default_runtimes, self.runtimes)
        if self.progress.enabled and self.health_port and self.health_port == self.progress.port:
            wrong.append(
                InvalidValue(
                    f"{self.health_port} is not valid",
                    expected=f"a healthPort other than progress.port, {self.progress.port}",
                    path=("healthPort",),
                )
            )
        refuse(wrong)
        return self

    def cluster(self) -> ClusterSettings:
        """Return the settings that `resolve` needs; Auto stands for the values of a cluster that shows none."""
        return ClusterSettings(
            cpu_fallback=self.cpu_fallback,
            node_labels=DEFAULT_PLATFORM if self.node_labels == "Auto" else self.node_labels,
            mig_strategy="Mixed" if self.mig_strategy == "Auto" else self.mig_strategy,
            runtimes=MappingProxyType(self.runtimes),
            default_runtimes=MappingProxyType(self.default_runtimes),
            device_classes=MappingProxyType(self.device_classes),
        )

    @classmethod
    def load(cls, path: Path | None) -> OperatorSettings:
        """Load the settings from the YAML file at `path`, or the defaults if it is None.

        Raises InvalidJobFile with every mistake, and InvalidSpec for a file that cannot be read.
        """
        if path is None:
            return cls()
        try:
            text = path.read_text(encoding="utf-8")
            document = yaml.safe_load(text) or {}
        except OSError as error:
            raise InvalidSpec(str(path), error.strerror or str(error), expected="a YAML file of settings") from None
        except yaml.YAMLError as error:
            raise InvalidSpec(str(path), f"not YAML: {error}") from None
        return parse_settings(cls, document, file=str(path), text=text)


class Identity(Model):
    """Identity of this replica: pod name, namespace and service account."""

    name: str
    namespace: str
    service_account: str = ""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str], *, host: str) -> Identity:
        """Read the identity from the downward API's variables; outside a cluster `host` replaces the pod name."""
        return cls(
            name=environment.get(POD_NAME, host),
            namespace=environment.get(POD_NAMESPACE, DEFAULT_NAMESPACE),
            service_account=environment.get(POD_SERVICE_ACCOUNT, ""),
        )
