"""Containers of a job's own that run before the trainer, and sidecars; they are secured as the trainer is.

The kubelet ends sidecars after the trainer has ended, so that the Indexed Job ends with the trainer.
"""

from __future__ import annotations

from typing import Any

from mptraining_api.pods.fields import InitContainer, PodTemplate, Resources

CONTAINER_SECURITY = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
}
# A quota may require requests of every container; those of sidecars are added to the trainer's.
_REQUESTS = {"cpu": "50m", "memory": "64Mi"}
# NVIDIA's images would otherwise get all GPUs of the node if NVIDIA's runtime is its default.
_NO_GPUS = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}


def init_containers(template: PodTemplate) -> list[dict[str, Any]]:
    """Return the init containers and sidecars of the job, in its order."""
    return [_container(each) for each in template.init_containers or ()]


def _container(written: InitContainer) -> dict[str, Any]:
    resources = written.resources or Resources()
    limits, requests = resources.limits or {}, resources.requests or {}
    defaults = {name: value for name, value in _REQUESTS.items() if name not in limits}
    return {
        **written.to_document(),
        "env": [_NO_GPUS, *(written.env or ())],
        "resources": {"requests": {**defaults, **requests}, **({"limits": limits} if limits else {})},
        "securityContext": CONTAINER_SECURITY,
    }
