"""The short-lived pod by which `mptj fetch` reads the run folder of a job from its volume.

It runs the image of the job, mounts only that volume, read only, passes the pod security level `restricted`,
and is owned by the job. It is deleted when the context ends, also by Ctrl-C; if that request cannot be sent, it ends
by itself after `LONGEST_SECONDS`.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from mptraining.cluster.api import ApiServer
from mptraining.cluster.errors import ClusterProblem, NotAllowed, NotFound
from mptraining_api.kubernetes_api import EVENTS, PERSISTENT_VOLUME_CLAIMS, PODS, Raw
from mptraining_api.launch import KEEP_COMMAND
from mptraining_api.pods.fields import claim_name
from mptraining_api.spec import API_VERSION, GROUP, KIND
from mptraining_api.status import TRAINER_CONTAINER

# The label with the job's name. The label of the workers would make the operator wait for this pod's end.
READER_OF = f"{GROUP}/reader-of"
LONGEST_SECONDS = 6 * 3600
# A large image may have to be pulled on a new node.
START_SECONDS = 300.0
_POLL_SECONDS = 0.5
# Events are read when the status has not explained the wait for this time.
_EVENTS_AFTER_SECONDS = 5.0
# The images' working folder, which relative paths of a job start from.
_WORKING_FOLDER = "/tmp"  # noqa: S108 - the pod's own
_SCRATCH = "reader-tmp"
_IMAGE = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull")
_VOLUME = ("FailedMount", "FailedAttachVolume")
# Volume types whose data outlives a pod.
_PERSISTENT = ("persistentVolumeClaim", "csi")


@dataclass(frozen=True, slots=True)
class Mounted:
    """The volume of a pod template that holds a path, with its mount; `claim` is that of a persistentVolumeClaim."""

    path: str
    volume: Mapping[str, Any]
    mount: Mapping[str, Any]

    @property
    def claim(self) -> str | None:
        return claim_name(self.volume)

    @property
    def persistent(self) -> bool:
        return any(kind in self.volume for kind in _PERSISTENT)


def absolute_path(output: str) -> str:
    """Return the path in the pod of an `output.uri` that is no bucket."""
    return posixpath.normpath(posixpath.join(_WORKING_FOLDER, output.removeprefix("file://")))


def volume_of(output: str, template: Mapping[str, Any]) -> Mounted | None:
    """Return the volume of the pod template that holds the path `output`; None if it is on the pod's own disk."""
    path = absolute_path(output)
    volumes = {volume["name"]: volume for volume in template["spec"].get("volumes") or ()}

    def above(mount: Mapping[str, Any]) -> bool:
        folder = posixpath.normpath(mount["mountPath"])
        return path == folder or path.startswith(folder.rstrip("/") + "/")

    mounts = [mount for mount in _trainer(template).get("volumeMounts") or () if above(mount)]
    if not mounts:
        return None
    mount = max(mounts, key=lambda mount: len(posixpath.normpath(mount["mountPath"])))
    return Mounted(path, volumes.get(mount["name"], {}), mount)


def _trainer(template: Mapping[str, Any]) -> Raw:
    return next(container for container in template["spec"]["containers"] if container["name"] == TRAINER_CONTAINER)


def pod_body(
    name: str, job: Mapping[str, Any], template: Mapping[str, Any], mounted: Mounted, node: str | None
) -> dict[str, Any]:
    """Return the pod `name`; on `node` if it is given, where another pod has mounted the claim."""
    worker, trainer = template["spec"], _trainer(template)
    written = (job.get("spec") or {}).get("podTemplate") or {}
    placement: dict[str, Any]
    if node is not None:
        required = {
            "nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}]
        }
        affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
        # The job's machine may be tainted for accelerators.
        placement = {"affinity": affinity, "tolerations": [{"operator": "Exists"}]}
    else:
        # Any machine can read a volume, so the accelerator's selector is left out.
        placement = {
            "tolerations": worker.get("tolerations") or [],
            "nodeSelector": written.get("nodeSelector") or {},
        }
    account = ("serviceAccountName", "automountServiceAccountToken", "imagePullSecrets")
    owner = {"apiVersion": API_VERSION, "kind": KIND, "name": job["metadata"]["name"], "uid": job["metadata"]["uid"]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "labels": {READER_OF: job["metadata"]["name"], "app.kubernetes.io/managed-by": "mptj"},
            # Such as those by which a CSI driver adds its sidecar.
            "annotations": dict(written.get("annotations") or {}),
            "ownerReferences": [owner],
        },
        "spec": {
            "restartPolicy": "Never",
            "activeDeadlineSeconds": LONGEST_SECONDS,
            "terminationGracePeriodSeconds": 1,
            "enableServiceLinks": False,
            "securityContext": worker.get("securityContext") or {},
            **{key: worker[key] for key in account if worker.get(key) is not None},
            **placement,
            "containers": [
                {
                    "name": TRAINER_CONTAINER,
                    "image": trainer["image"],
                    "command": [*KEEP_COMMAND, mounted.path, str(LONGEST_SECONDS)],
                    "securityContext": trainer.get("securityContext") or {},
                    # Some ResourceQuotas require requests and limits on every container.
                    "resources": {
                        "requests": {"cpu": "100m", "memory": "128Mi"},
                        "limits": {"cpu": "1", "memory": "256Mi"},
                    },
                    "volumeMounts": [
                        {**mounted.mount, "readOnly": True},
                        {"name": _SCRATCH, "mountPath": "/tmp"},  # noqa: S108 - the pod's own
                    ],
                }
            ],
            "volumes": [dict(mounted.volume), {"name": _SCRATCH, "emptyDir": {}}],
        },
    }


def node_of_claim(claim: Mapping[str, Any], pods: Sequence[Mapping[str, Any]]) -> str | None:
    """Return the node where a live pod has mounted the claim, if only one node can mount it at a time."""
    modes = set((claim.get("status") or {}).get("accessModes") or claim["spec"].get("accessModes") or ())
    if modes & {"ReadWriteMany", "ReadOnlyMany"}:
        return None
    name = claim["metadata"]["name"]
    for pod in pods:
        volumes, node = pod["spec"].get("volumes") or (), pod["spec"].get("nodeName")
        uses = name in map(claim_name, volumes)
        if uses and node and (pod.get("status") or {}).get("phase") in ("Pending", "Running"):
            return str(node)
    return None


def is_running(pod: Mapping[str, Any]) -> bool:
    """Return whether the pod's reader runs, which its readiness does not show: it has no probe."""
    return any(name == TRAINER_CONTAINER and "running" in state for name, state in _states(pod))


def start_problems(pod: Mapping[str, Any], warnings: Sequence[Mapping[str, Any]], claim: str | None) -> Iterator[str]:
    """Yield why the pod does not start, with the next step; nothing if it may still start.

    `warnings` are the Warning events about it.
    """
    status, states = pod.get("status") or {}, [state for _, state in _states(pod)]
    if status.get("phase") in ("Failed", "Succeeded"):
        ended = ((state.get("terminated") or {}).get("message") for state in states)
        yield f"it ended: {next(filter(None, (status.get('message'), *ended, status.get('reason'))), 'no message')}"
    for waiting in (state.get("waiting") or {} for state in states):
        reason, message = str(waiting.get("reason") or ""), waiting.get("message") or ""
        if reason in _IMAGE:
            yield f"its image cannot be pulled: {message or reason}"
        elif reason.startswith("Create"):
            yield f"{reason}: {message}"
    for message in (str(warning.get("message") or "") for warning in warnings if warning.get("reason") in _VOLUME):
        if "Multi-Attach" in message:
            step = "Fetch again when the pod that uses it has ended: kubectl get pods"
            yield f"the claim {claim} is ReadWriteOnce and mounted on another machine: {message}. {step}"
        yield f"its volume cannot be mounted: {message}"
    unscheduled = _unscheduled(pod)
    if "persistentvolumeclaim" in unscheduled and "not found" in unscheduled:
        yield f"the claim {claim} does not exist any more, and the run folder with it: {unscheduled}"


def _states(pod: Mapping[str, Any]) -> list[tuple[str, Raw]]:
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    return [(str(container.get("name")), container.get("state") or {}) for container in statuses]


def _unscheduled(pod: Mapping[str, Any]) -> str:
    """Return the scheduler's message; empty when the pod has a node."""
    conditions = (pod.get("status") or {}).get("conditions") or ()
    waits = [
        condition
        for condition in conditions
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False"
    ]
    return str(waits[0].get("message") or "no machine takes it") if waits else ""


@contextmanager
def reader_pod(
    server: ApiServer,
    name: str,
    job: Mapping[str, Any],
    template: Mapping[str, Any],
    mounted: Mounted,
    *,
    clock: Callable[[], float],
    wait: Callable[[float], object],
) -> Iterator[None]:
    """Create the pod `name` and wait until it runs; delete it at the end.

    Raises ClusterProblem with the reason why it cannot be created or does not start. `wait` pauses for some seconds.
    """
    body = pod_body(name, job, template, mounted, _node(server, mounted))
    began = clock()
    try:
        server.create(PODS, body)
        while not is_running(pod := server.get(PODS, name)):
            waited = clock() - began
            warnings = _warnings(server, pod) if waited >= _EVENTS_AFTER_SECONDS else []
            problem = next(start_problems(pod, warnings, mounted.claim), None)
            if problem is None and waited >= START_SECONDS:
                problem = f"it has not started within {START_SECONDS:g} s. {_unscheduled(pod)}"
            if problem is not None:
                raise ClusterProblem(name, f"the pod that reads {mounted.path} cannot start: {problem}")
            wait(_POLL_SECONDS)
        yield
    finally:
        # The name is chosen by the client, so that a pod whose creation was interrupted is deleted too. It may not
        # exist. If the request is not answered, the pod ends by its deadline, or with the job.
        with suppress(ClusterProblem):
            server.delete(PODS, name, grace_seconds=0)


def _node(server: ApiServer, mounted: Mounted) -> str | None:
    if mounted.claim is None:
        return None
    try:
        claim = server.get(PERSISTENT_VOLUME_CLAIMS, mounted.claim)
    except NotFound:
        raise ClusterProblem(
            mounted.claim,
            f"the claim with the run folder {mounted.path} does not exist any more, and the folder with it",
            next_step="Train again, on a claim that is kept or with a bucket as output.uri.",
        ) from None
    except NotAllowed:
        # A user who may create pods may lack the right to read claims: the scheduler reports one that is gone.
        return None
    return node_of_claim(claim, server.items(PODS))


def _warnings(server: ApiServer, pod: Mapping[str, Any]) -> list[Raw]:
    try:
        return server.items(EVENTS, fieldSelector=f"involvedObject.uid={pod['metadata']['uid']},type=Warning")
    except NotAllowed:
        return []
