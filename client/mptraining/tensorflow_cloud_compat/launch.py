"""Second part of `tensorflow_cloud.run`, after its arguments are validated: package the program and start the job."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from mptraining.packaging import program
from mptraining.packaging.keras_choice import with_keras
from mptraining.packaging.notebooks import ipython_shell
from mptraining.packaging.package import Package
from mptraining.packaging.program import job_name, merge
from mptraining.tensorflow_cloud_compat.arguments import InvalidArgument, RunArguments
from mptraining_api import accelerators
from mptraining_api.problems import InvalidSpec
from mptraining_api.spec import API_VERSION, KIND
from mptraining_api.tensorflow_cloud.machine_configs import CATALOGUE, AcceleratorType, MachineConfig


def document(
    arguments: RunArguments,
    *,
    name: str,
    program: Mapping[str, Any],
    output: str | None = None,
    spec: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the job as a mapping for YAML, without `spec.source`. Fields of `spec` take precedence.

    Raises InvalidArgument for a TPU size that no machine has.
    """
    metadata: dict[str, Any] = {"name": name}
    if arguments.labels:
        metadata["labels"] = dict(arguments.labels)
    decided: dict[str, Any] = {"accelerator": _accelerator(arguments.machine)}
    if arguments.workers > 1:
        decided["workers"] = arguments.workers
    if not arguments.distributed:
        decided["strategy"] = "None"
    decided["program"] = dict(program)
    if output:
        decided["output"] = {"uri": output}
    template = _pod_template(arguments)
    if template:
        decided["podTemplate"] = template
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": merge(decided, spec or {})}


def _accelerator(machine: MachineConfig) -> dict[str, Any]:
    kind, count = machine.accelerator, machine.accelerator_count
    section: dict[str, Any] = {"type": CATALOGUE[kind]}
    if kind.is_tpu:
        section["topology"] = _topology(machine)
    elif kind is not AcceleratorType.NO_ACCELERATOR:
        section["countPerWorker"] = count
    elif count > 1:
        # Logical CPU devices; tensorflow-cloud has no equivalent.
        section["countPerWorker"] = count
    return section


def _topology(machine: MachineConfig) -> str:
    """Return the topology of the slice of one machine with that number of chips, or cores (v3: two per chip)."""
    accelerator = accelerators.lookup(CATALOGUE[machine.accelerator])
    on_one_host = {
        accelerators.chips(name) * accelerator.replicas_per_device: name
        for name, chips in accelerator.topologies.items()
        if accelerators.chips(name) in chips
    }
    topology = on_one_host.get(machine.accelerator_count)
    if topology is None:
        raise InvalidArgument(
            f"Invalid `worker_config` input. No machine has accelerator_count={machine.accelerator_count} "
            f"of {accelerator.title}.",
            next_step=f"There are {', '.join(str(count) for count in sorted(on_one_host))}.",
        )
    return topology


def _pod_template(arguments: RunArguments) -> dict[str, Any]:
    template: dict[str, Any] = {}
    if arguments.image:
        template["image"] = arguments.image
    if arguments.service_account:
        # Workload Identity: the Kubernetes service account of that name is annotated with the full address.
        template["serviceAccountName"] = arguments.service_account.partition("@")[0]
    if arguments.labels:
        template["labels"] = dict(arguments.labels)
    machine = arguments.machine
    if arguments.custom_shape and not machine.accelerator.is_tpu:
        requests: dict[str, Any] = {}
        if machine.cpu_cores is not None:
            requests["cpu"] = machine.cpu_cores
        if machine.memory is not None:
            requests["memory"] = f"{round(machine.memory * 1000)}M"
        if requests:
            template["resources"] = {"requests": requests}
    return template


if TYPE_CHECKING:
    from mptraining.cluster.connection import Cluster
    from mptraining.cluster.job import Job
    from mptraining.local.local_job import LocalJob


Backend = Literal["cluster", "local"]
# Environment variable with the default backend, so that an unchanged program can train locally.
BACKEND = "MPTRAINING_BACKEND"


@dataclass(frozen=True, slots=True)
class Target:
    """The backend or cluster of a job, and job settings for which tensorflow-cloud has no argument.

    `name` None: generated from the program's name. `backend` None: MPTRAINING_BACKEND, or else the cluster.
    """

    name: str | None
    output: str | None
    spec: Mapping[str, Any]
    cluster: Cluster | None
    backend: Backend | None

    def __post_init__(self) -> None:
        if self.backend not in ("cluster", "local", None):
            given = repr(self.backend)
            raise InvalidArgument(f"Invalid `backend` input. Expected 'cluster' or 'local'. Received {given}.")

    @property
    def local(self) -> bool:
        """Return whether the job trains in processes of this machine. Raises InvalidSpec for an invalid variable."""
        backend = self.backend or os.environ.get(BACKEND) or "cluster"
        if backend not in ("cluster", "local"):
            raise InvalidSpec(f"the variable {BACKEND}", repr(backend), expected="cluster or local")
        # An explicit `cluster` overrides the variable, but not an explicit `backend`.
        return backend == "local" and (self.backend is not None or self.cluster is None)


@dataclass(frozen=True, slots=True)
class Shipped:
    """The package, a stem for the job's name, and whether a running script submits itself."""

    package: Package
    stem: str
    from_itself: bool = False


def ship(
    entry_point: str | Callable[..., Any] | None, arguments: RunArguments, *, folder: str | None, target: Target
) -> Shipped:
    """Package the program of `entry_point`. Raises Problem."""
    root = Path(folder) if folder is not None else None
    requirements = Path(arguments.requirements) if arguments.requirements else None
    words = arguments.entry_point_args
    if callable(entry_point):
        if words:
            raise InvalidArgument("Invalid `entry_point_args` input. Expected None for a function. Received a list.")
        # With spec.data the function returns a model that the trainer trains; without it, the function trains itself.
        call = "" if "data" not in target.spec else None
        made = program.ship_function(entry_point, folder=root, requirements=requirements, call=call)
        return Shipped(made, entry_point.__name__)
    if entry_point is None and ipython_shell() is not None:
        made = program.ship_running_notebook(folder=root, requirements=requirements, arguments=words)
        return Shipped(made, "notebook")
    file = Path(entry_point if entry_point is not None else sys.argv[0])
    made = program.ship_file(file, folder=root, requirements=requirements, arguments=words)
    return Shipped(made, file.stem, from_itself=entry_point is None)


class TfcJob(dict[str, str | None]):
    """The dict that tensorflow-cloud returns; `job` is the job, whose attributes it has too."""

    def __init__(self, job: Job | LocalJob, image: str | None) -> None:
        super().__init__(job_id=job.name, docker_image=image)
        self.job = job

    def __getattr__(self, name: str) -> Any:
        return getattr(self.job, name)

    def _repr_html_(self) -> str:
        return self.job._repr_html_()


def launch(arguments: RunArguments, shipped: Shipped, target: Target, *, stream_logs: bool) -> TfcJob:
    """Start the job and print its name. Raises Problem."""
    body = document(
        arguments,
        name=target.name or job_name(shipped.stem, secrets.token_hex(3)),
        program=shipped.package.program,
        output=target.output,
        spec=target.spec,
    )
    body, package, about_keras = with_keras(body, shipped.package, image=arguments.asked_image)
    for note in (*arguments.notes, *package.notes, *about_keras):
        print(f"note: {note}")
    if target.local:
        any_accelerator = arguments.any_machine and "accelerator" not in target.spec
        return TfcJob(_train_here(body, package, any_accelerator=any_accelerator), None)
    from mptraining.cluster.connection import HERE
    from mptraining.cluster.submission import submit

    bucket = arguments.bucket
    archives = f"gs://{bucket.removeprefix('gs://').strip('/')}/mptraining/source" if bucket else None
    job = submit(body, package=package, cluster=target.cluster or HERE, archives=archives)
    for warning in job.warnings:
        print(f"advice: {warning}")
    print("Job submitted successfully.")
    print("Your job ID is: ", job.name)
    if stream_logs:
        job.logs(follow=True)
    return TfcJob(job, (body["spec"].get("podTemplate") or {}).get("image"))


def _train_here(body: dict[str, Any], package: Package, *, any_accelerator: bool) -> LocalJob:
    """Train on this machine; `any_accelerator`: the caller asked for none, so that a machine without it takes its CPU.

    Raises Problem before any process starts, and if training failed, after the output was shown.
    """
    from mptraining.local.local_job import failed
    from mptraining.local.runner import LocalRunner, this_machine

    spec = body["spec"]
    if any_accelerator and this_machine().lacks(accelerators.lookup(spec["accelerator"]["type"]).kind):
        body = {**body, "spec": {**spec, "accelerator": {"type": "cpu"}}}
    runner = LocalRunner(again=f"run(…, name={body['metadata']['name']!r})")
    job = runner.run(body, package=package)
    if job.exit_code:
        raise failed(job)
    return job
