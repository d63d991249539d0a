"""Conversion of Kubeflow's TFJobs into MPTrainingJobs: a table says what becomes of each field of the TFJob.

A field is copied, left out with a reason, or refused; no field is dropped silently.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from mptraining_api.accelerators import canonical_type
from mptraining_api.machines.node_labels import accelerator_of, platforms
from mptraining_api.problems import InvalidSpec, nearest
from mptraining_api.resolve.document_problems import document_problems
from mptraining_api.resolve.resolve import ClusterSettings
from mptraining_api.spec import API_VERSION, KIND
from mptraining_api.validation.mistakes import FieldPath, InvalidJobFile, Mistake, field_text, value_at
from mptraining_api.validation.yaml_text import YamlDocument, read_text, read_yaml

_GPU = "nvidia.com/gpu"
_OF_LAUNCH = ("TF_CONFIG", "JOB_COMPLETION_INDEX", "TF_USE_LEGACY_KERAS", "NVIDIA_VISIBLE_DEVICES")
_GROUP = "scheduling.k8s.io/group-name"
_ORDER = ("accelerator", "workers", "strategy", "program", "source", "output", "runPolicy", "scheduling", "podTemplate")
_RUN_POLICY = {
    "> spec.runPolicy.": "activeDeadlineSeconds backoffLimit suspend ttlSecondsAfterFinished",
    "- ended pods stay for their logs, and are deleted with the job": "cleanPodPolicy",
    "- a job has one controller": "managedBy",
}
# What becomes of the fields of each section: `>` copies into a section of the job, or to a field; `-` leaves out with
# the reason; `!` refuses with the next step; `@` is a section of the table. Code converts the fields at "". All others
# have no counterpart.
_FIELDS: dict[str, dict[str, str]] = {
    "TFJob": {"@metadata": "metadata", "@spec": "spec", "- the job has its own": "apiVersion kind status"},
    "metadata": {
        "> metadata.": "name namespace annotations labels",
        "- a job has a name of its own": "generateName",
        "- the API server's own": "creationTimestamp generation managedFields resourceVersion selfLink uid",
    },
    # Before kubeflow.org/v1 of 2021 the fields of runPolicy were those of spec itself.
    "spec": _RUN_POLICY
    | {
        "": "tfReplicaSpecs",
        "@runPolicy": "runPolicy",
        "! `elastic: {min, max}` in place of workers changes the number of workers.": "enableDynamicWorker",
        "- a job has succeeded when all workers have": "successPolicy",
    },
    "runPolicy": _RUN_POLICY | {"@schedulingPolicy": "schedulingPolicy"},
    "schedulingPolicy": {
        "> spec.scheduling.queueName": "queue",
        "> spec.scheduling.priorityClassName": "priorityClass",
        "> spec.runPolicy.pendingTimeoutSeconds": "scheduleTimeoutSeconds",
        "- a job runs with all its workers or not at all": "minAvailable minResources",
    },
    "tfReplicaSpecs": {
        "": "Chief Master Worker chief master worker",
        "! There are no parameter servers: write the program for `model.fit`.": "PS Ps ps",
        "! Let `model.fit` evaluate by validation_data; the workers do it between epochs.": "Evaluator evaluator",
    },
    "replica": {
        "": "replicas",
        "@template": "template",
        "- all workers restart together": "restartPolicy tfReplicaType",
    },
    "template": {"@pod metadata": "metadata", "@pod": "spec"},
    "pod metadata": {
        "> spec.podTemplate.": "labels annotations",
        "- the operator's": "name namespace creationTimestamp",
    },
    "pod": {
        "": "containers nodeSelector",
        "> spec.podTemplate.": "affinity dnsConfig dnsPolicy imagePullSecrets initContainers runtimeClassName "
        "serviceAccountName tolerations topologySpreadConstraints volumes",
        "> spec.podTemplate.serviceAccountName": "serviceAccount",
        "> spec.scheduling.": "priorityClassName schedulerName",
        "- the operator's": "automountServiceAccountToken restartPolicy terminationGracePeriodSeconds",
        "- no effect on training": "enableServiceLinks preemptionPolicy",
    },
    "container": {
        "": "args command env resources",
        "> spec.podTemplate.": "envFrom lifecycle volumeMounts",
        "- the operator's": "name ports terminationMessagePath terminationMessagePolicy",
        "- it has no trainer in it; the operator's trainer image runs, or that of --image": "image",
        "- a script starts in the folder of its code": "workingDir",
        "- no effect on training": "imagePullPolicy stdin stdinOnce tty",
    },
    "resources": {"": "limits requests"},
}
_RULES = {
    section: {name: rule for rule, names in rules.items() for name in names.split()}
    for section, rules in _FIELDS.items()
}


@dataclass(frozen=True, slots=True)
class Choices:
    """Flags of `mptj convert-tfjob`: facts that a TFJob does not have, and fields to leave out."""

    accelerator: str | None = None
    script: str | None = None
    image: str | None = None
    run_folder: str | None = None
    without: tuple[str, ...] = ()


@dataclass(slots=True)
class Conversion:
    """One TFJob: `fields` are the values by field of the job, the others are notes."""

    source: YamlDocument
    choices: Choices
    fields: dict[str, Any] = field(default_factory=dict)
    decided: list[str] = field(default_factory=list)
    left_out: dict[FieldPath, str] = field(default_factory=dict)
    refused: list[InvalidSpec] = field(default_factory=list)

    def refuse(self, path: FieldPath, explanation: str, *, expected: str = "", next_step: str = "") -> None:
        step = f"{next_step} Or leave it out: --without {field_text(path)}.".strip()
        self.refused.append(InvalidSpec(field_text(path), explanation, expected=expected, next_step=step))

    def section(self, kind: str, content: Any, path: FieldPath) -> dict[str, Any]:
        """Apply the table to the fields of a section and of those in it; return the fields that code converts.

        Empty fields count as absent.
        """
        if not isinstance(content, Mapping | None):
            self.refuse(path, repr(content), expected="a section with fields")
        rest = {}
        for name, value in content.items() if isinstance(content, Mapping) else ():
            where, rule = (*path, name), _RULES[kind].get(name)
            if value is None or value in ("", [], {}):
                continue
            if field_text(where) in self.choices.without:
                self.left_out[where] = "by --without"
            elif rule == "":
                rest[name] = value
            elif rule is not None and rule[0] == "@":
                rest |= self.section(rule[1:], value, where)
            elif rule is None or rule[0] == "!":
                step = rule[2:] if rule else nearest(str(name), _RULES[kind])
                if value is not False:
                    self.refuse(where, "has no counterpart", next_step=step)
            elif rule[0] == "-":
                self.left_out[where] = rule[2:]
            else:
                self.fields[rule[2:] + (name if rule.endswith(".") else "")] = value
        return rest

    @property
    def document(self) -> dict[str, Any]:
        nested: dict[str, Any] = {"metadata": {}, "spec": {}}
        for target, value in self.fields.items():
            *parents, last = target.split(".")
            section = nested
            for part in parents:
                section = section.setdefault(part, {})
            section[last] = value
        spec = {name: nested["spec"][name] for name in _ORDER if name in nested["spec"]}
        return {"apiVersion": API_VERSION, "kind": KIND, "metadata": nested["metadata"], "spec": spec}

    def report(self) -> list[str]:
        """Return lines with what was decided and left out; the other fields are in the job."""
        decided = [f"    {text}" for text in dict.fromkeys(self.decided)]
        notes = sorted((self.source.line_at(path) or 0, field_text(path), why) for path, why in self.left_out.items())
        left_out = [f"    line {line}: {name}: {why}" for line, name, why in notes]
        title = f"{self.source.file}: TFJob {self.fields.get('metadata.name')}"
        return [title, "  decided", *decided, *["  left out"] * bool(left_out), *left_out]


def convert_file(path: Path, choices: Choices) -> list[Conversion]:
    """Convert the TFJobs in the file at `path`.

    Raises InvalidJobFile with every field that cannot be converted, InvalidSpec for a file without a TFJob.
    """
    documents = read_yaml(read_text(path, expected="a TFJob in YAML"), file=str(path))
    jobs = [document for document in documents if value_at(document.content, ("kind",)) == "TFJob"]
    if not jobs:
        raise InvalidSpec(str(path), "has no TFJob", expected="kind: TFJob", next_step="See the guide, Migrate.")
    converted = [_convert(document, choices, alone=len(jobs) == 1) for document in jobs]
    mistakes: list[Mistake] = []
    for job in converted:
        problems = job.refused or document_problems(job.document, ClusterSettings()).problems
        mistakes += job.source.located(problems).mistakes if problems else ()
    unknown = sorted(set(choices.without) - {field_text(path) for job in converted for path in job.left_out})
    mistakes += [Mistake("", None, InvalidSpec("--without", f"the file has no {name}")) for name in unknown]
    if mistakes:
        raise InvalidJobFile(mistakes)
    return converted


def _convert(document: YamlDocument, choices: Choices, *, alone: bool) -> Conversion:
    job, content = Conversion(document, choices), document.content
    version = str(content.get("apiVersion"))
    if not version.startswith("kubeflow.org/") or version == "kubeflow.org/v1alpha1":
        job.refuse(("apiVersion",), repr(version), expected="kubeflow.org/v1, or v1alpha2 and later")
    rest = job.section("TFJob", content, ())
    if queue := value_at(content, ("metadata", "labels", "kueue.x-k8s.io/queue-name")):
        job.fields["spec.scheduling.queueName"] = queue
    if generated := value_at(content, ("metadata", "generateName")):
        job.fields.setdefault("metadata.name", str(generated).rstrip("-"))
    _convert_replicas(job, rest.get("tfReplicaSpecs"), ("spec", "tfReplicaSpecs"))
    if choices.run_folder:
        folder = choices.run_folder.rstrip("/")
        job.fields["spec.output.uri"] = choices.run_folder if alone else f"{folder}/{job.fields['metadata.name']}"
    else:
        job.decided.append("spec.output: none: the job does not resume; --run-folder gs://… or a mounted path adds it")
    return job


def _convert_replicas(job: Conversion, content: Any, path: FieldPath) -> None:
    """Convert the replica types, which must be alike, as the workers of a job are."""
    shared, counts, first = job.fields, dict[str, int](), dict[str, Any]()
    for name, replica in job.section("tfReplicaSpecs", content, path).items():
        job.fields = {}
        count = _convert_replica(job, replica, (*path, name))
        if count and counts and job.fields != first:
            differing = [name for name in {**first, **job.fields} if first.get(name) != job.fields.get(name)]
            step = f"All workers are alike: give {name} what {next(iter(counts))} has."
            job.refuse((*path, name), f"differs: {', '.join(differing)}", next_step=step)
        elif count:
            counts[name], first = count, job.fields
    job.fields = {**first, **shared}
    workers = sum(counts.values())
    if not workers and not job.refused:
        job.refuse(path, "no replica that trains", expected="Chief, Master or Worker")
    if workers > 1:
        job.fields["spec.workers"] = workers
        job.decided.append(f"spec.workers: {workers}; worker 0 is the chief")
    if workers * int(first.get("spec.accelerator", {}).get("countPerWorker", 1)) > 1:
        job.fields["spec.strategy"] = "None"
        reason = "the program makes its own (TF_CONFIG is set for it). Take the field out if it makes none"
        job.decided.append(f"spec.strategy: None: {reason}")
    if job.choices.image:
        job.fields["spec.podTemplate.image"] = job.choices.image
    elif "spec.source" not in job.fields:
        code = f"{shared.get('metadata.name')}-code"
        job.fields["spec.source"] = {"configMap": {"name": code}}
        step = f"kubectl create configmap {code} --from-file=FOLDER"
        job.decided.append(f"spec.source: ConfigMap {code}, which does not exist yet: {step}")


def _convert_replica(job: Conversion, content: Any, path: FieldPath) -> int:
    """Convert a replica type into `job.fields`; return the number of replicas."""
    rest = job.section("replica", content, path)
    annotations = job.fields.pop("spec.podTemplate.annotations", None)
    if isinstance(annotations, Mapping) and _GROUP in annotations:
        job.left_out[(*path, "template", "metadata", "annotations", _GROUP)] = "the operator makes the PodGroup"
        annotations = {name: value for name, value in annotations.items() if name != _GROUP}
    if annotations:
        job.fields["spec.podTemplate.annotations"] = annotations
    if value_at(content, ("restartPolicy",)) == "Never":
        job.fields["spec.runPolicy.backoffLimit"] = 0
        job.decided.append("spec.runPolicy.backoffLimit: 0 unless the TFJob has one: Never repeats no failed program")
    containers, where = rest.get("containers"), (*path, "template", "spec", "containers")
    if not isinstance(containers, list):
        job.refuse(where, "no container", expected="the container that trains")
        return 0
    # The training operator's container is `tensorflow`.
    main = next((n for n, item in enumerate(containers) if value_at(item, ("name",)) == "tensorflow"), 0)
    for index in {*range(len(containers))} - {main}:
        if field_text((*where, index)) in job.choices.without:
            job.left_out[(*where, index)] = "by --without"
        else:
            step = "A sidecar is one of podTemplate.initContainers, with restartPolicy: Always."
            job.refuse((*where, index), "a second container", expected="one container", next_step=step)
    container = job.section("container", containers[main], (*where, main))
    _set_program(job, containers[main], (*where, main))
    _set_accelerator(job, container.get("resources"), rest.get("nodeSelector"), (*where, main, "resources"))
    count = rest.get("replicas", 1)
    if isinstance(count, int):
        return count
    job.refuse((*path, "replicas"), repr(count), expected="a whole number")
    return 0


def _set_accelerator(job: Conversion, resources: Any, selector: Any, where: FieldPath) -> None:
    """Set spec.accelerator from the devices and the node labels; the labels that it stands for are removed."""
    count = 0
    for part, amounts in job.section("resources", resources, where).items():
        kept = amounts
        if isinstance(amounts, Mapping) and str(amounts.get(_GPU)).isdigit():
            count = max(count, int(amounts[_GPU]))
            kept = {name: amount for name, amount in amounts.items() if name != _GPU}
        if kept:
            job.fields[f"spec.podTemplate.resources.{part}"] = kept
    if selector is not None and not isinstance(selector, Mapping):
        job.refuse((*where[:-3], "nodeSelector"), repr(selector), expected="labels of nodes")
    labels = {str(name): str(value) for name, value in selector.items()} if isinstance(selector, Mapping) else {}
    accelerator: dict[str, Any] = {"type": job.choices.accelerator or "cpu"}
    if count:
        # Kubernetes' documentation once selected GPUs by the label `accelerator`.
        labelled = accelerator_of(labels) or canonical_type(str(labels.get("accelerator", "")))
        name = job.choices.accelerator or labelled or None
        if name is None:
            explanation = "requests accelerators, and no nodeSelector names their type"
            job.refuse(where, explanation, next_step="Name it: --accelerator t4 (`mptj accelerators` lists them).")
        accelerator = {"type": name, "countPerWorker": count}
        kinds = [kind for platform in platforms().values() for kind in platform.nodes]
        replaced = {"accelerator"} | {row["label"] for kind in kinds for row in kind.accelerators.values()}
        for spot in (kind.provisioning.get("Spot", {}) for kind in kinds):
            if spot and spot.items() <= labels.items():
                accelerator["provisioning"] = "Spot"
                replaced |= set(spot)
        labels = {name: value for name, value in labels.items() if name not in replaced}
    job.fields["spec.accelerator"] = accelerator
    if labels:
        job.fields["spec.podTemplate.nodeSelector"] = labels


def _set_program(job: Conversion, container: Any, path: FieldPath) -> None:
    """Set spec.program.script from the container's command line."""
    command, arguments = (value_at(container, (name,)) or [] for name in ("command", "args"))
    given = container.get("env") if isinstance(container, Mapping) else None
    variables = [item for item in given if isinstance(item, Mapping)] if isinstance(given, list) else []
    if kept := [item for item in variables if item.get("name") not in _OF_LAUNCH] if variables else given:
        job.fields["spec.podTemplate.env"] = kept
    if kept != given:
        job.left_out[(*path, "env")] = f"except {', '.join(_OF_LAUNCH)}, which are set for each worker, it is copied"
    known = {str(item.get("name")): str(item["value"]) for item in variables if "value" in item}
    words = [str(word) for part in (command, arguments) if isinstance(part, list) for word in part]
    # The kubelet replaces $(NAME) in a command line; the trainer does not.
    words = [re.sub(r"\$\((\w+)\)", lambda name: known.get(name[1], name[0]), word) for word in words]
    line, script = _python_line(words), job.choices.script
    if script is None and (line is None or any("$(" in word for word in line)):
        explanation = f"{shlex.join(words)!r} is not one Python file and its arguments" if words else "no command"
        where = (*path, "command" if command else "args" if arguments else "image")
        step = "Name the Python file that trains: --script train.py."
        return job.refuse(where, explanation, expected="a Python file", next_step=step)
    file, *rest = line or ("", *([] if command else words))
    if script is None and file.startswith("/"):
        script = PurePosixPath(file).name
        job.decided.append(f"spec.program.script.path: {script}: the folder of {file} in the image is the one to ship")
    job.fields["spec.program.script.path"] = script or PurePosixPath(file).as_posix()
    if rest:
        job.fields["spec.program.script.arguments"] = rest
    return None


def _python_line(words: Sequence[str]) -> list[str] | None:
    """Return the Python file that a command line runs and its arguments; None for any other line."""
    name, rest = PurePosixPath(words[0]).name if words else "", list(words)
    if name in ("sh", "bash", "dash", "ash", "zsh") and any(re.fullmatch(r"-[a-z]*c", word) for word in words[1:-1]):
        line = re.fullmatch(r"(?:cd \S+ && )?(?:exec )?([^`$*?\[\]{}~\\;|<>&()\n'\"]+)", words[-1].strip())
        return _python_line(line[1].split()) if line else None
    if re.fullmatch(r"python[0-9.]*", name):
        rest.pop(0)
        while rest and re.fullmatch(r"-[bBdEiIOqsSuvx]+", rest[0]):
            rest.pop(0)
        return rest if rest and not rest[0].startswith("-") else None
    return rest if name.endswith(".py") else None
