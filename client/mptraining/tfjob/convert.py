"""Conversion of the TFJobs in a YAML file: replica types become nodes and a strategy, the rest field by field."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mptraining.tfjob.fields import Carried, Noted, Report, Section
from mptraining.tfjob.replica import Choices, Replica, convert_replica
from mptraining_api.problems import InvalidSpec, Problem
from mptraining_api.resolve.document_problems import document_problems
from mptraining_api.resolve.resolve import ClusterSettings
from mptraining_api.spec import API_VERSION, JOB_NAME, KIND
from mptraining_api.validation.mistakes import InvalidJobFile, Mistake, field_text
from mptraining_api.validation.yaml_text import YamlDocument, read_yaml

_GROUP = "kubeflow.org/"
_KIND = "TFJob"
_QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
_GANG_ANNOTATION = "scheduling.k8s.io/group-name"
_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_METADATA_OF_SERVER = ("creationTimestamp", "generation", "managedFields", "resourceVersion", "selfLink", "uid")
_REPLICAS = {"chief": "Chief", "master": "Master", "worker": "Worker", "ps": "PS", "evaluator": "Evaluator"}
# Of the sections in the file that is written.
_ORDER = (
    *("accelerator", "nodes", "strategy", "program", "source", "output"),
    *("runPolicy", "scheduling", "podTemplate"),
)
_OTHER_KINDS = {
    "PyTorchJob": "A PyTorch program does not run here; for a Keras program in such a job see the guide, Migration.",
    "MPIJob": "Horovod and mpirun do not run here; see the guide, Migration.",
}


@dataclass(frozen=True, slots=True)
class Conversion:
    """One converted TFJob: the job's document, and what became of each field of the TFJob."""

    source: YamlDocument
    name: str
    document: dict[str, Any]
    carried: tuple[Carried, ...]
    decided: tuple[Noted, ...]
    left_out: tuple[Noted, ...]


def convert_file(path: Path, choices: Choices, *, without: Iterable[str] = ()) -> tuple[list[Conversion], list[str]]:
    """Convert the TFJobs in the file at `path`; return them, and a line for each object of another kind.

    `without` names fields that the user gives up. Raises InvalidJobFile with every field that cannot be converted,
    and InvalidSpec for a file that cannot be read or has no TFJob.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        cause = getattr(error, "strerror", None) or "not a text file"
        raise InvalidSpec(str(path), cause, expected="a TFJob in YAML") from None
    documents = read_yaml(text, file=str(path))
    jobs = [each for each in documents if isinstance(each.content, dict) and each.content.get("kind") == _KIND]
    others = [each for each in documents if each not in jobs]
    if not jobs:
        raise _no_tfjob(path, documents)
    gives_up = frozenset(without)
    reports = [Report(gives_up) for _ in jobs]
    converted: list[Conversion] = []
    mistakes: list[Mistake] = []
    for document, report in zip(jobs, reports, strict=True):
        made = _convert(document, choices, report, alone=len(jobs) == 1)
        if not report.refused:
            report.refused += _in_fields_of_the_tfjob(made, report)
        mistakes += document.located(report.refused).mistakes if report.refused else ()
        name = made["metadata"]["name"]
        converted.append(
            Conversion(document, name, made, tuple(report.carried), tuple(report.decided), tuple(report.left_out))
        )
    unused = gives_up.difference(*(report.used for report in reports))
    mistakes += [Mistake("", None, _not_refused(each)) for each in sorted(unused)]
    if mistakes:
        raise InvalidJobFile(mistakes)
    return converted, [_beside(each) for each in others]


def _no_tfjob(path: Path, documents: Iterable[YamlDocument]) -> InvalidSpec:
    kinds = [str(each.content.get("kind")) for each in documents if isinstance(each.content, dict)]
    step = next((_OTHER_KINDS[kind] for kind in kinds if kind in _OTHER_KINDS), "")
    found = f"has {', '.join(dict.fromkeys(kinds))}" if kinds else "has no object"
    return InvalidSpec(str(path), found, expected=f"a {_KIND} of {_GROUP}v1", next_step=step)


def _not_refused(field: str) -> InvalidSpec:
    return InvalidSpec("--without", f"{field} is not refused", expected="a field that a message of this command names")


def _beside(document: YamlDocument) -> str:
    content = document.content if isinstance(document.content, dict) else {}
    metadata = content.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    line = document.line("kind")
    return f"line {line}: {content.get('kind')} {name} is no TFJob: apply it as it is"


def _convert(document: YamlDocument, choices: Choices, report: Report, *, alone: bool) -> dict[str, Any]:
    top = Section(document.content, (), report)
    version = top.text("apiVersion") or ""
    top.text("kind")
    if not version.startswith(_GROUP) or version == f"{_GROUP}v1alpha1":
        report.refused.append(
            InvalidSpec("apiVersion", repr(version), expected=f"{_GROUP}v1, or v1alpha2 and later, with tfReplicaSpecs")
        )
    top.leave_out(["status"], "the job gets a status of its own")
    spec: dict[str, Any] = {}
    metadata = _metadata(top.section("metadata"), spec)
    content = top.section("spec")
    replicas = _replicas(content.section("tfReplicaSpecs"), choices)
    if replicas:
        spec |= _job(replicas, choices, report, str(metadata["name"]), spec.get("scheduling") or {})
    _policies(content, spec, replicas)
    content.end(("tfReplicaSpecs",))
    top.end(("metadata", "spec"))
    if choices.run_folder:
        # A run folder belongs to one job.
        folder = choices.run_folder if alone else f"{choices.run_folder.rstrip('/')}/{metadata['name']}"
        spec["output"] = {"uri": folder}
    else:
        reason = "none: without a run folder a job does not resume; --run-folder gs://… or a mounted path adds it"
        report.decide("spec.output", reason)
    ordered = {name: spec[name] for name in _ORDER if name in spec}
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": ordered}


def _metadata(metadata: Section, spec: dict[str, Any]) -> dict[str, Any]:
    report, made = metadata.report, dict[str, Any]()
    name, generated = metadata.text("name"), metadata.text("generateName")
    if name is None and generated:
        report.decide("metadata.name", f"{generated.rstrip('-')}, from generateName; a job has a name of its own")
    made["name"] = name or (generated or "").rstrip("-")
    if name:
        metadata.carried("name", "metadata.name")
    if not JOB_NAME.fullmatch(made["name"]):
        step = "Rename it in the file; pods are named <job>-<attempt>-<worker>."
        expected = "small letters, digits and -, at most 50 characters"
        report.refused.append(InvalidSpec("metadata.name", repr(made["name"]), expected=expected, next_step=step))
    metadata.carry("namespace", "metadata.namespace", made)
    labels = dict(metadata.take("labels", dict, "labels") or {})
    if _QUEUE_LABEL in labels:
        spec.setdefault("scheduling", {})["queueName"] = str(labels.pop(_QUEUE_LABEL))
        report.carried.append(Carried((*metadata.at("labels"), _QUEUE_LABEL), "spec.scheduling.queueName"))
    if labels:
        made["labels"] = labels
        metadata.carried("labels", "metadata.labels")
    annotations = dict(metadata.take("annotations", dict, "annotations") or {})
    if annotations.pop(_APPLIED, None) is not None:
        report.leave_out((*metadata.at("annotations"), _APPLIED), "kubectl's own record of the TFJob")
    if annotations:
        made["annotations"] = annotations
        metadata.carried("annotations", "metadata.annotations")
    metadata.leave_out(_METADATA_OF_SERVER, "the API server's own")
    metadata.end(("finalizers", "ownerReferences"))
    return made


def _replicas(section: Section, choices: Choices) -> list[Replica]:
    """Return the replica types that train; the others are refused."""
    found: list[Replica] = []
    if not section.names():
        section.report.refused.append(InvalidSpec(field_text(section.path), "missing", expected="replica types"))
    for name in section.names():
        match _REPLICAS.get(name.lower()):
            case "PS":
                step = (
                    "A program for parameter servers does not run here: variables are mirrored. Write it for "
                    "`model.fit` or MultiWorkerMirroredStrategy."
                )
                _refuse_type(section, name, "parameter servers", step)
            case "Evaluator":
                step = "Let `model.fit` evaluate by validation_data; the workers do it between epochs."
                _refuse_type(section, name, "an evaluator beside the workers", step)
            case None:
                section.refuse(name, "unknown replica type", expected="Chief, Master or Worker")
            case _:
                replica = convert_replica(section.section(name), choices)
                if replica.count > 0:
                    found.append(replica)
    return _alike(found, section.report) if found else []


def _refuse_type(section: Section, name: str, what: str, step: str) -> None:
    section.refuse(name, f"{what}, which jobs do not have", next_step=step)


def _alike(replicas: list[Replica], report: Report) -> list[Replica]:
    """Return the replica types that are alike, as all workers of a job are; the others are refused."""
    first, *others = replicas
    kept = [first]
    for each in others:
        different = first.differences(each)
        if different:
            fields = ", ".join("podTemplate" if name == "pod" else name for name in different)
            step = f"All workers are alike: give {each.where[-1]} what {first.where[-1]} has."
            report.refuse(each.where, f"differs from {first.where[-1]}: {fields}", next_step=step)
        else:
            kept.append(each)
    return kept


def _job(
    replicas: list[Replica], choices: Choices, report: Report, name: str, scheduling: Mapping[str, Any]
) -> dict[str, Any]:
    first = replicas[0]
    nodes = sum(each.count for each in replicas)
    spec: dict[str, Any] = {"accelerator": first.accelerator}
    if len(replicas) > 1:
        told = " + ".join(f"{each.count} {each.where[-1]}" for each in replicas)
        report.decide("spec.nodes", f"{nodes}: {told}; worker 0 is the chief")
    if nodes > 1:
        spec["nodes"] = nodes
    if nodes * int(first.accelerator.get("countPerNode", 1)) > 1:
        spec["strategy"] = "None"
        reason = "None: the program makes its own (TF_CONFIG is set for it). Take the field out if it makes none"
        report.decide("spec.strategy", reason)
    if nodes > 1:
        reason = "Auto: a script on several nodes gets tf_keras, since `fit` of Keras 3 does not run there"
        report.decide("spec.keras", reason)
    spec["program"] = {"script": first.script}
    if first.code:
        spec["source"] = {"configMap": {"name": first.code}}
    elif choices.image is None:
        spec["source"] = {"configMap": {"name": f"{name}-code"}}
        step = f"kubectl create configmap {name}-code --from-file=FOLDER"
        report.decide("spec.source", f"ConfigMap {name}-code, which does not exist yet: {step}")
    else:
        report.decide("spec.source", f"none: the code is in the working directory of {choices.image}")
    if first.scheduling:
        spec["scheduling"] = {**first.scheduling, **scheduling}
    pod = dict(first.pod)
    annotations = dict(pod.get("annotations") or {})
    if _GANG_ANNOTATION in annotations:
        annotations.pop(_GANG_ANNOTATION)
        report.decide("spec.scheduling.gang", f"Auto: the operator makes the PodGroup, without {_GANG_ANNOTATION}")
        pod = {key: value for key, value in pod.items() if key != "annotations"}
        pod |= {"annotations": annotations} if annotations else {}
    if pod:
        spec["podTemplate"] = pod
    return spec


def _policies(content: Section, spec: dict[str, Any], replicas: list[Replica]) -> None:
    report, made = content.report, dict[str, Any]()
    content.leave_out(["successPolicy"], "a job has succeeded when all workers have")
    if content.take("enableDynamicWorker", bool, "true or false"):
        step = "`elastic: {min, max}` in place of nodes changes the number of workers between attempts."
        content.refuse("enableDynamicWorker", "true", next_step=step)
    policy = content.section("runPolicy")
    # Before kubeflow.org/v1 of 2021 these fields were those of spec itself.
    for section in (content, policy):
        for name in ("activeDeadlineSeconds", "backoffLimit", "suspend"):
            section.carry(name, f"spec.runPolicy.{name}", made)
        for name in ("ttlSecondsAfterFinished", "ttlSecondsAfterFinishing"):
            section.carry(name, "spec.runPolicy.ttlSecondsAfterFinished", made, "ttlSecondsAfterFinished")
        section.leave_out(["cleanPodPolicy"], "ended pods stay for their logs, and are deleted with the job")
    if policy.names() and policy.text("managedBy") == "kubeflow.org/training-operator":
        report.leave_out(policy.at("managedBy"), "the training operator's own")
    group = policy.section("schedulingPolicy")
    scheduling = dict(spec.get("scheduling") or {})
    if "queue" in group.names():
        group.carry("queue", "spec.scheduling.queueName", scheduling, "queueName")
        report.decide("spec.scheduling.queueName", "a LocalQueue of Kueue: create one of the Volcano queue's name")
    group.carry("priorityClass", "spec.scheduling.priorityClassName", scheduling, "priorityClassName")
    group.carry("scheduleTimeoutSeconds", "spec.runPolicy.pendingTimeoutSeconds", made, "pendingTimeoutSeconds")
    group.leave_out(["minAvailable", "minResources"], "a job runs with all its workers or not at all")
    group.end()
    policy.end(("managedBy",))
    if scheduling:
        spec["scheduling"] = scheduling
    if "backoffLimit" not in made and any(each.restart == "Never" for each in replicas):
        made["backoffLimit"] = 0
        reason = "0: restartPolicy Never repeats no program that failed; lost machines are retried all the same"
        report.decide("spec.runPolicy.backoffLimit", reason)
    if made:
        spec["runPolicy"] = made


def _in_fields_of_the_tfjob(document: Mapping[str, Any], report: Report) -> list[InvalidSpec]:
    """Return what the job's own rules refuse, with the fields of the TFJob that the values come from."""
    found = document_problems(document, ClusterSettings())
    return [_at_source(each, report.carried) for each in found.problems]


def _at_source(problem: Problem, carried: Iterable[Carried]) -> InvalidSpec:
    near = [each for each in carried if problem.where.startswith(each.target)]
    where = problem.where
    if near:
        best = max(near, key=lambda each: len(each.target))
        where = field_text(best.source)
        # Below a field of the same name the fields are those of Kubernetes in both.
        if best.target.rpartition(".")[2] == best.source[-1]:
            where += problem.where.removeprefix(best.target)
    return InvalidSpec(where, problem.found, expected=problem.expected, next_step=problem.next_step)
