"""The operator's settings: one model, read from a YAML file; the chart's values are the same fields.

Where the operator runs (its pod's name and namespace) comes from the environment, because only the pod knows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Literal, Self

import yaml
from pydantic import AfterValidator, Field, StringConstraints, model_validator

from mptraining_api.admin_limits import Image, JobLimits
from mptraining_api.model import Model, Name, Uri, Word
from mptraining_api.problems import InvalidSpec
from mptraining_api.resolve.resolve import ClusterSettings

POD_NAME = "POD_NAME"
POD_NAMESPACE = "POD_NAMESPACE"
POD_SERVICE_ACCOUNT = "POD_SERVICE_ACCOUNT"
DEFAULT_NAMESPACE = "mptraining-system"

_MULTI_HOST = "Take TPU slices of several hosts, on which TensorFlow has no supported way to train."

# RFC 1123, as Kubernetes has it; a Service's name begins with a letter.
_LABEL = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
_SERVICE = r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?"
_SUBDOMAIN = rf"{_LABEL}(\.{_LABEL})*"
_FOLDER = r"(gs://[a-z0-9]|/).*"
# A leader gives up after 0.8 of the duration (`lease`): one renewal that fails must not be the last.
_RENEWALS = 0.4


def _like(pattern: str, expected: str) -> Callable[[str], str]:
    def check(text: str) -> str:
        if re.fullmatch(pattern, text) is None:
            raise ValueError(expected)
        return text

    return check


Port = Annotated[int, Field(ge=0, le=65535)]
Seconds = Annotated[float, Field(gt=0)]
# The patterns are for `helm install`, which reads the schema; the words for who reads the operator's log.
Namespace = Annotated[
    str,
    AfterValidator(_like(_LABEL, "the name of a namespace")),
    Field(max_length=63, json_schema_extra={"pattern": f"^{_LABEL}$"}),
]
Service = Annotated[
    str,
    AfterValidator(_like(_SERVICE, "small letters, digits and dashes, a letter first")),
    Field(max_length=63, json_schema_extra={"pattern": f"^{_SERVICE}$"}),
]
Lease = Annotated[
    str,
    AfterValidator(_like(_SUBDOMAIN, "small letters, digits, dashes and dots")),
    Field(max_length=253, json_schema_extra={"pattern": f"^{_SUBDOMAIN}$"}),
]
Folder = Annotated[
    Uri,
    AfterValidator(_like(_FOLDER, "gs://bucket/folder, or the path of a volume that jobs mount")),
    Field(json_schema_extra={"pattern": f"^{_FOLDER}$"}),
]


class ProgressSettings(Model):
    """The endpoint that workers report to. Port 0 takes any free one."""

    enabled: bool = Field(True, description="Whether workers report their progress.")
    port: Port = Field(8443, description="HTTPS port of every replica.")
    service: Service = Field("mptraining-operator", description="Service in front of the replicas.")
    minimum_seconds: Seconds = Field(15.0, description="Between two writes of one job's progress.")
    writes_per_second: Seconds = Field(50.0, description="Over all jobs; progressDeadlineSeconds needs some a minute.")
    token_cache_seconds: Seconds = Field(60.0, description="How long a reviewed token is believed.")


class LeaseSettings(Model):
    """Leader election: the seconds are those of a coordination.k8s.io Lease."""

    name: Lease = Field("mptraining-operator", description="The Lease's name.")
    duration_seconds: Annotated[int, Field(ge=3)] = Field(10, description="A silent leader is replaced after these.")
    renew_seconds: Seconds = Field(2.0, description="Between two renewals, or two looks of a standby.")

    @model_validator(mode="after")
    def _renewed_in_time(self) -> Self:
        most = self.duration_seconds * _RENEWALS
        if self.renew_seconds > most:
            raise ValueError(f"renewSeconds of at most {most:g}, {_RENEWALS:g} times durationSeconds")
        return self


class RestartSettings(Model):
    """Waits between attempts, doubled each time up to the longest; as a batch/v1 Job's for program errors."""

    program_seconds: Seconds = Field(10.0, description="After the first failure of the program.")
    infrastructure_seconds: Seconds = Field(2.0, description="After the first loss of a machine.")
    longest_seconds: Seconds = Field(360.0, description="No wait is longer.")


class TrainerImages(Model):
    """Images of jobs that name none, by what they compute on. Absent: trainerImage, else this version's own."""

    cpu: Image | None = Field(None, description="For jobs on CPUs, fallen back ones included.")
    gpu: Image | None = Field(None, description="For jobs on GPUs.")
    tpu: Image | None = Field(None, description="For jobs on TPUs.")


class JobPods(Model):
    """What the pods of all jobs get, as far as a job says nothing else."""

    image_pull_secrets: tuple[Name, ...] = Field((), description="Secrets, in the namespace of the job, to pull with.")
    http_proxy: Uri | None = Field(None, description="HTTP_PROXY.")
    https_proxy: Uri | None = Field(None, description="HTTPS_PROXY.")
    no_proxy: Annotated[str, StringConstraints(max_length=4096)] | None = Field(
        None, description="NO_PROXY; the cluster's own services and metadata server are added."
    )
    ca_config_map: Name | None = Field(
        None, description="ConfigMap, in the namespace of the job, with the authorities (PEM) to trust."
    )
    ca_key: Name = Field("ca.crt", description="Its key.")
    priority_class_name: Name | None = Field(None, description="Priority class of jobs that name none.")
    labels: dict[Name, Annotated[str, StringConstraints(max_length=63)]] = Field({}, description="Extra labels.")


class OperatorSettings(Model):
    """What a platform engineer may set."""

    trainer_image: Image | None = Field(None, description="Image of jobs that name none, for kinds without one below.")
    trainer_images: TrainerImages = Field(TrainerImages(), description="By kind of accelerator; these win.")
    cpu_fallback: bool = Field(False, description="Train on CPUs where the accelerators are absent: kind, a laptop.")
    experimental_multi_host_tpu: bool = Field(False, alias="experimentalMultiHostTPU", description=_MULTI_HOST)
    default_output: Folder | None = Field(None, description="Folder for the runs of jobs that name none.")
    default_outputs: dict[Word, Folder] = Field({}, description="Such folders for single namespaces, by their name.")
    limits: JobLimits = Field(JobLimits(), description="What jobs may use.")
    pods: JobPods = Field(JobPods(), description="What the pods of all jobs get.")
    namespaces: tuple[Namespace, ...] = Field((), description="Namespaces to serve. Empty: all.")
    workers: Annotated[int, Field(ge=1, le=64)] = Field(8, description="Jobs looked at side by side.")
    relist_seconds: Seconds = Field(600.0, description="Everything is listed anew this often.")
    settle_seconds: Seconds = Field(5.0, description="Pods may be unscheduled this long before status says so.")
    stuck_pod_seconds: Seconds = Field(30.0, description="Beyond its grace period a pod of a dead node is given up.")
    grace_seconds: Annotated[int, Field(ge=1)] = Field(60, description="Workers have these to save a checkpoint.")
    unreachable_seconds: Annotated[int, Field(ge=0)] = Field(30, description="Pods stay this long on a lost node.")
    health_port: Port = Field(8080, description="/metrics, /healthz, /readyz.")
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field("INFO", description="DEBUG, INFO, WARNING, ERROR.")
    log_format: Literal["json", "text"] = Field("json", description="json, or text for a terminal.")
    progress: ProgressSettings = Field(ProgressSettings(), description="Progress reports.")
    lease: LeaseSettings = Field(LeaseSettings(), description="Leader election.")
    restart: RestartSettings = Field(RestartSettings(), description="Waits between attempts.")

    @model_validator(mode="after")
    def _two_ports(self) -> Self:
        if self.progress.enabled and self.health_port and self.health_port == self.progress.port:
            raise ValueError(f"a healthPort other than progress.port, {self.progress.port}")
        return self

    def image(self, kind: str) -> str:
        """The trainer image of jobs that name none and compute on `kind` (cpu, gpu, tpu): this operator's version."""
        own = f"mptraining/trainer:{version('mptraining')}" + ("" if kind == "cpu" else f"-{kind}")
        return getattr(self.trainer_images, kind) or self.trainer_image or own

    def cluster(self) -> ClusterSettings:
        """What `resolve` must know."""
        return ClusterSettings(
            cpu_fallback=self.cpu_fallback,
            experimental_multi_host_tpu=self.experimental_multi_host_tpu,
            default_output=self.default_output,
            default_images=MappingProxyType({kind: self.image(kind) for kind in TrainerImages.model_fields}),
            default_outputs=MappingProxyType(self.default_outputs),
        )

    @classmethod
    def load(cls, path: Path | None) -> OperatorSettings:
        """The settings in the YAML file at `path`; the defaults without one. Raises InvalidSpec."""
        if path is None:
            return cls()
        try:
            document = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
        except OSError as error:
            raise InvalidSpec(str(path), error.strerror or str(error), expected="a YAML file of settings") from None
        except yaml.YAMLError as error:
            raise InvalidSpec(str(path), f"not YAML: {error}") from None
        return cls.parse(document, where=str(path))


class Identity(Model):
    """Which replica this is, and where the operator lives."""

    name: str
    namespace: str
    service_account: str = ""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str], *, host: str) -> Identity:
        """From the downward API; outside a cluster `host` stands for the pod."""
        return cls(
            name=environment.get(POD_NAME, host),
            namespace=environment.get(POD_NAMESPACE, DEFAULT_NAMESPACE),
            service_account=environment.get(POD_SERVICE_ACCOUNT, ""),
        )
