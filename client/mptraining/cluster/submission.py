"""Submission of a job document: validation, upload of its source package, creation of the MPTrainingJob.

document ── check ──► package: ConfigMap, or archive in a bucket ──► MPTrainingJob ──► the ConfigMap is the job's
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from mptraining.cluster.api import ApiServer
from mptraining.cluster.connection import HERE, Cluster, connect_for
from mptraining.cluster.errors import ClusterProblem
from mptraining.cluster.job import Job
from mptraining.cluster.job_view import JobView, absent_accelerator, current_machine
from mptraining.job_file import advice
from mptraining.packaging.package import Package, too_large_problem
from mptraining.packaging.program import function_arguments_named, function_job, refuse_unknown
from mptraining.training_job import TrainingJob, arguments_named, job_document
from mptraining_api.accelerators import canonical_type, catalogue
from mptraining_api.kubernetes_api import CONFIG_MAPS, JOBS, NODES, Raw
from mptraining_api.machines.node_labels import accelerator_of
from mptraining_api.problems import InvalidSpec
from mptraining_api.resolve.attempt import machines
from mptraining_api.resolve.document_problems import document_problems
from mptraining_api.resolve.resolve import ClusterSettings, resolve
from mptraining_api.resolved_job import ResolvedJob
from mptraining_api.spec import API_VERSION, KIND, MPTrainingJob
from mptraining_api.status import JOB, JOB_UID
from mptraining_api.validation.mistakes import InvalidJobFile, Mistake


def missing_accelerator(type_name: str, nodes: Iterable[Mapping[str, Any]]) -> str | None:
    """Return a warning if no node has the accelerator `wanted`; None if a node has it, and for CPUs."""
    type_name = canonical_type(type_name)
    accelerator = catalogue().get(type_name)
    if accelerator is None or accelerator.kind == "cpu":
        return None
    named = (accelerator_of(node.get("metadata", {}).get("labels") or {}) for node in nodes)
    types = Counter(name for name in named if name is not None)
    if types[type_name]:
        return None
    there = ", ".join(f"{name} ({count} node{'s' if count != 1 else ''})" for name, count in sorted(types.items()))
    choice = f"the cluster has {there}" if there else "no node of the cluster has an accelerator"
    return (
        f"no node has {type_name} now: {choice}. The job waits for one (an autoscaler may add it), "
        "or falls back to the CPU if the operator's settings allow it"
    )


def accelerator_warnings(server: ApiServer, job: ResolvedJob) -> tuple[str, ...]:
    """Return the warning for a job to submit; none if the user may not list nodes."""
    types = [machine.accelerator.type for machine in machines(job)]
    if "cpu" in types:
        return ()
    try:
        nodes = list(server.items(NODES, metadata_only=True))
        missing = [missing_accelerator(name, nodes) for name in types]
        # One machine that is there is enough.
        warning = missing[0] if all(missing) else None
    except ClusterProblem:
        # Most users may not list nodes; the operator reports the same in a condition later.
        return ()
    return (warning,) if warning else ()


def waiting_job_warning(server: ApiServer, seen: JobView) -> str | None:
    """Return the warning for a job that waits for machines; None for other jobs, and if nodes may not be listed."""
    if seen.finished or seen.phase not in ("Pending", "Restarting") or absent_accelerator(seen):
        return None
    try:
        accelerator = str(current_machine(seen).get("type", ""))
        return missing_accelerator(accelerator, server.items(NODES, metadata_only=True))
    except ClusterProblem:
        return None


# Suffix for `resolve` in place of the one that the API server generates for `generateName`.
_PLACEHOLDER = "x"


@dataclass(frozen=True, slots=True)
class CheckedDocument:
    """A document that is valid without asking the cluster; `advice` is for its author."""

    document: Raw
    resolved: ResolvedJob
    advice: tuple[str, ...]


def check(document: Mapping[str, object]) -> CheckedDocument:
    """Validate and resolve a document without sending anything. Raises InvalidSpec."""
    given: Any = copy.deepcopy(dict(document))
    given.setdefault("apiVersion", API_VERSION)
    given.setdefault("kind", KIND)
    given.pop("status", None)
    metadata = given.get("metadata") or {}
    if not metadata.get("name") and not metadata.get("generateName"):
        raise InvalidSpec("metadata.name", "missing", expected="a name, or generateName for a name by the cluster")
    named = metadata.get("name") or f"{metadata['generateName']}{_PLACEHOLDER}"
    # The operator's settings are unknown here, so what only some clusters accept is accepted; the cluster decides.
    settings = ClusterSettings(node_labels="Auto")
    whole = given | {"metadata": metadata | {"name": named}}
    checked = document_problems(whole, settings)
    if checked.problems:
        raise InvalidJobFile([Mistake("", None, problem) for problem in checked.problems])
    # The path of the request has this version; an older one has the same fields.
    given["apiVersion"] = API_VERSION
    job = MPTrainingJob.parse(whole)
    resolved = resolve(job, settings)
    return CheckedDocument(given, resolved, (*advice.without_effect(job.spec, resolved), *advice.advise(resolved)))


def submit(
    job: TrainingJob | Mapping[str, object] | Callable[..., Any],
    *,
    package: Package | None = None,
    cluster: Cluster = HERE,
    archives: str | None = None,
    **function: Any,
) -> Job:
    """Create the MPTrainingJob that `job` describes and return without waiting.

    `job` is a TrainingJob, the mapping that a job file holds, or a function of a module or a notebook's cell, which
    the job calls: `Job.result` returns its value. The arguments of a function are `args` and `kwargs` (literals of
    Python), `accelerator` (a type, or a mapping such as {"type": "t4", "countPerWorker": 4}; default: cpu), `workers`,
    `name` (default: the function's, with a random suffix), `output` (the run folder), `folder` (packaged instead of
    the function's own), `requirements` (a file of pip's) and `spec` (any other fields of the job, which win). The
    function trains by `fit` as a script does, with the job's strategy and precision; with several workers each calls
    it, and the value is that of worker 0.

    `package` becomes its `spec.source`: a ConfigMap that the job owns, or an archive in the folder `archives`
    (gs://…; default: below the job's output.uri). With `metadata.generateName` the API server generates the name.

    Raises InvalidSpec before anything is sent, and ClusterProblem if the cluster rejects the job. In that case the
    ConfigMap is deleted; an uploaded archive stays, named by its content.
    """
    refuse_unknown("submit", function, function_job)
    if callable(job):
        with function_arguments_named():
            document, package = function_job(job, **function)
            return submit(document, package=package, cluster=cluster, archives=archives)
    if function:
        raise TypeError(f"submit() takes {next(iter(function))!r} for a function alone")
    with arguments_named(job):
        checked = check(job_document(job))
    body = checked.document
    server = connect_for(body, cluster)
    if package is not None and not package.small:
        _publish_archive(body, package, archives)
    config_map = _publish_config_map(server, body, package) if package is not None and package.small else None
    try:
        made = server.create(JOBS, body)
    except ClusterProblem as problem:
        # Without a response (status 0) the job may have been created, and would need the ConfigMap.
        if config_map is not None and problem.status:
            with suppress(ClusterProblem):
                server.delete(CONFIG_MAPS, config_map["metadata"]["name"], uid=config_map["metadata"]["uid"])
        raise
    if config_map is not None:
        _set_owner(server, config_map, made)
    return Job(
        server, made, cluster=cluster, warnings=(*checked.advice, *accelerator_warnings(server, checked.resolved))
    )


def _publish_config_map(server: ApiServer, body: Raw, package: Package) -> Raw:
    """Create the ConfigMap before the job, so that no pod waits for it, with a generated name, to avoid conflicts."""
    prefix = body["metadata"].get("name") or body["metadata"]["generateName"].rstrip("-")
    made = server.create(
        CONFIG_MAPS,
        {"metadata": {"generateName": f"{prefix}-source-"}, "binaryData": package.binary_data(), "immutable": True},
    )
    body["spec"].setdefault("source", {}).update(package.source(config_map=made["metadata"]["name"]))
    return made


def _set_owner(server: ApiServer, config_map: Raw, job: Raw) -> None:
    """Make the job the owner of the ConfigMap, which is then deleted with the job, and label it like other children."""
    owner = {"apiVersion": job["apiVersion"], "kind": job["kind"]}
    owner |= {key: job["metadata"][key] for key in ("name", "uid")}
    labels = {JOB: job["metadata"]["name"], JOB_UID: job["metadata"]["uid"]}
    patch = {"metadata": {"uid": config_map["metadata"]["uid"], "labels": labels, "ownerReferences": [owner]}}
    server.patch(CONFIG_MAPS, config_map["metadata"]["name"], patch)


def archive_uri(body: Raw, package: Package, archives: str | None) -> str:
    """Return the place of a package that is too large for a ConfigMap. Raises InvalidProgram if there is none."""
    from mptraining_storage import storage

    output = (body["spec"].get("output") or {}).get("uri") or ""
    folder = archives or (storage.join(output, "source") if output.startswith("gs://") else None)
    if folder is None:
        raise too_large_problem(package)
    return storage.join(folder, package.object_name)


def _publish_archive(body: Raw, package: Package, archives: str | None) -> None:
    from mptraining_storage import storage

    uri = archive_uri(body, package, archives)
    if not storage.exists(uri):
        storage.write(uri, package.archive)
    body["spec"].setdefault("source", {}).update(package.source(uri=uri))
