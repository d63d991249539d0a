"""Fields of the pods that a job may set: spec.podTemplate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, WithJsonSchema

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
# The API server validates Kubernetes objects when the pod is created, the rules of `rules.pod_template` before.
KubernetesObject = Annotated[dict[str, Any], Field(max_length=64)]
KubernetesObjects = Annotated[list[KubernetesObject], Field(max_length=64)]
_OBJECT = {"type": "object", "additionalProperties": True, "maxProperties": 64}
# The volume types that Kubernetes' `restricted` Pod Security Standard admits, and images. Other storage (NFS, a disk)
# needs a PersistentVolume, which an administrator or a storage class creates.
VOLUME_KINDS = (
    *("configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "image"),
    *("persistentVolumeClaim", "projected", "secret"),
)
Variables = Annotated[list[KubernetesObject], Field(max_length=256)]


class Resources(Model):
    """Requests and limits of the trainer container."""

    requests: Quantities | None = Field(None, description="Such as cpu, memory, ephemeral-storage.")
    limits: Quantities | None = Field(None, description="Such as cpu, memory, ephemeral-storage.")


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
    startup_probe: KubernetesObject | None = Field(
        None, description="Of a sidecar: the trainer starts when it has succeeded."
    )
    lifecycle: KubernetesObject | None = Field(None, description="Of a sidecar.")


# The resource has them without a schema of its own, which would be a third of that of a pod; the operator checks them.
InitContainers = Annotated[
    list[InitContainer],
    Field(max_length=8),
    WithJsonSchema({"type": "array", "maxItems": 8, "items": _OBJECT}),
]


class PodTemplate(Model):
    """The pod settings that a job may change."""

    image: Annotated[str, StringConstraints(min_length=1, max_length=512)] | None = Field(
        None, description="Trainer image."
    )
    image_pull_secrets: KubernetesObjects | None = Field(None, description="As in a pod.")
    env: Variables | None = Field(None, description="As in a container.")
    env_from: KubernetesObjects | None = Field(None, description="As in a container.")
    resources: Resources | None = Field(None, description="Of the trainer container, accelerators aside.")
    volumes: KubernetesObjects | None = Field(None, description="As in a pod; no hostPath, nfs and the like.")
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
    init_containers: InitContainers | None = Field(
        None, description="Containers before the trainer, and sidecars; before the one that prepares the source."
    )
    dns_policy: Literal["ClusterFirst", "None"] | None = Field(
        None, description="As in a pod; the workers' names are those of the cluster's DNS."
    )
    dns_config: KubernetesObject | None = Field(None, description="As in a pod.")
    lifecycle: KubernetesObject | None = Field(None, description="postStart of the trainer container.")


def claim_name(volume: Mapping[str, Any]) -> str | None:
    """Return the name of the claim that a pod's volume mounts; None for other volumes, and for a claim without one."""
    claim = volume.get("persistentVolumeClaim")
    name = claim.get("claimName") if isinstance(claim, Mapping) else None
    return None if name is None else str(name)
