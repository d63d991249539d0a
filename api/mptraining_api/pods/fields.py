"""Fields of the pods that a job may set: spec.podTemplate."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from mptraining_api.model import Model, Name, Text
from mptraining_api.validation import patterns

Labels = Annotated[dict[Annotated[str, StringConstraints(max_length=317)], Text], Field(max_length=64)]
# Quantity is the only union: Kubernetes itself accepts a number or a string (8, "500m", "16Gi").
Quantity = Annotated[
    int | Annotated[str, StringConstraints(max_length=64)],
    Field(json_schema_extra={"x-kubernetes-int-or-string": True}),
]
Quantities = Annotated[dict[Annotated[str, StringConstraints(max_length=253)], Quantity], Field(max_length=16)]
ObjectName = Annotated[str, StringConstraints(max_length=253, pattern=patterns.OBJECT_NAME)]
# Kubernetes objects are not validated here: the API server validates them when the pod is created.
KubernetesObject = Annotated[dict[str, Any], Field(max_length=64)]
KubernetesObjects = Annotated[list[KubernetesObject], Field(max_length=64)]
# The volume types that Kubernetes' `restricted` Pod Security Standard admits, and images. Other storage (NFS, a disk)
# needs a PersistentVolume, which an administrator or a storage class creates.
VOLUME_KINDS = (
    *("configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "image"),
    *("persistentVolumeClaim", "projected", "secret"),
)
_OBJECT = {"type": "object", "additionalProperties": True, "maxProperties": 64}
# The API server drops or refuses a kind that is not named, and a rule refuses a volume without a kind.
_VOLUME = {
    "additionalProperties": False,
    "properties": {
        "name": {"type": "string", "maxLength": 63, "description": "For volumeMounts."},
        **{kind: {**_OBJECT, "description": "As in a pod."} for kind in VOLUME_KINDS},
    },
}
_NAME = {"properties": {"name": {"type": "string", "maxLength": 253, "description": "Name of the variable."}}}
Volumes = Annotated[
    list[Annotated[dict[str, Any], Field(max_length=64, json_schema_extra=_VOLUME)]], Field(max_length=64)
]
Variables = Annotated[
    list[Annotated[dict[str, Any], Field(max_length=64, json_schema_extra=_NAME)]], Field(max_length=256)
]


class Resources(Model):
    """Requests and limits of the trainer container."""

    requests: Quantities | None = Field(None, description="Such as cpu, memory, ephemeral-storage.")
    limits: Quantities | None = Field(None, description="Such as cpu, memory, ephemeral-storage.")


_HOST = {
    **_OBJECT,
    "properties": {"host": {"type": "string", "maxLength": 253, "description": "Refused: only the pod itself."}},
    "description": "As in a pod, without a host.",
}
_HANDLER = {"properties": dict.fromkeys(("httpGet", "tcpSocket"), _HOST)}
# A handler of a probe or, in _HOOKS, of a lifecycle hook: CEL rules must see the host that it connects to.
Handler = Annotated[dict[str, Any], Field(max_length=16, json_schema_extra=_HANDLER)]
_HOOKS = {
    "properties": {
        "postStart": {**_OBJECT, **_HANDLER, "description": "Runs at the start of the container."},
        "preStop": {**_OBJECT, **_HANDLER, "description": "Runs before SIGTERM; only of sidecars."},
    }
}
Lifecycle = Annotated[dict[str, Any], Field(max_length=8, json_schema_extra=_HOOKS)]
_ADDRESS = {"type": "string", "maxLength": 253}
_NAME_SERVERS = {
    "properties": {"nameservers": {"type": "array", "maxItems": 8, "items": _ADDRESS, "description": "IP addresses."}}
}
DNSConfig = Annotated[dict[str, Any], Field(max_length=8, json_schema_extra=_NAME_SERVERS)]


class InitContainer(Model):
    """A container that runs before the trainer; with restartPolicy: Always, a sidecar that runs beside it."""

    name: Annotated[str, StringConstraints(min_length=1, max_length=63, pattern=patterns.DNS_LABEL)] = Field(
        description="Name of the container."
    )
    image: Annotated[str, StringConstraints(min_length=1, max_length=512)] = Field(description="Image of it.")
    command: Annotated[list[Text], Field(max_length=64)] | None = Field(None, description="As in a container.")
    args: Annotated[list[Text], Field(max_length=64)] | None = Field(None, description="As in a container.")
    working_dir: Annotated[str, StringConstraints(max_length=1024)] | None = Field(
        None, description="As in a container."
    )
    env: Variables | None = Field(None, description="As in a container.")
    env_from: KubernetesObjects | None = Field(None, description="As in a container.")
    resources: Resources | None = Field(None, description="Of this container; no accelerators.")
    volume_mounts: KubernetesObjects | None = Field(None, description="As in a container.")
    restart_policy: Literal["Always"] | None = Field(
        None, description="Always: a sidecar, which is started before the trainer and ended after it."
    )
    startup_probe: Handler | None = Field(None, description="Of a sidecar: the trainer starts when it has succeeded.")
    lifecycle: Lifecycle | None = Field(None, description="Of a sidecar.")


class PodTemplate(Model):
    """The pod settings that a job may change."""

    image: Annotated[str, StringConstraints(min_length=1, max_length=512)] | None = Field(
        None, description="Trainer image."
    )
    image_pull_secrets: KubernetesObjects | None = Field(None, description="As in a pod.")
    env: Variables | None = Field(None, description="As in a container.")
    env_from: KubernetesObjects | None = Field(None, description="As in a container.")
    resources: Resources | None = Field(None, description="Of the trainer container, accelerators aside.")
    volumes: Volumes | None = Field(None, description="As in a pod; no hostPath, nfs and the like.")
    volume_mounts: KubernetesObjects | None = Field(None, description="As in a container.")
    service_account_name: Name | None = Field(None, description="Service account of the pods.")
    node_selector: Labels | None = Field(None, description="Added to the accelerator's own.")
    tolerations: KubernetesObjects | None = Field(None, description="Added to the accelerator's own.")
    labels: Labels | None = Field(None, description="Added to the pods.")
    annotations: Labels | None = Field(None, description="Added to the pods.")
    affinity: KubernetesObject | None = Field(None, description="As in a pod.")
    topology_spread_constraints: KubernetesObjects | None = Field(
        None, description="As in a pod. Without a labelSelector they count the pods of the attempt."
    )
    runtime_class_name: ObjectName | None = Field(None, description="As in a pod.")
    init_containers: Annotated[list[InitContainer], Field(max_length=8)] | None = Field(
        None, description="Containers before the trainer, and sidecars; before the one that prepares the source."
    )
    dns_policy: Literal["ClusterFirst", "None"] | None = Field(
        None, description="As in a pod; the workers' names are those of the cluster's DNS."
    )
    dns_config: DNSConfig | None = Field(None, description="As in a pod.")
    lifecycle: Lifecycle | None = Field(None, description="postStart of the trainer container.")
