"""Second part of `tensorflow_cloud.run`, after its arguments are validated: package the program and start the job."""

from __future__ import annotations

import os
import re
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
from mptraining.tensorflow_cloud_compat.arguments import InvalidArgument, RunArguments
from mptraining_api import accelerators
from mptraining_api.problems import InvalidSpec
from mptraining_api.spec import API_VERSION, KIND
from mptraining_api.tensorflow_cloud.machine_configs import CATALOGUE, AcceleratorType, MachineConfig

# Pod names append attempt, index and a random suffix to the job's name (`mptraining_api.spec.JOB_NAME`).
_MOST_LETTERS = 50


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


def job_name(stem: str, token: str) -> str:
    """Return a DNS label from `stem` (invalid characters replaced, truncated) and the suffix `token`."""
    words = re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-")
    if not words or not words[0].isalpha():
        words = f"job-{words}".rstrip("-")
    return f"{words[: _MOST_LETTERS - len(token) - 1].rstrip('-')}-{token}"


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Merge `over` into `base` recursively; None removes a field."""
    result = dict(base)
    for key, value in over.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, Mapping) and isinstance(result.get(key), Mapping):
            result[key] = merge(result[key], value)
        else:
            result[key] = value
    return result


def _accelerator(machine: MachineConfig) -> dict[str, Any]:
    kind, count = machine.accelerator, machine.accelerator_count
    found: dict[str, Any] = {"type": CATALOGUE[kind]}
    if kind.is_tpu:
        found["topology"] = _topology(machine)
    elif kind is not AcceleratorType.NO_ACCELERATOR:
        found["countPerWorker"] = count
    elif count > 1:
        # Logical CPU devices; tensorflow-cloud has no equivalent.
        found["countPerWorker"] = count
    return found


def _topology(machine: MachineConfig) -> str:
    """Return the topology of the slice of one machine with that number of chips, or cores (v3: two per chip)."""
    type = accelerators.lookup(CATALOGUE[machine.accelerator])
    on_one_host = {
        accelerators.chips(name) * type.replicas_per_device: name
        for name, chips in type.topologies.items()
        if accelerators.chips(name) in chips
    }
    found = on_one_host.get(machine.accelerator_count)
    if found is None:
        raise InvalidArgument(
            f"Invalid `worker_config` input. No machine has accelerator_count={machine.accelerator_count} "
            f"of {type.title}.",
            next_step=f"There are {', '.join(str(each) for each in sorted(on_one_host))}.",
        )
    return found


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
    from mptraining.local.job import LocalJob


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
            found = repr(self.backend)
            raise InvalidArgument(f"Invalid `backend` input. Expected 'cluster' or 'local'. Received {found}.")

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
        alone = "data" not in target.spec
        made = program.ship_function(entry_point, folder=root, requirements=requirements, trains_itself=alone)
        return Shipped(made, entry_point.__name__)
    if entry_point is None and ipython_shell() is not None:
        made = program.ship_running_notebook(folder=root, requirements=requirements, arguments=words)
        return Shipped(made, "notebook")
    file = Path(entry_point if entry_point is not None else sys.argv[0])
    made = program.ship_file(file, folder=root, requirements=requirements, arguments=words)
    return Shipped(made, file.stem, from_itself=entry_point is None)


def launch(arguments: RunArguments, shipped: Shipped, target: Target, *, stream_logs: bool) -> Job | LocalJob:
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
        from mptraining.tensorflow_cloud_compat.local import train_locally

        return train_locally(body, package, any_accelerator=arguments.any_machine and "accelerator" not in target.spec)
    from mptraining.cluster.connection import HERE
    from mptraining.cluster.submit import submit

    bucket = arguments.bucket
    archives = f"gs://{bucket.removeprefix('gs://').strip('/')}/mptraining/source" if bucket else None
    job = submit(body, package=package, cluster=target.cluster or HERE, archives=archives)
    for warning in job.warnings:
        print(f"advice: {warning}")
    print("Job submitted successfully.")
    print("Your job ID is: ", job["job_id"])
    if stream_logs:
        job.logs(follow=True)
    return job
