"""The template of a replica (Chief, Master or Worker) as program, accelerator, podTemplate and scheduling."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from mptraining.tfjob.fields import Section
from mptraining.tfjob.machine import accelerator, devices
from mptraining.tfjob.program import CommandLine, NoScript, expanded, parse
from mptraining_api.pods.fields import OTHER_VOLUME_KINDS, VOLUME_KINDS
from mptraining_api.validation.mistakes import FieldPath

# The container that the training operator sets TF_CONFIG in.
_MAIN = "tensorflow"
# Labels that the training operator puts on its pods, by which affinities of TFJobs select them.
_ITS_LABELS = re.compile(r"training\.kubeflow\.org/|^(tf-(replica|job)|group_name|job-(name|role))")
_SET_BY_LAUNCH = ("TF_CONFIG", "JOB_COMPLETION_INDEX", "TF_USE_LEGACY_KERAS", "NVIDIA_VISIBLE_DEVICES")
_POD_ADVICE = {
    "activeDeadlineSeconds": "runPolicy.activeDeadlineSeconds is the job's.",
    "hostAliases": "A name of the cluster's DNS, or podTemplate.dnsConfig, does the same.",
    "hostNetwork": "Workers talk over the pods' network, and get no access to their machine.",
    "hostIPC": "Workers get no access to their machine.",
    "hostPID": "Workers get no access to their machine.",
    "nodeName": "podTemplate.nodeSelector and affinity choose nodes.",
    "securityContext": "Pods run as a user without rights, under Kubernetes' restricted profile.",
    "shareProcessNamespace": "",
}
_POD_FIELDS = (
    *("ephemeralContainers", "hostUsers", "hostname", "os", "overhead", "priority", "readinessGates"),
    *("resourceClaims", "schedulingGates", "setHostnameAsFQDN", "subdomain"),
)
_CONTAINER_ADVICE = {
    "livenessProbe": "runPolicy.progressDeadlineSeconds restarts a job that makes no step.",
    "readinessProbe": "A worker is ready when it has joined the others.",
    "startupProbe": "A worker is ready when it has joined the others.",
    "securityContext": "Pods run as a user without rights, under Kubernetes' restricted profile.",
}
_CONTAINER_FIELDS = ("resizePolicy", "restartPolicy", "volumeDevices")
_INIT_FIELDS = ("command", "args", "workingDir", "env", "envFrom", "resources", "volumeMounts", "restartPolicy")


@dataclass(frozen=True, slots=True)
class Choices:
    """What the user decides, since a TFJob does not have it: flags of `mptj convert-tfjob`."""

    accelerator: str | None = None
    script: str | None = None
    image: str | None = None
    run_folder: str | None = None


@dataclass(slots=True)
class Replica:
    """One replica type as fields of the job. `code` is the ConfigMap with the program, if a volume has it."""

    where: FieldPath
    count: int
    restart: str | None = None
    accelerator: dict[str, Any] = field(default_factory=dict)
    script: dict[str, Any] = field(default_factory=dict)
    code: str | None = None
    pod: dict[str, Any] = field(default_factory=dict)
    scheduling: dict[str, Any] = field(default_factory=dict)

    def differences(self, other: Replica) -> list[str]:
        """Return the parts in which the replicas differ."""
        names = ("accelerator", "script", "code", "pod", "scheduling")
        return [each for each in names if getattr(self, each) != getattr(other, each)]


def convert_replica(content: Section, choices: Choices) -> Replica:
    """Convert one entry of spec.tfReplicaSpecs; what cannot be is refused in the report."""
    replicas = content.number("replicas")
    if replicas is not None:
        content.carried("replicas", "spec.nodes")
    found = Replica(content.path, 1 if replicas is None else replicas, content.text("restartPolicy"))
    if found.restart:
        reason = "all workers restart together, from the last checkpoint"
        content.report.leave_out(content.at("restartPolicy"), reason)
    content.leave_out(["tfReplicaType"], "the name of the section says it")
    template = content.section("template")
    metadata = template.section("metadata")
    metadata.leave_out(["name", "creationTimestamp", "namespace"], "the operator names pods")
    for name in ("labels", "annotations"):
        metadata.carry(name, f"spec.podTemplate.{name}", found.pod)
    metadata.end()
    _pod(template.section("spec"), found, choices)
    template.end()
    content.end(("template",))
    return found


def _pod(pod: Section, found: Replica, choices: Choices) -> None:
    into = found.pod
    pod.leave_out(["restartPolicy"], "all workers restart together, from the last checkpoint")
    pod.leave_out(["terminationGracePeriodSeconds"], "the operator gives workers the time to save a checkpoint")
    pod.leave_out(["automountServiceAccountToken"], "the service account's own setting counts")
    pod.leave_out(["enableServiceLinks", "preemptionPolicy"], "no effect on training; the default counts")
    _host_access(pod)
    selector = {str(key): str(value) for key, value in (pod.take("nodeSelector", dict, "labels") or {}).items()}
    if selector:
        pod.carried("nodeSelector", "spec.podTemplate.nodeSelector")
    for name in ("imagePullSecrets", "tolerations", "affinity", "topologySpreadConstraints"):
        pod.carry(name, f"spec.podTemplate.{name}", into)
        if name in into and _names_its_pods(into[name]):
            reason = "selects by labels that the training operator puts on pods, and matches none here: correct it"
            pod.report.decide(f"spec.podTemplate.{name}", reason)
    for name in ("runtimeClassName", "dnsPolicy", "dnsConfig"):
        pod.carry(name, f"spec.podTemplate.{name}", into)
    account = next((each for each in ("serviceAccountName", "serviceAccount") if each in pod.names()), None)
    if account:
        pod.carry(account, "spec.podTemplate.serviceAccountName", into, "serviceAccountName")
        pod.leave_out(["serviceAccount"], "the same as serviceAccountName")
    for name in ("priorityClassName", "schedulerName"):
        pod.carry(name, f"spec.scheduling.{name}", found.scheduling)
    _volumes(pod, into)
    _init_containers(pod, into)
    main = _main_container(pod)
    if main is not None:
        _container(main, found, choices, selector)
    if selector:
        into["nodeSelector"] = selector
    pod.end(_POD_FIELDS, _POD_ADVICE)


def _host_access(pod: Section) -> None:
    for name in ("hostNetwork", "hostIPC", "hostPID", "shareProcessNamespace", "securityContext"):
        if name not in pod.names():
            continue
        if pod.take(name, object, ""):
            pod.refuse(name, "has no counterpart", next_step=_POD_ADVICE[name])
        else:
            pod.report.leave_out(pod.at(name), "the default")


def _main_container(pod: Section) -> Section | None:
    """Return the container that trains: the one of the training operator's name, else the first. Refuse the others."""
    containers = pod.sections("containers")
    names = [each.text("name") for each in containers]
    chosen = next((each for each, name in zip(containers, names, strict=True) if name == _MAIN), None)
    main = chosen or (containers[0] if containers else None)
    if main is None:
        pod.report.refuse(pod.at("containers"), "no container", expected="the one that trains")
    for each in containers:
        if each is not main:
            step = (
                "A container that serves the program is a sidecar: podTemplate.initContainers, restartPolicy: Always."
            )
            pod.report.refuse(each.path, "a second container", expected="one container", next_step=step)
    return main


def _names_its_pods(value: object) -> bool:
    if isinstance(value, Mapping):
        keys = [*map(str, value), str(value.get("key", ""))]
        return any(_ITS_LABELS.search(key) for key in keys) or any(map(_names_its_pods, value.values()))
    return isinstance(value, list) and any(map(_names_its_pods, value))


def _volumes(pod: Section, into: dict[str, Any]) -> None:
    kept: list[Any] = []
    for index, volume in enumerate(pod.items("volumes")):
        path: FieldPath = (*pod.at("volumes"), index)
        kinds = sorted(set(volume) - {"name"}) if isinstance(volume, dict) else []
        if len(kinds) == 1 and kinds[0] in VOLUME_KINDS:
            kept.append(volume)
        else:
            told = f"a volume of kind {kinds[0]}" if len(kinds) == 1 and kinds[0] in OTHER_VOLUME_KINDS else "no volume"
            step = "Take a persistentVolumeClaim: its volume may be of any kind."
            pod.report.refuse(path, told, expected=f"one of {', '.join(VOLUME_KINDS)}", next_step=step)
    if kept:
        into["volumes"] = kept
        pod.carried("volumes", "spec.podTemplate.volumes")


def _mounts(container: Section, into: dict[str, Any]) -> None:
    names = {each.get("name") for each in into.get("volumes", ())}
    kept: list[Any] = []
    for index, mount in enumerate(container.items("volumeMounts")):
        if isinstance(mount, dict) and mount.get("name") in names:
            kept.append(mount)
        else:
            container.report.leave_out((*container.at("volumeMounts"), index), "its volume is not in the job")
    if kept:
        into["volumeMounts"] = kept
        container.carried("volumeMounts", "spec.podTemplate.volumeMounts")


def _init_containers(pod: Section, into: dict[str, Any]) -> None:
    kept: list[Any] = []
    for each in pod.sections("initContainers"):
        made: dict[str, Any] = {}
        target = f"spec.podTemplate.initContainers[{len(kept)}]"
        for name in ("name", "image", *_INIT_FIELDS, "startupProbe", "lifecycle"):
            each.carry(name, f"{target}.{name}", made)
        each.leave_out(["imagePullPolicy"], "Kubernetes' default for the image's tag counts")
        each.leave_out(["terminationMessagePath", "terminationMessagePolicy"], "no effect on training")
        each.end((*_CONTAINER_FIELDS, "ports", "stdin", "tty"), _CONTAINER_ADVICE)
        kept.append(made)
    if kept:
        into["initContainers"] = kept


def _container(container: Section, found: Replica, choices: Choices, selector: dict[str, str]) -> None:
    report, into = container.report, found.pod
    image = container.text("image")
    if choices.image is not None:
        into["image"] = choices.image
        report.leave_out(container.at("image"), f"{choices.image} replaces it, by --image")
    elif image:
        reason = "it has no trainer in it; the operator's trainer image runs. An image of your own: --image"
        report.leave_out(container.at("image"), f"{image}: {reason}")
    container.leave_out(["imagePullPolicy"], "Kubernetes' default for the image's tag counts")
    container.leave_out(["ports"], "workers find one another by the operator's Service and port")
    container.leave_out(["stdin", "stdinOnce", "tty"], "no effect on training")
    container.leave_out(
        ["terminationMessagePath", "terminationMessagePolicy"], "the trainer writes its last event there"
    )
    container.carry("envFrom", "spec.podTemplate.envFrom", into)
    _mounts(container, into)
    container.carry("lifecycle", "spec.podTemplate.lifecycle", into)
    environment = _environment(container, into)
    _program(container, found, choices, environment)
    resources: dict[str, Any] = {}
    asked = container.section("resources")
    wanted = devices(asked, resources, report)
    if resources:
        into["resources"] = resources
    found.accelerator = accelerator(wanted, selector, into.get("affinity"), asked.path, choices.accelerator, report)
    container.end(_CONTAINER_FIELDS, _CONTAINER_ADVICE)


def _environment(container: Section, into: dict[str, Any]) -> dict[str, str | None]:
    """Carry the variables over; return their values, None for those that are known in the pod alone."""
    kept, known = list[Any](), dict[str, str | None]()
    for index, each in enumerate(container.items("env")):
        name = str(each.get("name", "")) if isinstance(each, dict) else ""
        if name in _SET_BY_LAUNCH:
            container.report.leave_out((*container.at("env"), index), f"{name} is set for each worker")
            continue
        kept.append(each)
        known[name] = None if isinstance(each, dict) and "valueFrom" in each else str(each.get("value", ""))
    if kept:
        into["env"] = kept
        container.carried("env", "spec.podTemplate.env")
    return known


def _program(container: Section, found: Replica, choices: Choices, environment: Mapping[str, str | None]) -> None:
    report = container.report
    command, arguments = ([str(each) for each in container.items(name)] for name in ("command", "args"))
    folder = container.text("workingDir")
    where = container.at("command" if command else "args" if arguments else "image")
    try:
        words = expanded([*command, *arguments], environment)
        line = parse(words[: len(command)], words[len(command) :])
    except NoScript as problem:
        if choices.script is None:
            report.refuse(where, problem.found, expected="a Python file", next_step=problem.next_step)
            line = CommandLine("train.py")
        else:
            line = CommandLine(choices.script, () if command else tuple(arguments))
            if arguments and not command:
                container.carried("args", "spec.program.script.arguments")
            if command:
                report.leave_out(where, f"{problem.found}; --script {choices.script} replaces it, without arguments")
    else:
        for name, given in (("command", command), ("args", arguments)):
            if given:
                container.carried(name, "spec.program.script")
    if folder:
        report.leave_out(container.at("workingDir"), "a script starts in the folder of its code")
    if line.options:
        report.decide(
            "spec.program.script", f"python {' '.join(line.options)}: the trainer starts the interpreter itself"
        )
    path = choices.script or _path_in_code(line.file, line.folder or folder, found, report_to=container)
    found.script = {"path": path} | ({"arguments": list(line.arguments)} if line.arguments else {})


def _path_in_code(file: str, folder: str | None, found: Replica, *, report_to: Section) -> str:
    """Return the path of the script in the folder of its code; a ConfigMap that is mounted there is that folder."""
    absolute = PurePosixPath(folder or "/", file)
    for mount in found.pod.get("volumeMounts", ()):
        place = PurePosixPath(str(mount.get("mountPath", "/-")))
        volume: Mapping[str, Any] = next(
            (each for each in found.pod.get("volumes", ()) if each.get("name") == mount.get("name")), {}
        )
        named = (volume.get("configMap") or {}).get("name")
        if named and "subPath" not in mount and absolute.is_relative_to(place) and absolute != place:
            found.code = str(named)
            report_to.report.decide("spec.source", f"ConfigMap {named}, which is mounted where the script is")
            return absolute.relative_to(place).as_posix()
    path = PurePosixPath(file)
    if path.is_absolute():
        if folder and path.is_relative_to(folder) and path != PurePosixPath(folder):
            return path.relative_to(folder).as_posix()
        reason = f"{path.name}: {file} is a path of the image, and its folder is the one to ship"
        report_to.report.decide("spec.program.script.path", reason)
        return path.name
    return PurePosixPath(*(part for part in path.parts if part != ".")).as_posix()
