"""The short-lived pod by which `mptj fetch` reads the run folder of a job from its volume.

It runs the image of the job, mounts nothing but that volume, read only, passes the pod security level `restricted`,
and is owned by the job. It is deleted when the context ends, also by Ctrl-C; if that request cannot be sent, it ends
by itself after `LONGEST_SECONDS`.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self

from mptraining.cluster.api import ApiServer
from mptraining.cluster.errors import ClusterProblem, NotAllowed, NotFound
from mptraining_api.kubernetes_api import EVENTS, PERSISTENT_VOLUME_CLAIMS, PODS, Raw
from mptraining_api.launch import KEEP_COMMAND
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
        found = self.volume.get("persistentVolumeClaim")
        return str(found["claimName"]) if found else None

    @property
    def persistent(self) -> bool:
        return any(kind in self.volume for kind in _PERSISTENT)


def absolute_path(output: str) -> str:
    """Return the path in the pod of an `output.uri` that is no bucket."""
    return posixpath.normpath(posixpath.join(_WORKING_FOLDER, output.removeprefix("file://")))


def volume_of(output: str, template: Mapping[str, Any]) -> Mounted | None:
    """Return the volume of the pod template that holds the path `output`; None if it is on the pod's own disk."""
    path = absolute_path(output)
    spec = template["spec"]
    trainer = next(each for each in spec["containers"] if each["name"] == TRAINER_CONTAINER)
    volumes = {each["name"]: each for each in spec.get("volumes") or ()}

    def above(mount: Mapping[str, Any]) -> bool:
        folder = posixpath.normpath(mount["mountPath"])
        return path == folder or path.startswith(folder.rstrip("/") + "/")

    mounts = [each for each in trainer.get("volumeMounts") or () if above(each)]
    if not mounts:
        return None
    mount = max(mounts, key=lambda each: len(posixpath.normpath(each["mountPath"])))
    return Mounted(path, volumes.get(mount["name"], {}), mount)


def pod_body(
    name: str, job: Mapping[str, Any], template: Mapping[str, Any], mounted: Mounted, node: str | None
) -> dict[str, Any]:
    """Return the pod `name`; on `node` if it is given, where another pod has mounted the claim."""
    worker = template["spec"]
    trainer = next(each for each in worker["containers"] if each["name"] == TRAINER_CONTAINER)
    written = (job.get("spec") or {}).get("podTemplate") or {}
    placement: dict[str, Any] = {}
    if node is not None:
        field = {"key": "metadata.name", "operator": "In", "values": [node]}
        required = {"nodeSelectorTerms": [{"matchFields": [field]}]}
        placement["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
        # The job's machine may be tainted for accelerators.
        placement["tolerations"] = [{"operator": "Exists"}]
    else:
        # Without the accelerator's own selector: any machine can read a volume.
        placement["tolerations"] = worker.get("tolerations") or []
        placement["nodeSelector"] = written.get("nodeSelector") or {}
    account: dict[str, Any] = {
        key: worker[key] for key in ("serviceAccountName", "automountServiceAccountToken") if key in worker
    }
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
            **account,
            **({"imagePullSecrets": worker["imagePullSecrets"]} if worker.get("imagePullSecrets") else {}),
            **placement,
            "containers": [
                {
                    "name": TRAINER_CONTAINER,
                    "image": trainer["image"],
                    "command": [*KEEP_COMMAND, mounted.path, str(LONGEST_SECONDS)],
                    "securityContext": trainer.get("securityContext") or {},
                    # A quota may require both of every container.
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
        uses = any((each.get("persistentVolumeClaim") or {}).get("claimName") == name for each in volumes)
        if uses and node and (pod.get("status") or {}).get("phase") in ("Pending", "Running"):
            return str(node)
    return None


def is_running(pod: Mapping[str, Any]) -> bool:
    """Return whether the pod's reader runs, which its readiness does not show: it has no probe."""
    states = [each.get("state") or {} for each in _statuses(pod) if each.get("name") == TRAINER_CONTAINER]
    return any("running" in state for state in states)


def start_problem(pod: Mapping[str, Any], warnings: Sequence[Mapping[str, Any]], claim: str | None) -> str | None:
    """Return why the pod does not start, with the next step; None if it may still start.

    `warnings` are the Warning events about it.
    """
    return (
        _end(pod)
        or next(filter(None, map(_container_problem, _statuses(pod))), None)
        or next(filter(None, (_volume_problem(each, claim) for each in warnings)), None)
        or _missing_claim(pod, claim)
    )


def _end(pod: Mapping[str, Any]) -> str | None:
    status = pod.get("status") or {}
    if status.get("phase") not in ("Failed", "Succeeded"):
        return None
    ended = [(each.get("state") or {}).get("terminated") or {} for each in _statuses(pod)]
    message = status.get("message") or next((each["message"] for each in ended if each.get("message")), "")
    return f"it ended: {message or status.get('reason') or 'no message'}"


def _container_problem(container: Mapping[str, Any]) -> str | None:
    waiting = (container.get("state") or {}).get("waiting") or {}
    reason, message = str(waiting.get("reason") or ""), waiting.get("message") or ""
    if reason in _IMAGE:
        return f"its image cannot be pulled: {message or reason}"
    return f"{reason}: {message}" if reason.startswith("Create") else None


def _volume_problem(warning: Mapping[str, Any], claim: str | None) -> str | None:
    message = str(warning.get("message") or "")
    if warning.get("reason") not in _VOLUME:
        return None
    if "Multi-Attach" not in message:
        return f"its volume cannot be mounted: {message}"
    return (
        f"the claim {claim} is ReadWriteOnce and mounted on another machine: {message}. Fetch again when the pod that "
        "uses it has ended: kubectl get pods"
    )


def _missing_claim(pod: Mapping[str, Any], claim: str | None) -> str | None:
    message = _unscheduled(pod)
    if "persistentvolumeclaim" not in message or "not found" not in message:
        return None
    return f"the claim {claim} does not exist any more, and the run folder with it: {message}"


def _statuses(pod: Mapping[str, Any]) -> list[Raw]:
    return list((pod.get("status") or {}).get("containerStatuses") or ())


def _unscheduled(pod: Mapping[str, Any]) -> str:
    """Return the scheduler's message; empty when the pod has a node."""
    conditions = (pod.get("status") or {}).get("conditions") or ()
    waits = [each for each in conditions if each.get("type") == "PodScheduled" and each.get("status") == "False"]
    return str(waits[0].get("message") or "no machine takes it") if waits else ""


class ReaderPod:
    """Context manager: creates the pod `name`, waits until it runs, and deletes it.

    Raises ClusterProblem with the reason why it cannot be created or does not start. `wait` pauses for some seconds.
    """

    def __init__(
        self,
        server: ApiServer,
        name: str,
        job: Mapping[str, Any],
        template: Mapping[str, Any],
        mounted: Mounted,
        *,
        clock: Callable[[], float],
        wait: Callable[[float], object],
    ) -> None:
        self._server = server
        self._job = job
        self._template = template
        self._mounted = mounted
        self._clock = clock
        self._wait = wait
        self.name = name

    def __enter__(self) -> Self:
        body = pod_body(self.name, self._job, self._template, self._mounted, self._node())
        try:
            self._server.create(PODS, body)
            self._start()
        except BaseException:
            # The name is chosen by the client, so that a pod whose creation was interrupted is deleted too.
            self._delete()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._delete()

    def _delete(self) -> None:
        # It may not exist. If the request is not answered, the pod ends by its deadline, or with the job.
        with suppress(ClusterProblem):
            self._server.delete(PODS, self.name, grace_seconds=0)

    def _node(self) -> str | None:
        claim = self._mounted.claim
        if claim is None:
            return None
        try:
            found = self._server.get(PERSISTENT_VOLUME_CLAIMS, claim)
        except NotFound:
            raise ClusterProblem(
                claim,
                f"the claim with the run folder {self._mounted.path} does not exist any more, and the folder with it",
                next_step="Train again, on a claim that is kept or with a bucket as output.uri.",
            ) from None
        except NotAllowed:
            # A user who may create pods may lack the right to read claims: the scheduler reports one that is gone.
            return None
        return node_of_claim(found, self._server.items(PODS))

    def _start(self) -> None:
        began = self._clock()
        while True:
            pod = self._server.get(PODS, self.name)
            if is_running(pod):
                return
            waited = self._clock() - began
            warnings = self._warnings(pod) if waited >= _EVENTS_AFTER_SECONDS else []
            problem = start_problem(pod, warnings, self._mounted.claim)
            if problem is None and waited >= START_SECONDS:
                problem = f"it has not started within {START_SECONDS:g} s. {_unscheduled(pod)}"
            if problem is not None:
                raise ClusterProblem(self.name, f"the pod that reads {self._mounted.path} cannot start: {problem}")
            self._wait(_POLL_SECONDS)

    def _warnings(self, pod: Mapping[str, Any]) -> list[Raw]:
        selector = f"involvedObject.uid={pod['metadata']['uid']},type=Warning"
        try:
            return self._server.items(EVENTS, fieldSelector=selector)
        except NotAllowed:
            return []
