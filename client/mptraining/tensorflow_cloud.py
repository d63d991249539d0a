"""Drop-in replacement of `tensorflow_cloud`, whose calls create an MPTrainingJob in your cluster.

    import mptraining.tensorflow_cloud as tfc

    job = tfc.run(chief_config=tfc.COMMON_MACHINE_CONFIGS["T4_4X"])

`run` has tensorflow-cloud's arguments, defaults and messages; docs/guide/migrate.md lists the differences ("From
tensorflow-cloud"). No image is built: the program's source is packaged and runs in the trainer's image.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from mptraining_api.tensorflow_cloud import inside_job
from mptraining_api.tensorflow_cloud.inside_job import InsideJob, __version__, remote
from mptraining_api.tensorflow_cloud.machine_configs import (
    COMMON_MACHINE_CONFIGS,
    AcceleratorType,
    DockerConfig,
    MachineConfig,
    is_tpu_config,
)

if TYPE_CHECKING:
    from mptraining.cluster.connection import Cluster
    from mptraining.tensorflow_cloud_compat.launch import TfcJob

__all__ = [
    "COMMON_MACHINE_CONFIGS",
    "AcceleratorType",
    "DockerConfig",
    "MachineConfig",
    "__version__",
    "is_tpu_config",
    "remote",
    "run",
    "run_cloudtuner",
]


def run(
    entry_point: str | Callable[..., Any] | None = None,
    requirements_txt: str | None = None,
    docker_config: DockerConfig | Literal["auto"] = "auto",
    distribution_strategy: Literal["auto"] | None = "auto",
    chief_config: MachineConfig | Literal["auto"] = "auto",
    worker_config: MachineConfig | Literal["auto"] = "auto",
    worker_count: int = 0,
    entry_point_args: list[str] | None = None,
    stream_logs: bool = False,
    job_labels: Mapping[str, str] | None = None,
    service_account: str | None = None,
    *,
    name: str | None = None,
    output: str | None = None,
    folder: str | None = None,
    spec: Mapping[str, Any] | None = None,
    cluster: Cluster | None = None,
    backend: Literal["cluster", "local"] | None = None,
    **kwargs: Any,
) -> TfcJob | InsideJob:
    """Submit a program as an MPTrainingJob and return the dict that tensorflow-cloud returns, with the job as `.job`.

    Arguments of tensorflow-cloud:

    entry_point: path of a script or notebook below the current folder; None for the running notebook or script; also
        a function, which is called in the job. A script is packaged with its folder.
    requirements_txt: path of a pip requirements file, installed in addition to the packages of the trainer's image.
    docker_config: no image is built. parent_image is the image of the pods, if it contains the trainer;
        image_build_bucket is the bucket for a package that is too large for a ConfigMap; the rest is not used.
    distribution_strategy: "auto", or None if the program creates its own strategy.
    chief_config, worker_config, worker_count: the job has worker_count + 1 equal workers; "auto" is a T4. For TPUs only
        worker_config is used, with worker_count=1.
    entry_point_args: command line arguments of the program.
    stream_logs: print the job's log until it ends; Ctrl-C leaves the job running.
    job_labels: labels of the job and its pods.
    service_account: a Google service account; the pods run under the Kubernetes service account named like the part
        before its @.

    Additional arguments: `name` (default: the program's, with a random suffix), `output` (the run folder, gs://…),
    `folder` (packaged instead of the program's own), `spec` (any other fields of the job, which take precedence),
    `cluster`, `backend` ("local" trains in processes of this machine; None: the environment variable
    MPTRAINING_BACKEND, which `mptraining.colab.run_here()` sets, else the cluster).

    Returns an empty InsideJob when it is called in the job. A script that submits itself exits here, as with
    tensorflow-cloud. Raises ValueError with tensorflow-cloud's messages, TypeError for an unknown keyword, and Problem.
    """
    if remote():
        return InsideJob()
    docker_base_image = kwargs.pop("docker_base_image", None)
    docker_image_bucket_name = kwargs.pop("docker_image_bucket_name", None)
    if kwargs:
        raise TypeError(f"Unknown keyword arguments: {kwargs.keys()}")
    from mptraining.tensorflow_cloud_compat.arguments import check_arguments
    from mptraining.tensorflow_cloud_compat.launch import Target, launch, ship

    arguments = check_arguments(
        entry_point=entry_point,
        requirements_txt=requirements_txt,
        docker_config=docker_config,
        distribution_strategy=distribution_strategy,
        chief_config=chief_config,
        worker_config=worker_config,
        worker_count=worker_count,
        entry_point_args=entry_point_args,
        stream_logs=stream_logs,
        job_labels=job_labels,
        service_account=service_account,
        docker_base_image=docker_base_image,
        docker_image_bucket_name=docker_image_bucket_name,
    )
    target = Target(name=name, output=output, spec=spec or {}, cluster=cluster, backend=backend)
    shipped = ship(entry_point, arguments, folder=folder, target=target)
    job = launch(arguments, shipped, target, stream_logs=stream_logs)
    if shipped.from_itself:
        # The rest of the script runs only in the job.
        sys.exit(0)
    return job


def run_cloudtuner(num_jobs: int = 1, **kwargs: Any) -> dict[str, Any]:
    """Submit one job whose script searches with KerasTuner.

    KerasTuner trains a trial on one worker, so the job has one for any `num_jobs`; an MPTrainingSweep runs trials
    at the same time. Takes the arguments of `run` but no `worker_count`. Returns a dict with `job_ids`, `docker_image`,
    and the job object under `jobs`.
    """
    if remote():
        return InsideJob()
    if num_jobs < 1:
        raise ValueError("num_jobs must be greater than 0.")
    if kwargs.get("worker_count"):
        raise ValueError("Invalid `worker_count` input. Expected 0: KerasTuner trains a trial on one worker.")
    if num_jobs > 1:
        parallel = "an MPTrainingSweep (mptj submit sweep.yaml) runs them in parallel"
        print(f"note: one job runs all trials, not {num_jobs}; {parallel}")
    job: Any = run(**kwargs)
    return {"job_ids": [job["job_id"]], "docker_image": job["docker_image"], "jobs": [job]}


__getattr__ = inside_job.__getattr__
assert {*inside_job.__all__} >= {*__all__}, "what a program names here it must find in the job too"
