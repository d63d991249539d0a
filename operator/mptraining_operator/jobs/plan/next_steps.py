"""Next steps for the messages by which Kubernetes refuses pods, cannot place them, or does not start a container.

Each step names the field of the job to change. Sources of the messages: Kubernetes 1.34, plugin/pkg/admission and
pkg/scheduler/framework/plugins.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from mptraining_api.pods.images import has_moving_tag

_FIELD = "podTemplate.resources"
_MUST_SPECIFY = re.compile(r"must specify ([^\n]*)")
_NAMES = re.compile(r"(?:limits|requests)\.[\w./-]+")
_RANGE = re.compile(r"(?:minimum|maximum) (\S+) usage per (?:Container|Pod) is ")
_RATIO = re.compile(r"(\S+) max limit to request ratio per ")
_LIMIT_BELOW_REQUEST = re.compile(r"must be less than or equal to (\S+) limit")
_QUOTA = re.compile(r"exceeded quota: ([\w.-]+)")
# Waiting for others does not help a worker that exceeds an unused quota alone.
_UNUSED = re.compile(r"used: (?:[\w./-]+=0,)+ limited")
_OWN_REQUESTS = "without it the operator requests 250m CPU and 512Mi of each container on CPUs"

# The first that matches applies.
_REFUSED: tuple[tuple[str, str], ...] = (
    (r"violates PodSecurity", "Remove what it names from podTemplate, or use a namespace whose level allows it."),
    (r"serviceaccount .* not found", "Create the ServiceAccount, or correct podTemplate.serviceAccountName."),
    (r"RuntimeClass .*not found", "Create the RuntimeClass, or correct podTemplate.runtimeClassName."),
    (r"no PriorityClass with name", "Create the PriorityClass, or correct scheduling.priorityClassName."),
    (r"failed calling webhook", "The webhook does not answer: ask its administrator. The operator tries again."),
)  # fmt: skip
_REFUSED_OTHERWISE = "Ask the administrator of the namespace's quota and policies."

_UNPLACED: tuple[tuple[str, str], ...] = (
    (r"persistentvolumeclaim .* not found", "Create the claim, or correct podTemplate.volumes."),
    (r"unbound immediate PersistentVolumeClaims", "Its claim has no volume: kubectl describe pvc -n {namespace}"),
    (r"volume node affinity conflict", "The volume of its claim is in a place without a free machine of this kind."),
    (r"untolerated taint", "Write a toleration for the taint in podTemplate.tolerations, or remove the taint."),
)  # fmt: skip
_SELECTOR = "didn't match Pod's node affinity/selector"
_INSUFFICIENT = re.compile(r"Insufficient ([\w./-]+\w)")

_CONTAINER: tuple[tuple[str, str], ...] = (
    (
        r"(secret|configmap) .*not found|couldn't find key",
        "Create what is missing, or correct env or envFrom of podTemplate.",
    ),
    (r"CrashLoopBackOff", "Its output: kubectl logs {pod} --container {container} --namespace {namespace}"),
)


def sentence(message: str) -> str:
    """Return the message with a full stop."""
    message = message.rstrip()
    return message if message.endswith((".", "…", "?")) else f"{message}."


def of_refusal(message: str, namespace: str) -> str:
    """Return the next step for a child or a pod that the API server refuses."""
    if missing := _MUST_SPECIFY.search(message):
        resources = sorted(set(_NAMES.findall(missing[1])))
        fields = " and ".join(f"{_FIELD}.{name}" for name in resources) or _FIELD
        return f"Write {fields}: the quota requires it of every container."
    if below := _LIMIT_BELOW_REQUEST.search(message):
        return (
            f"Write {_FIELD}.limits.{below[1]}: a LimitRange of the namespace sets a lower limit than the request "
            f"({_OWN_REQUESTS})."
        )
    if outside := _RANGE.search(message) or _RATIO.search(message):
        name = outside[1]
        return (
            f"Write {_FIELD}.requests.{name} and {_FIELD}.limits.{name} within the LimitRange ({_OWN_REQUESTS}): "
            f"kubectl describe limitrange --namespace {namespace}"
        )
    if quota := _QUOTA.search(message):
        step = (
            f"ower workers or {_FIELD}, or raise the quota: kubectl describe quota {quota[1]} --namespace {namespace}"
        )
        return f"L{step}" if _UNUSED.search(message) else f"It starts when others have ended; or l{step}"
    return _first(_REFUSED, message) or _REFUSED_OTHERWISE


def of_placement(message: str, namespace: str, selector: Mapping[str, str], requests: Mapping[str, str]) -> str:
    """Return the next step for a pod without a node; `selector` and `requests` are what each worker asks for."""
    steps = []
    if _SELECTOR in message and selector:
        labels = ",".join(f"{name}={value}" for name, value in selector.items())
        steps.append(f"Each worker needs a node with the labels {labels} (kubectl get nodes --selector {labels}).")
    lacking = dict.fromkeys(name for name in _INSUFFICIENT.findall(message) if name in requests)
    if lacking:
        asked = ", ".join(f"{requests[name]} {name}" for name in lacking)
        steps.append(f"Each worker requests {asked}; lower accelerator.countPerWorker or {_FIELD}, or add machines.")
    # The taint of a control plane is in most messages: alone it explains the wait.
    return " ".join(steps) or _first(_UNPLACED, message).format(namespace=namespace)


def of_image(image: str) -> str:
    """Return the next step for an image that cannot be pulled."""
    step = "Check spec.podTemplate.image and imagePullSecrets."
    if image and has_moving_tag(image):
        return f"{step} Also an image that the node has is pulled if its tag is latest or missing: give another tag."
    return step


def of_container(message: str, namespace: str, pod: str, container: str) -> str:
    """Return the next step for a container that does not start."""
    step = _first(_CONTAINER, message) or "More: kubectl describe pod {pod} --namespace {namespace}"
    return step.format(namespace=namespace, pod=pod, container=container)


def _first(steps: tuple[tuple[str, str], ...], message: str) -> str:
    return next((step for pattern, step in steps if re.search(pattern, message)), "")
